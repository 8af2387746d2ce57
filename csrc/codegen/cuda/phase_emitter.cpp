#include "codegen/cuda/phase_emitter.h"

#include <algorithm>

#include "loop/mutator.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {

using loop::Block;
using loop::Buffer;
using loop::Expr;
using loop::LoopKind;
using loop::Stmt;
using loop::StmtKind;

namespace {

// Threads of a block whose groups fit a warp. Small blocks spread few rows over many
// multiprocessors, yet as many of them as one holds at once must fill it.
constexpr int64_t kThreadsOfSmallGroups = 128;
// Threads of a group where the text does not say: of rows of a kernel written for a CPU, and of a
// phase that runs once.
constexpr int64_t kDefaultRowGroup = kWarpThreads;
constexpr int64_t kDefaultSingleGroup = 256;

bool has_vector_loop(const Block& block) {
  bool found = false;
  loop::for_each_stmt(block, [&](Stmt stmt) {
    if (const auto* loop = loop::as<loop::For>(stmt)) found |= loop->mode.kind == LoopKind::kVector;
    if (const auto* reduce = loop::as<loop::Reduce>(stmt))
      found |= reduce->mode.kind == LoopKind::kVector;
  });
  return found;
}

std::string number(int64_t value) { return std::to_string(value); }

}  // namespace

void TextWriter::line(const std::string& text) {
  text_.append(static_cast<size_t>(2 * depth_), ' ').append(text) += '\n';
}

void TextWriter::open(const std::string& text) {
  line(text);
  ++depth_;
}

void TextWriter::close() {
  --depth_;
  line("}");
}

PhaseEmitter::PhaseEmitter(const loop::Kernel& kernel, const EmitOptions& options, bool wide_index,
                           bool has_checks)
    : kernel_(kernel), options_(options), offsets_(kernel, options.variant == Variant::kUsual),
      text_(offsets_, wide_index), has_checks_(has_checks), index_type_(text_.index_type()) {}

Result<PhaseEmitter::Output> PhaseEmitter::emit(const Block& phase, const std::string& function) {
  const loop::For* parallel = loop::parallel_loop(phase);
  const Block& body = parallel != nullptr ? parallel->body : phase;
  const int64_t written = parallel != nullptr ? parallel->mode.group : 0;
  if (written > 0)
    group_ = written;
  else if (has_vector_loop(body))
    group_ = parallel != nullptr ? kDefaultRowGroup : kDefaultSingleGroup;
  const bool is_small = parallel != nullptr && group_ <= kWarpThreads;
  groups_ = is_small ? kThreadsOfSmallGroups / group_ : 1;
  collect_data_variables(phase);
  if (parallel != nullptr) {
    for (Stmt stmt : phase)
      if (const auto* let = loop::as<loop::Let>(stmt)) offsets_.define(*let);
    offsets_.define_loop(parallel->variable, parallel->begin, parallel->end);
  }
  Result<BodyPlan> plan = BodyPlan::make(body, offsets_, group_, groups_, written > 0, options_);
  if (!plan) return Unsupported{plan.reason()};
  plan_ = std::move(plan.value());

  emit_signature(function);
  emit_prologue();
  if (parallel != nullptr)
    for (Stmt stmt : phase)
      if (const auto* let = loop::as<loop::Let>(stmt)) emit_let(*let);
  emit_iterations(body, parallel);
  out_.close();
  Output output{.text = out_.take(),
                .info = {},
                .divisible = plan_->divisible(),
                .below_2_30 = text_.assumed_below_2_30(),
                .nonnegative = offsets_.assumed_nonnegative(),
                .alignment = plan_->alignment()};
  output.info.function = function;
  output.info.threads = static_cast<int32_t>(group_ * groups_);
  output.info.group = static_cast<int32_t>(group_);
  output.info.shared_bytes = static_cast<int32_t>(plan_->shared_bytes() * groups_);
  return output;
}

void PhaseEmitter::emit_signature(const std::string& function) {
  std::string parameters;
  for (const Buffer* buffer : kernel_.buffers) {
    const std::string type(type_text(buffer->dtype));
    if (buffer->access == loop::Access::kValue) {
      parameters += "const " + type + " " + buffer_text(buffer) + ", ";
      text_.set_value(buffer);
      continue;
    }
    const bool is_const = buffer->access == loop::Access::kIn;
    parameters +=
        (is_const ? "const " : "") + type + "* __restrict__ " + buffer_text(buffer) + ", ";
  }
  for (const loop::Variable* size : kernel_.sizes)
    parameters += "const i64 size_" + identifier(size->name) + ", ";
  parameters += "const i64 iterations";
  if (has_checks_) parameters += ", FaultRecord* faults";
  out_.open("MLCC_KERNEL(" + function + ", " + number(group_ * groups_) + ")(" + parameters +
            ") {");
}

void PhaseEmitter::emit_prologue() {
  for (const loop::Variable* size : kernel_.sizes) {
    const std::string parameter = "size_" + identifier(size->name);
    text_.define_size(size, parameter);
    out_.line("const " + index_type_ + " " + identifier(size->name) + " = (" + index_type_ + ")" +
              parameter + ";");
  }
  if (group_ > 1) out_.line("const i32 rank = (i32)threadIdx.x % " + number(group_) + ";");
  if (groups_ > 1)
    out_.line("const i32 team = (i32)threadIdx.x" +
              (group_ > 1 ? " / " + number(group_) : std::string()) + ";");
  if (group_ == kWarpThreads) out_.line("const u32 mask = 0xffffffffu;");
  if (group_ > 1 && group_ < kWarpThreads)
    out_.line("const u32 mask = " + number((int64_t{1} << group_) - 1) +
              "u << ((i32)threadIdx.x % 32 / " + number(group_) + " * " + number(group_) + ");");
  if (plan_->shared_bytes() == 0) return;
  out_.line("MLCC_DYNAMIC_SHARED(pool);");
  std::string at = groups_ > 1 ? "team * " + number(plan_->shared_bytes()) : "0";
  int64_t offset = 0;
  const auto place = [&](DType dtype, const std::string& name, int64_t bytes) {
    out_.line(std::string(type_text(dtype)) + "* const " + name + " = (" +
              std::string(type_text(dtype)) + "*)(pool + " + at + " + " + number(offset) + ");");
    offset += BodyPlan::padded(bytes);
  };
  for (const Buffer* buffer : plan_->shared_buffers()) {
    text_.set_local(buffer);
    place(buffer->dtype, buffer_text(buffer),
          *Offsets::extent(buffer).as_constant() * dtype_size(buffer->dtype));
  }
  for (const auto& cache : plan_->caches())
    if (cache->is_shared) place(cache->buffer->dtype, cache->name, cache->bytes);
}

void PhaseEmitter::emit_iterations(const Block& body, const loop::For* parallel) {
  const std::string first = groups_ > 1 ? "(i32)blockIdx.x * " + number(groups_) + " + team"
                                        : std::string("(i32)blockIdx.x");
  const std::string step =
      groups_ > 1 ? "(i32)gridDim.x * " + number(groups_) : std::string("(i32)gridDim.x");
  // Groups have a vector loop's loads in flight: copies of it would only take long to compile. A
  // thread by itself has one element, and gains by more.
  if (group_ > 1) out_.unroll_by(1);
  out_.open("for (" + index_type_ + " item = " + first + "; item < (" + index_type_ +
            ")iterations; item += " + step + ") {");
  out_.line("begin_iteration();");
  if (parallel != nullptr) {
    text_.require_index_range(parallel->begin, parallel->end);
    text_.define(parallel->variable, VariableKind::kIndex);
    const auto* begin = loop::as<loop::Constant>(parallel->begin);
    const bool is_from_0 = begin != nullptr && begin->as_int() == 0;
    out_.line("const " + index_type_ + " " + identifier(parallel->variable->name) + " = " +
              (is_from_0 ? "item;" : text_.index(parallel->begin) + " + item;"));
  }
  fail_label_ = "next_item";
  if (plan_->has_checks()) {
    out_.open("{");
    if (group_ > 1) out_.line("bool failed = false;");
  }
  for (const auto& cache : plan_->caches()) {
    if (cache->is_shared) continue;
    const LoopShape& shape = plan_->shape(*plan_->find(cache->first));
    out_.line("Pack<" + std::string(type_text(cache->buffer->dtype)) + ", " + number(shape.width) +
              "> " + cache->name + "[" + number(*shape.rounds) + "];");
  }
  remember_all(body);  // of the iteration before
  emit_group(body);
  if (plan_->has_checks()) {
    out_.close();
    out_.line(fail_label_ + ":;");
  }
  out_.close();
}

// ---- Group statements ---------------------------------------------------------------------------

void PhaseEmitter::emit_group(const Block& block) {
  for (Stmt stmt : block) emit_group(stmt);
}

void PhaseEmitter::emit_group(Stmt stmt) {
  if (const VectorLoop* loop = plan_->find(stmt)) {
    order(plan_->footprint(stmt));
    return emit_vector(*loop);
  }
  switch (stmt->kind) {
  case StmtKind::kFor: return emit_group_loop(*loop::as<loop::For>(stmt));
  case StmtKind::kReduce: return emit_group_reduce(*loop::as<loop::Reduce>(stmt));
  case StmtKind::kIf: return emit_group_if(*loop::as<loop::If>(stmt));
  case StmtKind::kAlloc: {
    const Buffer* buffer = loop::as<loop::Alloc>(stmt)->buffer;
    if (plan_->is_private(buffer)) emit_private(buffer);
    return;
  }
  case StmtKind::kLet: order(plan_->footprint(stmt)); return emit_let(*loop::as<loop::Let>(stmt));
  case StmtKind::kCheck:
    order(plan_->footprint(stmt));
    return emit_group_check(*loop::as<loop::Check>(stmt));
  case StmtKind::kPrefetch: return;
  case StmtKind::kStore:
  case StmtKind::kAtomic: break;
  case StmtKind::kContract: MLCC_UNREACHABLE("cuda: contraction");
  }
  order(plan_->footprint(stmt));
  if (group_ > 1) out_.open("if (rank == 0) {");
  emit_thread(stmt);
  if (group_ > 1) out_.close();
}

void PhaseEmitter::emit_group_loop(const loop::For& loop) {
  order(plan_->footprint(nullptr, {loop.begin, loop.end}));
  const auto reads = pending_reads_, writes = pending_writes_;
  remember_all(loop.body);  // of the round before
  out_.open(range_for(loop.variable, loop.begin, loop.end));
  emit_group(loop.body);
  out_.close();
  keep_pending(reads, writes);
}

void PhaseEmitter::emit_group_reduce(const loop::Reduce& reduce) {
  std::vector<Expr> own{reduce.begin, reduce.end};
  for (const loop::Carried& carried : reduce.carried) own.push_back(carried.init);
  order(plan_->footprint(nullptr, own));
  for (const loop::Carried& carried : reduce.carried) declare_carried(carried);
  const auto reads = pending_reads_, writes = pending_writes_;
  remember_all(reduce.body);
  out_.open(range_for(reduce.variable, reduce.begin, reduce.end));
  emit_group(reduce.body);
  order(plan_->footprint(nullptr, reduce.yields));
  emit_step(reduce);
  out_.close();
  keep_pending(reads, writes);
}

// What was pending before a part that may not run is pending after it: its barriers do not count.
void PhaseEmitter::keep_pending(const PendingSet& reads, const PendingSet& writes) {
  pending_reads_.insert(reads.begin(), reads.end());
  pending_writes_.insert(writes.begin(), writes.end());
}

// The arms are alike for the whole group; what either leaves pending is pending afterwards.
void PhaseEmitter::emit_group_if(const loop::If& branch) {
  order(plan_->footprint(nullptr, {branch.condition}));
  const auto reads = pending_reads_, writes = pending_writes_;
  out_.open("if (" + text_.value(branch.condition) + ") {");
  emit_group(branch.then_body);
  out_.close();
  if (branch.else_body.empty()) return keep_pending(reads, writes);
  const auto then_reads = pending_reads_, then_writes = pending_writes_;
  pending_reads_ = reads;
  pending_writes_ = writes;
  out_.open("else {");
  emit_group(branch.else_body);
  out_.close();
  keep_pending(then_reads, then_writes);
}

void PhaseEmitter::emit_report(const loop::Check& check) {
  std::string details;
  for (size_t i = 0; i < loop::kMaxCheckDetails; ++i)
    details += ", " + (i < check.details.size() ? text_.value(check.details[i]) : "0ll");
  out_.line("report(faults, " + number(check.code) + "ll" + details + ");");
}

void PhaseEmitter::emit_group_check(const loop::Check& check) {
  out_.open("if (!" + text_.value(check.condition) + ") {");
  if (group_ > 1) out_.open("if (rank == 0) {");
  emit_report(check);
  if (group_ > 1) out_.close();
  out_.line("goto " + fail_label_ + ";");
  out_.close();
}

// ---- Order among threads ------------------------------------------------------------------------

void PhaseEmitter::barrier() {
  if (group_ == 1) return;
  out_.line(group_ <= kWarpThreads ? "__syncwarp(mask);" : "__syncthreads();");
  pending_reads_.clear();
  pending_writes_.clear();
}

// A barrier, if the statement touches what another thread may have touched since the last one.
void PhaseEmitter::order(const Footprint& footprint) {
  const auto meets = [](const auto& buffers, const std::unordered_set<const void*>& pending) {
    return std::any_of(buffers.begin(), buffers.end(),
                       [&](const Buffer* buffer) { return pending.contains(buffer); });
  };
  if (meets(footprint.reads, pending_writes_) || meets(footprint.writes, pending_writes_) ||
      meets(footprint.writes, pending_reads_))
    barrier();
  pending_reads_.insert(footprint.reads.begin(), footprint.reads.end());
  pending_writes_.insert(footprint.writes.begin(), footprint.writes.end());
}

// What another round of `block` may have left pending.
void PhaseEmitter::remember_all(const Block& block) {
  if (group_ == 1) return;
  loop::for_each_stmt(block, [&](Stmt stmt) {
    const Footprint footprint = plan_->footprint(stmt);
    pending_reads_.insert(footprint.reads.begin(), footprint.reads.end());
    pending_writes_.insert(footprint.writes.begin(), footprint.writes.end());
    if (const VectorLoop* loop = plan_->find(stmt)) pending_reads_.insert(loop);  // its scratch
  });
}

// ---- Which i64 variables are indices only -------------------------------------------------------

// Arithmetic on them may be done in the index type; on data it is 64 bits wide.
void PhaseEmitter::collect_data_variables(const Block& block) {
  loop::for_each_stmt(block, [&](Stmt stmt) {
    if (const auto* store = loop::as<loop::Store>(stmt)) {
      for (Expr e : store->indices) find_data_uses(e, true);
      find_data_uses(store->value, false);
      return find_data_uses(store->mask, false);
    }
    if (const auto* atomic = loop::as<loop::Atomic>(stmt)) {
      for (Expr e : atomic->indices) find_data_uses(e, true);
      find_data_uses(atomic->value, false);
      return find_data_uses(atomic->mask, false);
    }
    if (const auto* loop = loop::as<loop::For>(stmt)) {
      find_data_uses(loop->begin, true);
      return find_data_uses(loop->end, true);
    }
    if (const auto* reduce = loop::as<loop::Reduce>(stmt)) {
      find_data_uses(reduce->begin, true);
      find_data_uses(reduce->end, true);
      for (const loop::Carried& carried : reduce->carried) {
        find_data_uses(carried.init, false);
        data_variables_.insert(carried.variable);
      }
      for (Expr e : reduce->yields) find_data_uses(e, false);
      if (!reduce->combine) return;
      for (Expr e : reduce->combine->values) find_data_uses(e, false);
      return;
    }
    if (const auto* let = loop::as<loop::Let>(stmt)) {
      // Whether the let is data is only known once its uses are: take its operands as data if its
      // value is not symbolic.
      if (!loop::to_symbolic(let->value)) find_data_uses(let->value, false);
      return;
    }
    for (Expr e : loop::operands(stmt)) find_data_uses(e, false);
  });
}

void PhaseEmitter::find_data_uses(Expr e, bool is_index) {
  if (e == nullptr) return;
  if (const auto* variable = loop::as<loop::Variable>(e)) {
    if (!is_index) data_variables_.insert(variable);
    return;
  }
  if (const auto* load = loop::as<loop::Load>(e)) {
    for (Expr index : load->indices) find_data_uses(index, true);
    find_data_uses(load->mask, false);
    return find_data_uses(load->otherwise, false);
  }
  const auto* apply = loop::as<loop::Apply>(e);
  const bool stays_index = (is_index && loop::to_symbolic(e).has_value()) ||
                           (apply != nullptr && Expressions::compares_places(*apply));
  for (Expr operand : loop::operands(e)) find_data_uses(operand, stays_index);
}

}  // namespace mlcc::codegen::cuda
