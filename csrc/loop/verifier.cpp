#include <algorithm>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "loop/mutator.h"
#include "loop/text.h"
#include "loop/varying.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// As the lexer reads it: words with single dots between.
bool is_name(std::string_view name) {
  if (name.empty() || !is_word(name.front()) || !is_word(name.back())) return false;
  for (size_t i = 0; i < name.size(); ++i)
    if (!is_word(name[i]) && !(name[i] == '.' && is_word(name[i + 1]))) return false;
  return true;
}

class Verifier {
 public:
  explicit Verifier(const Kernel& kernel) : kernel_(kernel) {}

  void run() {
    require(is_name(kernel_.name), "its name is not an identifier");
    require(!kernel_.phases.empty(), "it has no phase");
    for (const Variable* size : kernel_.sizes) {
      require(size->dtype == DType::kI64, "size %", size->name, " is not i64");
      define(size, size->name);
    }
    for (const Buffer* buffer : kernel_.buffers) verify_parameter(*buffer);
    verify_errors();
    for (const Block& phase : kernel_.phases) verify_phase(phase);
  }

 private:
  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (condition) return;
    std::string where = "kernel @" + kernel_.name + ": ";
    if (stmt_ != nullptr) {
      const std::string text = print(stmt_);
      where += "'" + text.substr(0, text.find('\n')) + "': ";
    }
    throw Error(detail::join(where, parts...));
  }

  // ---- Names: `entity` is the variable or buffer itself, since another one may bear the same name

  void define(const void* entity, const std::string& name) {
    require(is_name(name), "%", name, " is not a name");
    require(names_.insert(name).second, "%", name, " is defined twice");
    visible_.insert(entity);
    scope_.push_back(entity);
  }

  void close_scope(size_t size) {
    for (; scope_.size() > size; scope_.pop_back()) visible_.erase(scope_.back());
  }

  void verify_exprs(const std::vector<Expr>& roots) {
    for_each_expr(roots, [&](Expr e) {
      if (const auto* variable = as<Variable>(e))
        require(visible_.contains(variable), "%", variable->name, " is not defined here");
      if (const auto* load = as<Load>(e)) verify_use(*load->buffer);
    });
  }

  void verify_use(const Buffer& buffer) {
    require(visible_.contains(&buffer), "%", buffer.name, " is not defined here");
  }

  void verify_written(const Buffer& buffer) {
    verify_use(buffer);
    require(buffer.scope != Scope::kGlobal || buffer.access != Access::kIn, "%", buffer.name,
            " is an input and must not be written");
    require(buffer.scope != Scope::kGlobal || buffer.access != Access::kValue, "%", buffer.name,
            " is a value and must not be written");
  }

  // ---- Parameters

  bool is_size(const Variable* variable) const {
    return std::find(kernel_.sizes.begin(), kernel_.sizes.end(), variable) != kernel_.sizes.end();
  }

  void verify_size_expr(const Buffer& buffer, Expr e) {
    for_each_expr({e}, [&](Expr part) {
      require(part->kind != ExprKind::kLoad, "%", buffer.name, ": its shape reads memory");
      const auto* variable = as<Variable>(part);
      require(variable == nullptr || is_size(variable), "%", buffer.name,
              ": its shape depends on more than sizes");
    });
  }

  void verify_streams(const Store& store) {
    if (store.streams == nullptr) return;
    for_each_expr({store.streams}, [&](Expr part) {
      const auto* variable = as<Variable>(part);
      require(part->kind != ExprKind::kLoad && (variable == nullptr || is_size(variable)),
              "store to %", store.buffer->name, ": whether it streams depends on more than sizes");
    });
  }

  void verify_parameter(const Buffer& buffer) {
    require(buffer.scope == Scope::kGlobal, "parameter %", buffer.name, " is not a global buffer");
    for (const auto* list : {&buffer.shape, &buffer.strides})
      for (const Expr e : *list) verify_size_expr(buffer, e);
    define(&buffer, buffer.name);
  }

  void verify_errors() {
    for (const ErrorText& error : kernel_.errors) {
      require(error.code > 0, "error code ", error.code, ", expected above 0");
      require(codes_.insert(error.code).second, "error code ", error.code, " is described twice");
      require(is_name(error.exception), "'", error.exception, "' is not an exception's name");
    }
  }

  // ---- Statements

  void verify_phase(const Block& phase) {
    const size_t scope = scope_.size();
    const For* range = parallel_loop(phase);
    verify_statements({phase.begin(), phase.end() - (range != nullptr ? 1 : 0)});
    if (range != nullptr) {
      stmt_ = range;
      for (const Expr bound : {range->begin, range->end})
        require(follows_from_sizes(bound, phase),
                "the bounds of a parallel loop must follow from sizes");
      verify_for(*range);
      stmt_ = nullptr;
    }
    close_scope(scope);
  }

  // Whether whoever launches the phase can evaluate `e`: it holds sizes and lets of the phase that
  // do, and reads no memory.
  bool follows_from_sizes(Expr e, const Block& phase) {
    bool follows = true;
    for_each_expr({e}, [&](Expr part) {
      follows &= part->kind != ExprKind::kLoad;
      const auto* variable = as<Variable>(part);
      if (variable == nullptr || is_size(variable)) return;
      for (const Stmt stmt : phase)
        if (const auto* let = as<Let>(stmt); let != nullptr && let->variable == variable)
          follows &= follows_from_sizes(let->value, phase);
    });
    return follows;
  }

  void verify_block(const Block& block) {
    const size_t scope = scope_.size();
    verify_statements(block);
    close_scope(scope);
  }

  void verify_statements(const Block& block) {
    const Stmt outer = stmt_;
    for (const Stmt stmt : block) {
      stmt_ = stmt;
      const auto* loop = as<For>(stmt);
      require(loop == nullptr || loop->mode.kind != LoopKind::kParallel,
              "a parallel loop must be the last statement of its phase, after nothing but lets");
      verify_stmt(stmt);
    }
    stmt_ = outer;
  }

  void verify_stmt(Stmt stmt) {
    switch (stmt->kind) {
    case StmtKind::kLet:
      verify_exprs(operands(stmt));
      return define(as<Let>(stmt)->variable, as<Let>(stmt)->variable->name);
    case StmtKind::kStore:
      verify_written(*as<Store>(stmt)->buffer);
      verify_exprs(operands(stmt));
      return verify_streams(*as<Store>(stmt));
    case StmtKind::kAtomic:
      verify_written(*as<Atomic>(stmt)->buffer);
      return verify_exprs(operands(stmt));
    case StmtKind::kPrefetch:
      verify_use(*as<Prefetch>(stmt)->buffer);
      return verify_exprs(operands(stmt));
    case StmtKind::kFor: return verify_for(*as<For>(stmt));
    case StmtKind::kReduce: return verify_reduce(*as<Reduce>(stmt));
    case StmtKind::kIf:
      verify_exprs(operands(stmt));
      for (const Block* block : blocks(stmt)) verify_block(*block);
      return;
    case StmtKind::kCheck:
      require(codes_.contains(as<Check>(stmt)->code),
              "the errors of the kernel do not describe code ", as<Check>(stmt)->code);
      return verify_exprs(operands(stmt));
    case StmtKind::kAlloc: return verify_alloc(*as<Alloc>(stmt)->buffer);
    case StmtKind::kContract: return verify_contract(*as<Contract>(stmt));
    }
    MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
  }

  // Runs `body` as the inside of a loop.
  template <typename Body>
  void inside(LoopKind kind, Body body) {
    const bool is_vector = has_lanes(kind);
    require(!is_vector || !is_in_vector_, "a vector loop inside a vector loop");
    const bool was_in_vector = std::exchange(is_in_vector_, is_in_vector_ || is_vector);
    const size_t scope = scope_.size();
    body();
    close_scope(scope);
    is_in_vector_ = was_in_vector;
  }

  void verify_for(const For& loop) {
    require(loop.mode.kind != LoopKind::kScan, "only a reduce is a scan");
    verify_exprs({loop.begin, loop.end});
    inside(loop.mode.kind, [&] {
      define(loop.variable, loop.variable->name);
      verify_block(loop.body);
    });
  }

  void verify_reduce(const Reduce& reduce) {
    const LoopKind kind = reduce.mode.kind;
    require(kind == LoopKind::kSerial || has_lanes(kind) || kind == LoopKind::kUnrolled,
            "a reduce is serial, vector, unrolled or scan");
    require(!has_lanes(kind) || reduce.combine, "a vector or scan reduce needs a combine");
    if (kind == LoopKind::kScan) verify_scan(reduce);
    verify_exprs({reduce.begin, reduce.end});
    for (const Carried& carried : reduce.carried) verify_exprs({carried.init});
    inside(kind, [&] {
      define(reduce.variable, reduce.variable->name);
      for (const Carried& carried : reduce.carried)
        define(carried.variable, carried.variable->name);
      verify_values(reduce.body, reduce.yields);
    });
    if (reduce.combine) {
      inside(LoopKind::kSerial, [&] {
        for (const auto* side : {&reduce.combine->left, &reduce.combine->right})
          for (const Variable* variable : *side) define(variable, variable->name);
        verify_values(reduce.combine->body, reduce.combine->values);
      });
    }
    for (const Carried& carried : reduce.carried) define(carried.result, carried.result->name);
  }

  // In front of the last let of a yield the carried values are those of a part of the iterations:
  // nothing but the yields may leave from there.
  void verify_scan(const Reduce& reduce) {
    const auto step_end = end_of_step(reduce);
    require(step_end.has_value(),
            "the yields of a scan are variables of lets in its body, each its own");
    VariableSet carried;
    for (const Carried& c : reduce.carried) carried.insert(c.variable);
    const auto split = reduce.body.begin() + static_cast<std::ptrdiff_t>(*step_end);
    const Block step(reduce.body.begin(), split), rest(split, reduce.body.end());
    VariableSet partial = varying_variables(step, carried);
    for (const Stmt stmt : step)
      require(stmt->kind == StmtKind::kLet || !mentions(stmt, partial), "a scan: '", print(stmt),
              "' reads carried values in front of the yields' lets");
    for (const Expr yield : reduce.yields) partial.erase(as<Variable>(yield));
    for (const Stmt stmt : rest)
      require(!mentions(stmt, partial), "a scan: '", print(stmt),
              "' reads carried values behind the yields' lets");
  }

  static bool mentions(Stmt stmt, const VariableSet& variables) {
    bool found = false;
    for_each_expr(operands(stmt), [&](Expr e) {
      const auto* variable = as<Variable>(e);
      found |= variable != nullptr && variables.contains(variable);
    });
    for (const Block* block : blocks(stmt))
      for (const Stmt inner : *block) found |= mentions(inner, variables);
    return found;
  }

  // The statements, then the values, which see what the statements define.
  void verify_values(const Block& body, const std::vector<Expr>& values) {
    verify_statements(body);
    verify_exprs(values);
  }

  void verify_alloc(const Buffer& buffer) {
    require(buffer.scope != Scope::kGlobal, "a global buffer is a parameter");
    for (const Expr extent : buffer.shape) {
      if (buffer.scope == Scope::kShared) {
        verify_size_expr(buffer, extent);
        continue;
      }
      const auto* constant = as<Constant>(extent);
      require(constant != nullptr && constant->as_int() > 0,
              "the shape of a stack or register buffer must be constants above 0");
    }
    define(&buffer, buffer.name);
  }

  void verify_contract(const Contract& contract) {
    verify_written(*contract.c.buffer);
    verify_use(*contract.a.buffer);
    verify_use(*contract.b.buffer);
    if (contract.ahead.buffer != nullptr) verify_use(*contract.ahead.buffer);
    require(contract.a.buffer != contract.c.buffer && contract.b.buffer != contract.c.buffer, "%",
            contract.c.buffer->name, " is both accumulator and operand");
    verify_exprs(operands(&contract));
  }

  const Kernel& kernel_;
  std::unordered_set<const void*> visible_;
  std::vector<const void*> scope_;  // what is visible, in the order of definition
  std::set<std::string> names_;     // all ever defined
  std::set<int64_t> codes_;
  Stmt stmt_ = nullptr;  // for messages
  bool is_in_vector_ = false;
};

}  // namespace

void verify(const Kernel& kernel) { Verifier(kernel).run(); }

}  // namespace mlcc::loop
