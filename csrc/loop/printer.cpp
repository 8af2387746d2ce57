#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "loop/scalar_value.h"
#include "loop/syntax.h"
#include "loop/text.h"
#include "support/error.h"
#include "support/lexer.h"

namespace mlcc::loop {
namespace {

template <typename T>
std::string shortest(T value) {
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

// The fewest digits that read back as the same f16 or bf16.
std::string shortest_narrow(DType dtype, double value) {
  std::array<char, 64> text{};
  for (int digits = 1; digits <= 9; ++digits) {
    const auto result = std::to_chars(text.data(), text.data() + text.size(), value,
                                      std::chars_format::general, digits);
    double read = 0;
    std::from_chars(text.data(), result.ptr, read);
    if (encode_float(dtype, read) == encode_float(dtype, value)) return shortest(read);
  }
  return shortest(value);
}

std::string float_text(DType dtype, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = dtype == DType::kF64   ? shortest(value)
                     : dtype == DType::kF32 ? shortest(static_cast<float>(value))
                                            : shortest_narrow(dtype, value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string literal_text(const Constant& constant) {
  return print_literal(constant.dtype, constant.bits);
}

// Whether the text of `e` tells its dtype without help from its surroundings.
bool tells_dtype(Expr e) {
  if (e->kind == ExprKind::kConstant) return e->dtype == DType::kBool;
  const auto* apply = as<Apply>(e);
  if (apply == nullptr) return true;
  const OpClass op_class = scalar_op_class(apply->op);
  if (op_class == OpClass::kCompare || op_class == OpClass::kTest) return true;
  const size_t first = apply->op == ScalarOp::kSelect ? 1 : 0;
  for (size_t i = first; i < apply->args.size(); ++i)
    if (tells_dtype(apply->args[i])) return true;
  return false;
}

using Expected = std::optional<DType>;

class Printer {
 public:
  std::string text;

  // `expected` is the dtype that a reader gives to literals here; nothing: literals name their
  // dtype.
  void print_expr(Expr e, Expected expected, int level = kLowestLevel) {
    switch (e->kind) {
    case ExprKind::kConstant: return print_constant(*as<Constant>(e), expected);
    case ExprKind::kVariable: return add("%", as<Variable>(e)->name);
    case ExprKind::kLoad: return print_load(*as<Load>(e));
    case ExprKind::kApply: return print_apply(*as<Apply>(e), expected, level);
    case ExprKind::kCast: {
      add(dtype_name(e->dtype), "(");
      print_expr(as<Cast>(e)->value, std::nullopt);
      return add(")");
    }
    }
    MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
  }

  void print_stmt(Stmt stmt) {
    switch (stmt->kind) {
    case StmtKind::kLet: return print_let(*as<Let>(stmt));
    case StmtKind::kStore: return print_store(*as<Store>(stmt));
    case StmtKind::kAtomic: return print_atomic(*as<Atomic>(stmt));
    case StmtKind::kPrefetch: return print_prefetch(*as<Prefetch>(stmt));
    case StmtKind::kFor: return print_for(*as<For>(stmt));
    case StmtKind::kReduce: return print_reduce(*as<Reduce>(stmt));
    case StmtKind::kIf: return print_if(*as<If>(stmt));
    case StmtKind::kCheck: return print_check(*as<Check>(stmt));
    case StmtKind::kAlloc: return print_alloc(*as<Alloc>(stmt));
    case StmtKind::kContract: return print_contract(*as<Contract>(stmt));
    }
    MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
  }

  void print_kernel(const Kernel& kernel) {
    add("kernel @", kernel.name, "(");
    Separator comma;
    for (const Variable* size : kernel.sizes) add(comma(), "%", size->name, ": i64");
    if (!kernel.sizes.empty() && !kernel.buffers.empty()) add("; ");
    comma = {};
    for (const Buffer* buffer : kernel.buffers) {
      add(comma(), "%", buffer->name, ": ", kAccessNames[static_cast<size_t>(buffer->access)], " ");
      print_buffer_type(*buffer);
    }
    add(")");
    print_errors(kernel);
    add(" {\n");
    for (size_t i = 0; i < kernel.phases.size(); ++i) {
      if (i > 0) add("  barrier\n");
      print_block(kernel.phases[i]);
    }
    add("}\n");
  }

 private:
  struct Separator {
    bool is_first = true;
    std::string_view operator()() {
      const bool was_first = std::exchange(is_first, false);
      return was_first ? "" : ", ";
    }
  };

  template <typename... Parts>
  void add(const Parts&... parts) {
    (text.append(parts), ...);
  }
  void begin_line() { text.append(2 * depth_, ' '); }

  void print_constant(const Constant& constant, Expected expected) {
    if (constant.dtype == DType::kBool || expected == constant.dtype)
      return add(literal_text(constant));
    add(dtype_name(constant.dtype), "(", literal_text(constant), ")");
  }

  void print_list(const std::vector<Expr>& list, Expected expected) {
    Separator comma;
    for (const Expr e : list) {
      add(comma());
      print_expr(e, expected);
    }
  }

  void print_ref(const Buffer& buffer, const std::vector<Expr>& indices) {
    add("%", buffer.name, "[");
    print_list(indices, DType::kI64);
    add("]");
  }

  void print_load(const Load& load) {
    if (load.mask == nullptr) return print_ref(*load.buffer, load.indices);
    add("load(");
    print_ref(*load.buffer, load.indices);
    add(", ");
    print_expr(load.mask, DType::kBool);
    if (load.otherwise != nullptr) {
      add(", ");
      print_expr(load.otherwise, load.dtype);
    }
    add(")");
  }

  void print_apply(const Apply& apply, Expected expected, int level) {
    const DType operands = apply.args.back()->dtype;
    const bool is_self_evident = [&] {
      for (size_t i = apply.op == ScalarOp::kSelect ? 1 : 0; i < apply.args.size(); ++i)
        if (tells_dtype(apply.args[i])) return true;
      return apply.dtype == operands && expected == operands;
    }();
    const Expected inner = is_self_evident ? Expected(operands) : std::nullopt;
    if (const Infix* infix = find_infix(apply.op)) return print_infix(apply, *infix, inner, level);
    add(scalar_op_name(apply.op), "(");
    Separator comma;
    for (size_t i = 0; i < apply.args.size(); ++i) {
      add(comma());
      const bool is_condition = apply.op == ScalarOp::kSelect && i == 0;
      print_expr(apply.args[i], is_condition ? Expected(DType::kBool) : inner);
    }
    add(")");
  }

  void print_infix(const Apply& apply, const Infix& infix, Expected expected, int level) {
    const bool needs_parentheses = infix.level < level;
    if (needs_parentheses) add("(");
    // Comparisons do not chain; everything else groups to the left.
    print_expr(apply.args[0], expected, infix.level + (infix.level == kCompareLevel ? 1 : 0));
    add(" ", infix.text, " ");
    print_expr(apply.args[1], expected, infix.level + 1);
    if (needs_parentheses) add(")");
  }

  void print_buffer_type(const Buffer& buffer) {
    add(dtype_name(buffer.dtype), "[");
    print_list(buffer.shape, DType::kI64);
    add("]");
    if (buffer.strides.empty()) return;
    add(" strides[");
    print_list(buffer.strides, DType::kI64);
    add("]");
  }

  void print_errors(const Kernel& kernel) {
    if (kernel.errors.empty()) return;
    add(" errors(");
    Separator comma;
    for (const ErrorText& error : kernel.errors)
      add(comma(), std::to_string(error.code), ": ", error.exception, " ", quote(error.text));
    add(")");
  }

  void print_block(const Block& block) {
    ++depth_;
    for (const Stmt stmt : block) {
      begin_line();
      print_stmt(stmt);
      add("\n");
    }
    --depth_;
  }

  void print_braced(const Block& block) {
    add("{\n");
    print_block(block);
    begin_line();
    add("}");
  }

  void print_let(const Let& let) {
    add("let %", let.variable->name, ": ", dtype_name(let.variable->dtype), " = ");
    print_expr(let.value, let.variable->dtype);
  }

  void print_update(const Buffer& buffer, const std::vector<Expr>& indices, Expr value, Expr mask) {
    print_ref(buffer, indices);
    add(" = ");
    print_expr(value, buffer.dtype);
    if (mask == nullptr) return;
    add(" if ");
    print_expr(mask, DType::kBool);
  }

  void print_store(const Store& store) {
    add("store ");
    print_update(*store.buffer, store.indices, store.value, store.mask);
    if (store.streams == nullptr) return;
    add(" stream");
    const auto* known = as<Constant>(store.streams);
    if (known != nullptr && known->as_int() != 0) return;
    add(" if ");
    print_expr(store.streams, DType::kBool);
  }

  void print_atomic(const Atomic& atomic) {
    add("atomic ", scalar_op_name(atomic.op), " ");
    print_update(*atomic.buffer, atomic.indices, atomic.value, atomic.mask);
  }

  void print_prefetch(const Prefetch& prefetch) {
    add("prefetch ");
    print_ref(*prefetch.buffer, prefetch.indices);
  }

  void print_range(const Variable& variable, Expr begin, Expr end, const LoopMode& mode) {
    add("%", variable.name, " in ");
    print_expr(begin, DType::kI64);
    add("..");
    print_expr(end, DType::kI64);
    add(" ");
    if (mode.kind != LoopKind::kSerial) add(kLoopKindNames[static_cast<size_t>(mode.kind)]);
    if (mode.width != 0) add("(", std::to_string(mode.width), ")");
    if (mode.kind != LoopKind::kSerial) add(" ");
    if (mode.group != 0) add("group(", std::to_string(mode.group), ") ");
    if (mode.grain != 1) add("grain(", std::to_string(mode.grain), ") ");
    if (mode.unroll != 1) add("unroll(", std::to_string(mode.unroll), ") ");
  }

  void print_for(const For& loop) {
    add("for ");
    print_range(*loop.variable, loop.begin, loop.end, loop.mode);
    print_braced(loop.body);
  }

  void print_yield(const std::vector<Expr>& values) {
    ++depth_;
    begin_line();
    add("yield ");
    Separator comma;
    for (const Expr value : values) {
      add(comma());
      print_expr(value, value->dtype);
    }
    add("\n");
    --depth_;
    begin_line();
    add("}");
  }

  void print_reduce(const Reduce& reduce) {
    add("reduce ");
    print_range(*reduce.variable, reduce.begin, reduce.end, reduce.mode);
    add("(");
    Separator comma;
    for (const Carried& carried : reduce.carried) {
      add(comma(), "%", carried.variable->name, ": ", dtype_name(carried.variable->dtype), " = ");
      print_expr(carried.init, carried.variable->dtype);
    }
    add(") {\n");
    print_block(reduce.body);
    print_yield(reduce.yields);
    if (reduce.combine) print_combine(*reduce.combine);
    add(" -> ");
    comma = {};
    for (const Carried& carried : reduce.carried) add(comma(), "%", carried.result->name);
  }

  void print_combine(const Combine& combine) {
    add(" combine (");
    Separator comma;
    for (const auto* side : {&combine.left, &combine.right})
      for (const Variable* variable : *side) add(comma(), "%", variable->name);
    add(") {\n");
    print_block(combine.body);
    print_yield(combine.values);
  }

  void print_if(const If& branch) {
    add("if ");
    print_expr(branch.condition, DType::kBool);
    add(" ");
    print_braced(branch.then_body);
    if (branch.else_body.empty()) return;
    add(" else ");
    print_braced(branch.else_body);
  }

  void print_check(const Check& check) {
    add("check ");
    print_expr(check.condition, DType::kBool);
    add(" else ", std::to_string(check.code));
    if (check.details.empty()) return;
    for (size_t i = 0; i < check.details.size(); ++i) {
      add(i == 0 ? " (" : ", ");
      print_expr(check.details[i], DType::kI64);
    }
    add(")");
  }

  void print_alloc(const Alloc& alloc) {
    add("alloc %", alloc.buffer->name, ": ", kScopeNames[static_cast<size_t>(alloc.buffer->scope)],
        " ");
    print_buffer_type(*alloc.buffer);
  }

  void print_list(const std::vector<Expr>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      add(i == 0 ? "(" : ", ");
      print_expr(list[i], DType::kI64);
    }
    add(")");
  }

  void print_tile(const TileRef& tile) {
    print_ref(*tile.buffer, tile.origin);
    add(" by ");
    print_list(tile.steps);
    if (!tile.rows.empty()) {
      add(" rows");
      print_list(tile.rows);
    }
    if (tile.low_columns > 0) add(" halves ", std::to_string(tile.low_columns));
  }

  void print_contract(const Contract& contract) {
    add("contract ");
    print_tile(contract.c);
    add(contract.adds ? " += " : " = ");
    print_tile(contract.a);
    add(" * ");
    print_tile(contract.b);
    add(" tile(", std::to_string(contract.rows), ", ", std::to_string(contract.columns), ")");
    if (contract.live_columns != nullptr) {
      add(" live");
      print_list({contract.live_columns});
    }
    add(" depth");
    print_list(contract.depths);
    if (contract.ahead.origin == nullptr) return;
    add(" ahead(");
    print_expr(contract.ahead.origin, DType::kI64);
    add(", ", std::to_string(contract.ahead.shift), ")");
    if (contract.ahead.buffer != nullptr) add(" of %", contract.ahead.buffer->name);
    if (contract.ahead.is_soon) add(" soon");
  }

  size_t depth_ = 0;
};

}  // namespace

std::string print(const Kernel& kernel) {
  Printer printer;
  printer.print_kernel(kernel);
  return std::move(printer.text);
}

std::string print(Expr e) {
  Printer printer;
  printer.print_expr(e, std::nullopt);
  return std::move(printer.text);
}

std::string print_literal(DType dtype, uint64_t bits) {
  if (dtype == DType::kBool) return bits != 0 ? "true" : "false";
  if (is_float(dtype)) return float_text(dtype, decode_float(dtype, bits));
  return std::to_string(decode_int(dtype, bits));
}

std::string print(Stmt stmt) {
  Printer printer;
  printer.print_stmt(stmt);
  return std::move(printer.text);
}

}  // namespace mlcc::loop
