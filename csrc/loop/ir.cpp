#include "loop/ir.h"

#include <array>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "loop/scalar_value.h"
#include "loop/type_rules.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

constexpr OpClass kClass_arith = OpClass::kArith;
constexpr OpClass kClass_integer = OpClass::kInteger;
constexpr OpClass kClass_float = OpClass::kFloat;
constexpr OpClass kClass_function = OpClass::kFunction;
constexpr OpClass kClass_compare = OpClass::kCompare;
constexpr OpClass kClass_logic = OpClass::kLogic;
constexpr OpClass kClass_test = OpClass::kTest;
constexpr OpClass kClass_select = OpClass::kSelect;

struct OpRow {
  std::string_view name;
  int arity;
  OpClass op_class;
};

constexpr OpRow kOps[] = {
#define SCALAR_OP(enumerator, text, arity, op_class, meaning) {text, arity, kClass_##op_class},
#include "loop/scalar_ops.def"
#undef SCALAR_OP
};

const OpRow& row_of(ScalarOp op) { return kOps[static_cast<size_t>(op)]; }

void require(const TypeError& error) { MLCC_CHECK(!error, *error); }

// Structural identity: children are interned already, so their pointers suffice.
class Digest {
 public:
  template <typename T>
  Digest& add(const T& value) {
    hash_ = (hash_ ^ std::hash<T>{}(value)) * 0x9E3779B97F4A7C15ULL;
    hash_ ^= hash_ >> 29;
    return *this;
  }
  Digest& add(const std::vector<Expr>& list) {
    for (const Expr e : list) add(e);
    return *this;
  }
  size_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x51ED270B0B6AE9E5ULL;
};

struct ExprHash {
  size_t operator()(Expr e) const {
    Digest digest;
    digest.add(e->kind).add(e->dtype);
    switch (e->kind) {
    case ExprKind::kConstant: return digest.add(as<Constant>(e)->bits).value();
    case ExprKind::kVariable: return digest.add(as<Variable>(e)->name).value();
    case ExprKind::kCast: return digest.add(as<Cast>(e)->value).value();
    case ExprKind::kApply: return digest.add(as<Apply>(e)->op).add(as<Apply>(e)->args).value();
    case ExprKind::kLoad: {
      const auto* load = as<Load>(e);
      return digest.add(load->buffer)
          .add(load->indices)
          .add(load->mask)
          .add(load->otherwise)
          .value();
    }
    }
    MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
  }
};

struct ExprEqual {
  bool operator()(Expr x, Expr y) const {
    if (x->kind != y->kind || x->dtype != y->dtype) return false;
    switch (x->kind) {
    case ExprKind::kConstant: return as<Constant>(x)->bits == as<Constant>(y)->bits;
    case ExprKind::kVariable: return as<Variable>(x)->name == as<Variable>(y)->name;
    case ExprKind::kCast: return as<Cast>(x)->value == as<Cast>(y)->value;
    case ExprKind::kApply:
      return as<Apply>(x)->op == as<Apply>(y)->op && as<Apply>(x)->args == as<Apply>(y)->args;
    case ExprKind::kLoad: {
      const auto* a = as<Load>(x);
      const auto* b = as<Load>(y);
      return a->buffer == b->buffer && a->indices == b->indices && a->mask == b->mask &&
             a->otherwise == b->otherwise;
    }
    }
    MLCC_UNREACHABLE("expression kind ", static_cast<int>(x->kind));
  }
};

}  // namespace

// One pool per node type, so that no node needs a virtual destructor.
struct Arena::Storage {
  std::deque<Constant> constants;
  std::deque<Variable> variables;
  std::deque<Load> loads;
  std::deque<Apply> applies;
  std::deque<Cast> casts;
  std::deque<Buffer> buffers;
  std::deque<Let> lets;
  std::deque<Store> stores;
  std::deque<Atomic> atomics;
  std::deque<Prefetch> prefetches;
  std::deque<For> fors;
  std::deque<Reduce> reduces;
  std::deque<If> ifs;
  std::deque<Check> checks;
  std::deque<Alloc> allocs;
  std::deque<Contract> contracts;

  std::unordered_set<Expr, ExprHash, ExprEqual> interned;
  std::set<std::string, std::less<>> names;
  std::map<std::string, int64_t, std::less<>> next_suffix;  // of fresh_name, by base
};

struct ArenaAccess {
  using Storage = Arena::Storage;
  static Storage& of(Arena& arena) { return *arena.storage_; }

  template <typename T>
  static const T* intern(Arena& arena, std::deque<T>& pool, T node) {
    auto& interned = of(arena).interned;
    if (const auto found = interned.find(&node); found != interned.end())
      return static_cast<const T*>(*found);
    const T* kept = &pool.emplace_back(std::move(node));
    interned.insert(kept);
    return kept;
  }
};

namespace {

ArenaAccess::Storage& storage_of(Arena& arena) { return ArenaAccess::of(arena); }

}  // namespace

Arena::Arena() : storage_(std::make_unique<Storage>()) {}
Arena::~Arena() = default;

const Buffer* Arena::make_buffer(Buffer buffer) {
  require(buffer_type_error(buffer));
  storage_->names.emplace(buffer.name);
  return &storage_->buffers.emplace_back(std::move(buffer));
}

std::string Arena::fresh_name(std::string_view base) {
  auto suffix = storage_->next_suffix.find(base);
  if (suffix == storage_->next_suffix.end())
    suffix = storage_->next_suffix.emplace(std::string(base), 0).first;
  while (true) {
    std::string name(base);
    if (suffix->second > 0) name += "." + std::to_string(suffix->second);
    ++suffix->second;
    if (storage_->names.insert(name).second) return name;
  }
}

// ---- Ops ----------------------------------------------------------------------------------------

std::string_view scalar_op_name(ScalarOp op) { return row_of(op).name; }
int scalar_op_arity(ScalarOp op) { return row_of(op).arity; }
OpClass scalar_op_class(ScalarOp op) { return row_of(op).op_class; }

std::optional<ScalarOp> parse_scalar_op(std::string_view name) {
  for (size_t i = 0; i < std::size(kOps); ++i)
    if (kOps[i].name == name) return static_cast<ScalarOp>(i);
  return std::nullopt;
}

// ---- Expressions --------------------------------------------------------------------------------

Expr Constant::make(Arena& arena, DType dtype, uint64_t bits) {
  require(constant_type_error(dtype, bits));
  if (is_float(dtype)) {
    // The text has one NaN, so the IR has one.
    const double value = decode_float(dtype, bits);
    if (value != value) bits = encode_float(dtype, std::numeric_limits<double>::quiet_NaN());
  }
  return ArenaAccess::intern(arena, storage_of(arena).constants, Constant{{kKind, dtype}, bits});
}

Expr Constant::make_int(Arena& arena, DType dtype, int64_t value) {
  return make(arena, dtype, convert(DType::kI64, dtype, static_cast<uint64_t>(value)));
}

Expr Constant::make_float(Arena& arena, DType dtype, double value) {
  return make(arena, dtype, encode_float(dtype, value));
}

int64_t Constant::as_int() const {
  MLCC_CHECK(!is_float(dtype), "constant of dtype ", dtype_name(dtype), " read as an integer");
  return decode_int(dtype, bits);
}

double Constant::as_double() const {
  return is_float(dtype) ? decode_float(dtype, bits) : static_cast<double>(decode_int(dtype, bits));
}

const Variable* Variable::make(Arena& arena, DType dtype, std::string_view name) {
  auto& storage = storage_of(arena);
  const Variable* variable =
      ArenaAccess::intern(arena, storage.variables, Variable{{kKind, dtype}, std::string(name)});
  storage.names.emplace(name);
  return variable;
}

Expr Load::make(Arena& arena, const Buffer* buffer, std::vector<Expr> indices, Expr mask,
                Expr otherwise) {
  require(load_type_error(*buffer, indices, mask, otherwise));
  return ArenaAccess::intern(
      arena, storage_of(arena).loads,
      Load{{kKind, buffer->dtype}, buffer, std::move(indices), mask, otherwise});
}

Expr Apply::make(Arena& arena, ScalarOp op, std::vector<Expr> args) {
  require(apply_type_error(op, args));
  const DType dtype = apply_result_type(op, args.back()->dtype);
  return ArenaAccess::intern(arena, storage_of(arena).applies,
                             Apply{{kKind, dtype}, op, std::move(args)});
}

Expr Cast::make(Arena& arena, DType dtype, Expr value) {
  if (value->dtype == dtype) return value;
  return ArenaAccess::intern(arena, storage_of(arena).casts, Cast{{kKind, dtype}, value});
}

// ---- Statements ---------------------------------------------------------------------------------

Stmt Let::make(Arena& arena, const Variable* variable, Expr value) {
  require(let_type_error(*variable, value));
  return &storage_of(arena).lets.emplace_back(Let{{kKind}, variable, value});
}

Stmt Store::make(Arena& arena, const Buffer* buffer, std::vector<Expr> indices, Expr value,
                 Expr mask, Expr streams) {
  require(store_type_error(*buffer, indices, value, mask));
  require(streams_type_error(*buffer, streams));
  return &storage_of(arena).stores.emplace_back(
      Store{{kKind}, buffer, std::move(indices), value, mask, streams});
}

Stmt Atomic::make(Arena& arena, ScalarOp op, const Buffer* buffer, std::vector<Expr> indices,
                  Expr value, Expr mask) {
  require(atomic_type_error(op, *buffer, indices, value, mask));
  return &storage_of(arena).atomics.emplace_back(
      Atomic{{kKind}, op, buffer, std::move(indices), value, mask});
}

Stmt Prefetch::make(Arena& arena, const Buffer* buffer, std::vector<Expr> indices) {
  require(index_type_error(*buffer, indices));
  return &storage_of(arena).prefetches.emplace_back(Prefetch{{kKind}, buffer, std::move(indices)});
}

Stmt For::make(Arena& arena, const Variable* variable, Expr begin, Expr end, LoopMode mode,
               Block body) {
  require(loop_type_error(*variable, begin, end, mode));
  return &storage_of(arena).fors.emplace_back(
      For{{kKind}, variable, begin, end, mode, std::move(body)});
}

Stmt Reduce::make(Arena& arena, const Variable* variable, Expr begin, Expr end, LoopMode mode,
                  std::vector<Carried> carried, Block body, std::vector<Expr> yields,
                  std::optional<Combine> combine) {
  require(loop_type_error(*variable, begin, end, mode));
  require(reduce_type_error(carried, yields, combine));
  return &storage_of(arena).reduces.emplace_back(Reduce{{kKind},
                                                        variable,
                                                        begin,
                                                        end,
                                                        mode,
                                                        std::move(carried),
                                                        std::move(body),
                                                        std::move(yields),
                                                        std::move(combine)});
}

Stmt If::make(Arena& arena, Expr condition, Block then_body, Block else_body) {
  require(condition_type_error(condition));
  return &storage_of(arena).ifs.emplace_back(
      If{{kKind}, condition, std::move(then_body), std::move(else_body)});
}

Stmt Check::make(Arena& arena, Expr condition, int64_t code, std::vector<Expr> details) {
  require(condition_type_error(condition));
  MLCC_CHECK(code > 0, "check: code is ", code, ", expected above 0");
  require(details_type_error(details));
  return &storage_of(arena).checks.emplace_back(
      Check{{kKind}, condition, code, std::move(details)});
}

Stmt Alloc::make(Arena& arena, const Buffer* buffer) {
  MLCC_CHECK(buffer->scope != Scope::kGlobal, "alloc %", buffer->name,
             ": a global buffer is a parameter");
  return &storage_of(arena).allocs.emplace_back(Alloc{{kKind}, buffer});
}

Stmt Contract::make(Arena& arena, TileRef c, TileRef a, TileRef b, int64_t rows, int64_t columns,
                    Expr live_columns, std::vector<Expr> depths, bool adds, LinesAhead ahead) {
  require(contract_type_error(c, a, b, rows, columns, live_columns, depths, ahead));
  return &storage_of(arena).contracts.emplace_back(Contract{{kKind},
                                                            std::move(c),
                                                            std::move(a),
                                                            std::move(b),
                                                            rows,
                                                            columns,
                                                            live_columns,
                                                            std::move(depths),
                                                            adds,
                                                            ahead});
}

const For* parallel_loop(const Block& phase) {
  const auto* range = phase.empty() ? nullptr : as<For>(phase.back());
  if (range == nullptr || range->mode.kind != LoopKind::kParallel) return nullptr;
  for (size_t i = 0; i + 1 < phase.size(); ++i)
    if (phase[i]->kind != StmtKind::kLet) return nullptr;
  return range;
}

// ---- Shorthands ---------------------------------------------------------------------------------

namespace {

bool is_int_constant(Expr e, int64_t value) {
  const auto* constant = as<Constant>(e);
  return constant != nullptr && !is_float(e->dtype) && constant->as_int() == value;
}

Expr fold_constants(Arena& arena, ScalarOp op, std::span<const Expr> args) {
  std::array<uint64_t, 3> bits{};
  const DType dtype = args.back()->dtype;
  if (is_float(dtype)) return nullptr;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto* constant = as<Constant>(args[i]);
    if (constant == nullptr) return nullptr;
    bits[i] = constant->bits;
  }
  const auto value = evaluate(op, dtype, std::span(bits).first(args.size()));
  return value ? Constant::make(arena, apply_result_type(op, dtype), *value) : nullptr;
}

Expr fold_identity(ScalarOp op, Expr a, Expr b) {
  if (op == ScalarOp::kAdd) return is_int_constant(a, 0) ? b : is_int_constant(b, 0) ? a : nullptr;
  if (op == ScalarOp::kSub) return is_int_constant(b, 0) ? a : nullptr;
  if (op != ScalarOp::kMul) return nullptr;
  if (is_int_constant(a, 1) || is_int_constant(b, 0)) return b;
  return is_int_constant(b, 1) || is_int_constant(a, 0) ? a : nullptr;
}

}  // namespace

Expr int_constant(Arena& arena, int64_t value) {
  return Constant::make_int(arena, DType::kI64, value);
}

Expr apply(Arena& arena, ScalarOp op, std::vector<Expr> args) {
  require(apply_type_error(op, args));
  if (const Expr folded = fold_constants(arena, op, args)) return folded;
  if (args.size() == 2)
    if (const Expr folded = fold_identity(op, args[0], args[1])) return folded;
  return Apply::make(arena, op, std::move(args));
}

Expr from_symbolic(Arena& arena, const SymExpr& e) {
  const auto binary = [&](ScalarOp op) {
    return [&arena, op](Expr a, Expr b) { return apply(arena, op, {a, b}); };
  };
  const SymExpr::Visitor<Expr> visitor{
      .constant = [&](int64_t value) { return int_constant(arena, value); },
      .symbol = [&](std::string_view name) -> Expr {
        return Variable::make(arena, DType::kI64, name);
      },
      .add = binary(ScalarOp::kAdd),
      .multiply = binary(ScalarOp::kMul),
      .floordiv = binary(ScalarOp::kFloorDiv),
      .mod = binary(ScalarOp::kMod),
      .min = binary(ScalarOp::kMin),
      .max = binary(ScalarOp::kMax)};
  return e.visit<Expr>(visitor);
}

namespace {

std::optional<SymExpr> apply_to_symbolic(const Apply& apply) {
  std::vector<SymExpr> args;
  for (const Expr arg : apply.args) {
    auto converted = to_symbolic(arg);
    if (!converted) return std::nullopt;
    args.push_back(*std::move(converted));
  }
  if (apply.op == ScalarOp::kAdd) return args[0] + args[1];
  if (apply.op == ScalarOp::kSub) return args[0] - args[1];
  if (apply.op == ScalarOp::kMul) return args[0] * args[1];
  if (apply.op == ScalarOp::kNeg) return SymExpr(0) - args[0];
  if (apply.op == ScalarOp::kFloorDiv) return SymExpr::floordiv(args[0], args[1]);
  if (apply.op == ScalarOp::kMod) return SymExpr::mod(args[0], args[1]);
  if (apply.op == ScalarOp::kMin) return SymExpr::min(args[0], args[1]);
  if (apply.op == ScalarOp::kMax) return SymExpr::max(args[0], args[1]);
  return std::nullopt;
}

}  // namespace

std::optional<SymExpr> to_symbolic(Expr e) {
  if (e->dtype != DType::kI64) return std::nullopt;
  if (const auto* constant = as<Constant>(e)) return SymExpr(constant->as_int());
  if (const auto* variable = as<Variable>(e)) return SymExpr::symbol(variable->name);
  if (const auto* apply = as<Apply>(e)) return apply_to_symbolic(*apply);
  return std::nullopt;
}

}  // namespace mlcc::loop
