// Statements that one thread runs by itself.
#include "codegen/cuda/phase_emitter.h"
#include "loop/mutator.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {

using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Stmt;
using loop::StmtKind;

namespace {

std::string_view atomic_text(ScalarOp op) {
  static constexpr std::pair<ScalarOp, std::string_view> kOps[] = {
      {ScalarOp::kAdd, "AddOp"}, {ScalarOp::kMin, "MinOp"}, {ScalarOp::kMax, "MaxOp"},
      {ScalarOp::kAnd, "AndOp"}, {ScalarOp::kOr, "OrOp"},   {ScalarOp::kXor, "XorOp"}};
  for (const auto& [known, text] : kOps)
    if (known == op) return text;
  MLCC_UNREACHABLE("atomic ", loop::scalar_op_name(op));
}

constexpr std::string_view kElement = "e";

}  // namespace

std::string PhaseEmitter::declare(DType dtype, const std::string& name) const {
  return std::string(type_text(dtype)) + " " + name;
}

std::string PhaseEmitter::range_for(const loop::Variable* variable, Expr begin, Expr end) {
  text_.require_index_range(begin, end);
  const std::string first = text_.index(begin), last = text_.index(end);
  offsets_.define_loop(variable, begin, end);
  text_.define(variable, VariableKind::kIndex);
  const std::string name = identifier(variable->name);
  return "for (" + index_type_ + " " + name + " = " + first + "; " + name + " < " + last + "; ++" +
         name + ") {";
}

template <typename Body>
void PhaseEmitter::for_elements(Body&& body) {
  if (!elements_.by_statement) return body();
  out_.unroll();
  out_.open("for (i32 e = 0; e < " + std::to_string(elements_.count) + "; ++e) {");
  text_.set_element(std::string(kElement));
  body();
  text_.set_element("");
  out_.close();
}

bool PhaseEmitter::is_by_statement(const loop::Variable* variable) const {
  return elements_.by_statement && elements_.varying.contains(variable);
}

void PhaseEmitter::emit_thread(const Block& block) {
  for (Stmt stmt : block) emit_thread(stmt);
}

void PhaseEmitter::emit_thread(Stmt stmt) {
  switch (stmt->kind) {
  case StmtKind::kLet: return emit_let(*loop::as<loop::Let>(stmt));
  case StmtKind::kStore: return emit_store(*loop::as<loop::Store>(stmt));
  case StmtKind::kAtomic: return emit_atomic(*loop::as<loop::Atomic>(stmt));
  case StmtKind::kPrefetch: return;  // other threads hide what a load takes
  case StmtKind::kFor: return emit_thread_for(*loop::as<loop::For>(stmt));
  case StmtKind::kReduce: return emit_thread_reduce(*loop::as<loop::Reduce>(stmt));
  case StmtKind::kCheck: return emit_thread_check(*loop::as<loop::Check>(stmt));
  case StmtKind::kAlloc: return emit_private(loop::as<loop::Alloc>(stmt)->buffer);
  case StmtKind::kIf: {
    const auto* branch = loop::as<loop::If>(stmt);
    out_.open("if (" + text_.value(branch->condition) + ") {");
    emit_thread(branch->then_body);
    out_.close();
    if (branch->else_body.empty()) return;
    out_.open("else {");
    emit_thread(branch->else_body);
    out_.close();
    return;
  }
  case StmtKind::kContract: break;
  }
  MLCC_UNREACHABLE("cuda: statement kind ", static_cast<int>(stmt->kind));
}

// Loads of neighbouring elements, made at once for all elements of the statement that reads them,
// until forget_packed_loads: what was loaded is not in scope for other statements.
void PhaseEmitter::pack_loads(const std::vector<Expr>& roots) {
  if (!elements_.by_statement) return;
  for (Expr root : roots) {
    if (root == nullptr) continue;
    loop::for_each_expr({root}, [&](Expr e) {
      const auto* load = loop::as<loop::Load>(e);
      if (load == nullptr) return;
      for (const VectorAccess& access : current_->accesses) {
        if (access.load != load || !access.is_packed) continue;
        const std::string name = "q" + std::to_string(next_name_++);
        out_.line("const auto " + name + " = load_pack<" + std::to_string(elements_.count) + ">(" +
                  text_.address(load->buffer, load->indices) + ");");
        text_.define_load(load, name + ".v[" + std::string(kElement) + "]");
        packed_loads_.push_back(load);
        return;
      }
    });
  }
}

void PhaseEmitter::forget_packed_loads() {
  for (const loop::Load* load : packed_loads_) text_.forget_load(load);
  packed_loads_.clear();
}

void PhaseEmitter::emit_let(const loop::Let& let) {
  offsets_.define(let);
  const std::string name = identifier(let.variable->name);
  if (is_by_statement(let.variable)) {
    pack_loads({let.value});
    out_.line(declare(let.variable->dtype, name) + "[" + std::to_string(elements_.count) + "];");
    text_.define(let.variable, VariableKind::kElements);
    for_elements([&] { out_.line(name + "[e] = " + text_.value(let.value) + ";"); });
    forget_packed_loads();
    return;
  }
  if (let.variable->dtype == DType::kI64 && !data_variables_.contains(let.variable) &&
      loop::to_symbolic(let.value) && text_.fits_index(let.value)) {
    const std::string value = text_.index(let.value);
    text_.define(let.variable, VariableKind::kIndex);
    // The element's own index stays a sum with the counter where it is used.
    out_.line("const " + index_type_ + " " + name + " = " + value + ";");
    return;
  }
  out_.line("const " + declare(let.variable->dtype, name) + " = " + text_.value(let.value) + ";");
  text_.define(let.variable, VariableKind::kScalar);
}

void PhaseEmitter::emit_store(const loop::Store& store) {
  const VectorAccess* access = nullptr;
  if (current_ != nullptr)
    for (const VectorAccess& each : current_->accesses)
      if (each.store == &store) access = &each;
  const bool is_packed = access != nullptr && access->is_packed && elements_.count > 1;
  const ElementCache* cache = access != nullptr && !is_tail_ ? access->cache : nullptr;
  pack_loads(loop::operands(&store));
  const std::string element = elements_.count > 1 ? "e" : "0";
  const std::string pack = is_packed ? "w" + identifier(store.buffer->name) : "";
  if (is_packed && elements_.by_statement)
    out_.line("Pack<" + std::string(type_text(store.buffer->dtype)) + ", " +
              std::to_string(elements_.count) + "> " + pack + ";");
  for_elements([&] {
    const std::string value = text_.value(store.value);
    if (store.mask != nullptr) out_.open("if (" + text_.value(store.mask) + ") {");
    std::string stored = value;
    if (cache != nullptr) {
      stored = cache_element(*cache, element);
      out_.line(stored + " = " + value + ";");
    }
    const std::string address = text_.address(store.buffer, store.indices);
    if (is_packed)
      out_.line(pack + ".v[" + element + "] = " + stored + ";");
    else if (text_.is_local(store.buffer))
      out_.line("*(" + address + ") = " + stored + ";");
    else if (store.buffer->scope == loop::Scope::kGlobal)
      out_.line("store(" + address + ", " + stored + ");");
    if (store.mask != nullptr) out_.close();
  });
  forget_packed_loads();
  if (is_packed && elements_.by_statement)
    out_.line("store_pack(" + text_.address(store.buffer, store.indices) + ", " + pack + ");");
}

void PhaseEmitter::emit_atomic(const loop::Atomic& atomic) {
  if (atomic.mask != nullptr) out_.open("if (" + text_.value(atomic.mask) + ") {");
  out_.line("atomic_update<" + std::string(atomic_text(atomic.op)) + ">(" +
            text_.address(atomic.buffer, atomic.indices) + ", " + text_.value(atomic.value) + ");");
  if (atomic.mask != nullptr) out_.close();
}

void PhaseEmitter::emit_thread_for(const loop::For& loop) {
  if (loop.mode.kind == loop::LoopKind::kUnrolled) out_.unroll();
  out_.open(range_for(loop.variable, loop.begin, loop.end));
  emit_thread(loop.body);
  out_.close();
}

// One variable, which is the result too.
void PhaseEmitter::declare_carried(const loop::Carried& carried) {
  const std::string name = identifier(carried.variable->name);
  out_.line(declare(carried.variable->dtype, name) + " = " + text_.value(carried.init) + ";");
  text_.define(carried.variable, VariableKind::kScalar);
  text_.define_as(carried.result, name);
}

void PhaseEmitter::emit_thread_reduce(const loop::Reduce& reduce) {
  for (const loop::Carried& carried : reduce.carried) {
    const std::string name = identifier(carried.variable->name);
    if (is_by_statement(carried.variable)) {
      pack_loads({carried.init});
      out_.line(declare(carried.variable->dtype, name) + "[" + std::to_string(elements_.count) +
                "];");
      for_elements([&] { out_.line(name + "[e] = " + text_.value(carried.init) + ";"); });
      forget_packed_loads();
      text_.define(carried.variable, VariableKind::kElements);
      text_.define_as(carried.result, name, VariableKind::kElements);
    } else {
      declare_carried(carried);
    }
  }
  if (reduce.mode.kind == loop::LoopKind::kUnrolled) out_.unroll();
  out_.open(range_for(reduce.variable, reduce.begin, reduce.end));
  emit_thread(reduce.body);
  pack_loads(reduce.yields);
  emit_step(reduce);
  forget_packed_loads();
  out_.close();
}

// The carried variables take the values that the body yields, all at once.
void PhaseEmitter::emit_step(const loop::Reduce& reduce) {
  if (reduce.carried.size() == 1 && !is_by_statement(reduce.carried[0].variable)) {
    out_.line(identifier(reduce.carried[0].variable->name) + " = " + text_.value(reduce.yields[0]) +
              ";");
    return;
  }
  // Those that are one for all elements take a step once, after the others have read them.
  std::vector<std::pair<std::string, std::string>> uniform, own;
  const auto take = [&](size_t i, std::vector<std::pair<std::string, std::string>>& steps) {
    const loop::Carried& carried = reduce.carried[i];
    const std::string name = "n" + std::to_string(next_name_++);
    out_.line("const " + declare(carried.variable->dtype, name) + " = " +
              text_.value(reduce.yields[i]) + ";");
    steps.emplace_back(text_.value(carried.variable), name);
  };
  const auto assign = [&](const std::vector<std::pair<std::string, std::string>>& steps) {
    for (const auto& [variable, name] : steps) out_.line(variable + " = " + name + ";");
  };
  for (size_t i = 0; i < reduce.carried.size(); ++i)
    if (!is_by_statement(reduce.carried[i].variable)) take(i, uniform);
  if (uniform.size() < reduce.carried.size())
    for_elements([&] {
      for (size_t i = 0; i < reduce.carried.size(); ++i)
        if (is_by_statement(reduce.carried[i].variable)) take(i, own);
      assign(own);
    });
  assign(uniform);
}

void PhaseEmitter::emit_thread_check(const loop::Check& check) {
  out_.open("if (!" + text_.value(check.condition) + ") {");
  emit_report(check);
  if (group_ > 1) out_.line("failed = true;");
  out_.line("goto " +
            (current_ != nullptr && group_ > 1 ? "stop_" + identifier(current_->variable->name)
                                               : fail_label_) +
            ";");
  out_.close();
}

void PhaseEmitter::emit_private(const loop::Buffer* buffer) {
  text_.set_local(buffer);
  out_.line(declare(buffer->dtype, buffer_text(buffer)) + "[" +
            std::to_string(std::max<int64_t>(1, *Offsets::extent(buffer).as_constant())) + "];");
}

}  // namespace mlcc::codegen::cuda
