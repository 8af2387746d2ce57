#include "loop/expr_parser.h"

#include <charconv>
#include <string>

#include "loop/scalar_value.h"

namespace mlcc::loop {
namespace {

// Deeper nesting than this is a mistake (or an attack on the stack).
constexpr int kMaxDepth = 256;

}  // namespace

std::optional<DType> kernel_dtype(std::string_view name) {
  const std::optional<DType> dtype = parse_dtype(name);
  return dtype && !is_foreign(*dtype) ? dtype : std::nullopt;
}

void fail_on(const Token& token, const TypeError& error) {
  if (error) Lexer::fail_at(token, *error);
}

Expr ExprParser::parse(Expected expected) {
  Operand operand = parse_level(kLowestLevel);
  return operand.typed != nullptr
             ? operand.typed
             : give_type(operand, expected ? *expected : default_dtype(operand));
}

const Buffer* ExprParser::parse_buffer() {
  const Token token = lexer_.peek();
  const std::string name = lexer_.expect_value("a buffer (%name)");
  const Names::Entry* entry = names_.find(name);
  if (entry == nullptr) Lexer::fail_at(token, "%", name, " is not defined");
  if (entry->buffer == nullptr) Lexer::fail_at(token, "%", name, " is not a buffer");
  return entry->buffer;
}

std::vector<Expr> ExprParser::parse_indices() {
  std::vector<Expr> indices;
  lexer_.expect("[");
  while (!lexer_.is("]")) {
    if (!indices.empty()) lexer_.expect(",");
    indices.push_back(parse(DType::kI64));
  }
  lexer_.expect("]");
  return indices;
}

ExprParser::Operand ExprParser::parse_level(int level) {
  if (level > kTightestLevel) return parse_unary();
  Operand left = parse_level(level + 1);
  while (const Infix* infix = infix_ahead(level)) {
    const Token token = lexer_.next();
    std::vector<Operand> args;
    args.push_back(std::move(left));
    args.push_back(parse_level(level + 1));
    left = combine(token, infix->op, std::move(args));
    if (level == kCompareLevel) break;
  }
  return left;
}

const Infix* ExprParser::infix_ahead(int level) const {
  for (const Infix& infix : kInfix)
    if (infix.level == level && lexer_.is(infix.text)) return &infix;
  return nullptr;
}

ExprParser::Operand ExprParser::parse_unary() {
  if (++depth_ > kMaxDepth) lexer_.fail("expression is nested too deeply");
  Operand operand;
  if (lexer_.is("-")) {
    const Token token = lexer_.next();
    operand = parse_unary();
    const bool is_literal = operand.typed == nullptr && !operand.op && !operand.is_negative;
    if (is_literal) {
      operand.is_negative = true;
    } else {
      std::vector<Operand> args;
      args.push_back(std::move(operand));
      operand = combine(token, ScalarOp::kNeg, std::move(args));
    }
  } else {
    operand = parse_primary();
  }
  --depth_;
  return operand;
}

ExprParser::Operand ExprParser::parse_primary() {
  const Token token = lexer_.peek();
  if (lexer_.accept("(")) {
    Operand operand = parse_level(kLowestLevel);
    lexer_.expect(")");
    return operand;
  }
  if (lexer_.is(TokenKind::kInteger) || lexer_.is(TokenKind::kFloat))
    return {.token = lexer_.next()};
  if (lexer_.is(TokenKind::kValue)) return parse_value();
  if (lexer_.is(TokenKind::kIdentifier)) return parse_call();
  lexer_.fail("expected an expression, found ", Lexer::describe(token));
}

ExprParser::Operand ExprParser::parse_value() {
  const Token token = lexer_.peek();
  const Names::Entry* entry = names_.find(token.text);
  if (entry == nullptr) Lexer::fail_at(token, "%", token.text, " is not defined");
  if (entry->buffer != nullptr) return {.token = token, .typed = parse_load()};
  lexer_.next();
  return {.token = token, .typed = entry->variable};
}

Expr ExprParser::parse_load() {
  const Token token = lexer_.peek();
  const Buffer* buffer = parse_buffer();
  std::vector<Expr> indices = parse_indices();
  fail_on(token, load_type_error(*buffer, indices, nullptr, nullptr));
  return Load::make(arena_, buffer, std::move(indices));
}

ExprParser::Operand ExprParser::parse_call() {
  const Token token = lexer_.next();
  if (token.text == "true" || token.text == "false")
    return {.token = token,
            .typed = Constant::make(arena_, DType::kBool, token.text == "true" ? 1 : 0)};
  if (token.text == "load") return {.token = token, .typed = parse_masked_load()};
  if (const auto dtype = kernel_dtype(token.text)) return parse_cast(token, *dtype);
  const auto op = parse_scalar_op(token.text);
  if (!op) Lexer::fail_at(token, "unknown op '", token.text, "'");
  std::vector<Operand> args;
  lexer_.expect("(");
  while (!lexer_.is(")")) {
    if (!args.empty()) lexer_.expect(",");
    args.push_back(parse_level(kLowestLevel));
  }
  lexer_.expect(")");
  const auto arity = static_cast<size_t>(scalar_op_arity(*op));
  if (args.size() != arity)
    Lexer::fail_at(token, token.text, ": ", args.size(), " operands, expected ", arity);
  return combine(token, *op, std::move(args));
}

Expr ExprParser::parse_masked_load() {
  lexer_.expect("(");
  const Token token = lexer_.peek();
  const Buffer* buffer = parse_buffer();
  std::vector<Expr> indices = parse_indices();
  lexer_.expect(",");
  const Expr mask = parse(DType::kBool);
  const Expr otherwise = lexer_.accept(",") ? parse(buffer->dtype) : nullptr;
  lexer_.expect(")");
  fail_on(token, load_type_error(*buffer, indices, mask, otherwise));
  return Load::make(arena_, buffer, std::move(indices), mask, otherwise);
}

ExprParser::Operand ExprParser::parse_cast(const Token& token, DType dtype) {
  lexer_.expect("(");
  Operand operand = parse_level(kLowestLevel);
  lexer_.expect(")");
  if (operand.typed != nullptr)
    return {.token = token, .typed = Cast::make(arena_, dtype, operand.typed)};
  if (!operand.op) return {.token = token, .typed = give_type(operand, dtype)};
  const Expr value = give_type(operand, default_dtype(operand));
  return {.token = token, .typed = Cast::make(arena_, dtype, value)};
}

ExprParser::Operand ExprParser::combine(const Token& token, ScalarOp op,
                                        std::vector<Operand> args) {
  const size_t first = op == ScalarOp::kSelect ? 1 : 0;
  Expected dtype;
  for (size_t i = first; i < args.size() && !dtype; ++i)
    if (args[i].typed != nullptr) dtype = args[i].typed->dtype;
  if (first == 1 && args[0].typed == nullptr) args[0].typed = give_type(args[0], DType::kBool);
  Operand operand{.token = token, .op = op, .args = std::move(args)};
  const OpClass op_class = scalar_op_class(op);
  if (!dtype && (op_class == OpClass::kCompare || op_class == OpClass::kTest))
    dtype = default_dtype(operand);
  if (dtype) operand.typed = give_type(operand, *dtype);
  return operand;
}

DType ExprParser::default_dtype(const Operand& operand) const {
  if (fallback_) return *fallback_;
  return has_float(operand) ? DType::kF32 : DType::kI64;
}

bool ExprParser::has_float(const Operand& operand) {
  if (!operand.op) return operand.token.kind == TokenKind::kFloat;
  const OpClass op_class = scalar_op_class(*operand.op);
  if (op_class == OpClass::kFloat || op_class == OpClass::kTest) return true;
  for (const Operand& arg : operand.args)
    if (arg.typed == nullptr && has_float(arg)) return true;
  return false;
}

Expr ExprParser::give_type(const Operand& operand, DType dtype) {
  if (operand.typed != nullptr) return operand.typed;
  if (!operand.op) return make_literal(operand, dtype);
  std::vector<Expr> args;
  for (const Operand& arg : operand.args) args.push_back(give_type(arg, dtype));
  fail_on(operand.token, apply_type_error(*operand.op, args));
  return Apply::make(arena_, *operand.op, std::move(args));
}

Expr ExprParser::make_literal(const Operand& literal, DType dtype) {
  const Token& token = literal.token;
  if (is_float(dtype)) return make_float_literal(literal, dtype);
  const std::string shown = (literal.is_negative ? "-" : "") + token.text;
  if (token.kind != TokenKind::kInteger || dtype == DType::kBool)
    Lexer::fail_at(token, "literal ", shown, " where ", dtype_name(dtype), " is expected");
  const auto value = static_cast<int64_t>(literal.is_negative ? 0 - token.integer : token.integer);
  const bool fits_64 = literal.is_negative ? token.integer <= uint64_t{1} << 63 : value >= 0;
  if (!fits_64 || decode_int(dtype, encode_int(dtype, value)) != value)
    Lexer::fail_at(token, "literal ", shown, " does not fit into ", dtype_name(dtype));
  return Constant::make_int(arena_, dtype, value);
}

Expr ExprParser::make_float_literal(const Operand& literal, DType dtype) {
  const Token& token = literal.token;
  double value = token.floating;
  const bool is_decimal = token.text.find_first_of("xnX") == std::string::npos;
  if (dtype == DType::kF32 && is_decimal) {
    float narrow = 0;
    const char* end = token.text.data() + token.text.size();
    const auto result = std::from_chars(token.text.data(), end, narrow);
    if (result.ec != std::errc{})
      Lexer::fail_at(token, "literal ", token.text, " is out of range for f32");
    value = narrow;
  }
  return Constant::make_float(arena_, dtype, literal.is_negative ? -value : value);
}

}  // namespace mlcc::loop
