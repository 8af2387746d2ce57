// Reads expressions of the loop IR's text: precedences, calls, loads, and which dtype literals take
// (text.h has the grammar).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "loop/ir.h"
#include "loop/names.h"
#include "loop/syntax.h"
#include "loop/type_rules.h"
#include "support/lexer.h"

namespace mlcc::loop {

// The dtype of that name, if kernels compute with it.
std::optional<DType> kernel_dtype(std::string_view name);

// Throws an Error at the token where there is an error.
void fail_on(const Token& token, const TypeError& error);

class ExprParser {
 public:
  using Expected = std::optional<DType>;

  // `fallback`: of literals where neither what stands beside them nor their place decides; none:
  // i64 or f32, as they are written.
  ExprParser(Arena& arena, Lexer& lexer, const Names& names, Expected fallback)
      : arena_(arena), lexer_(lexer), names_(names), fallback_(fallback) {}

  // Literals that nothing inside decides are `expected`.
  Expr parse(Expected expected);
  const Buffer* parse_buffer();
  std::vector<Expr> parse_indices();  // '[' exprs ']', all i64

 private:
  // An expression as read: either typed, or made of literals alone, whose dtype its surroundings
  // decide.
  struct Operand {
    Token token;
    Expr typed = nullptr;

    // Untyped: a literal, or an op over untyped operands.
    bool is_negative = false;
    std::optional<ScalarOp> op = std::nullopt;
    std::vector<Operand> args = {};
  };

  Operand parse_level(int level);
  const Infix* infix_ahead(int level) const;
  Operand parse_unary();
  Operand parse_primary();
  Operand parse_value();
  Expr parse_load();
  Operand parse_call();
  Expr parse_masked_load();
  // A cast, or a literal that names its dtype.
  Operand parse_cast(const Token& token, DType dtype);
  // op(args): literals take the dtype of a partner; without one they wait, unless the op hides
  // their dtype.
  Operand combine(const Token& token, ScalarOp op, std::vector<Operand> args);
  DType default_dtype(const Operand& operand) const;
  static bool has_float(const Operand& operand);
  // The operand with all its untyped operands (not a select's condition) being `dtype`.
  Expr give_type(const Operand& operand, DType dtype);
  Expr make_literal(const Operand& literal, DType dtype);
  // From the text to the dtype in one rounding (f16 and bf16: of the f64 that is nearest to the
  // text).
  Expr make_float_literal(const Operand& literal, DType dtype);

  Arena& arena_;
  Lexer& lexer_;
  const Names& names_;
  const Expected fallback_;
  int depth_ = 0;
};

}  // namespace mlcc::loop
