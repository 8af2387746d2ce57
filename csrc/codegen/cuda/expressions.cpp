#include "codegen/cuda/expressions.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>

#include "loop/scalar_value.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {

using loop::Expr;
using loop::ExprKind;
using loop::OpClass;
using loop::ScalarOp;

namespace {

std::string call(std::string_view function, const std::vector<std::string>& args) {
  std::string text(function);
  text += '(';
  for (size_t i = 0; i < args.size(); ++i) text += (i ? ", " : "") + args[i];
  return text + ')';
}

std::string infix(std::string_view op, const std::vector<std::string>& args) {
  return "(" + args[0] + " " + std::string(op) + " " + args[1] + ")";
}

std::string hex(uint64_t bits, int digits) {
  std::array<char, 20> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), bits, 16);
  std::string number(text.data(), result.ptr);
  number.insert(0, static_cast<size_t>(std::max(0, digits - static_cast<int>(number.size()))), '0');
  return "0x" + number;
}

template <typename T>
std::string shortest(T value) {
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  std::string number(text.data(), result.ptr);
  if (number.find_first_of(".e") == std::string::npos) number += ".0";
  return value < 0 || std::signbit(value) ? "(" + number + ")" : number;
}

std::string float_literal(const loop::Constant& constant) {
  if (constant.dtype == DType::kF16) return "f16_bits(" + hex(constant.bits, 4) + ")";
  if (constant.dtype == DType::kBF16) return "bf16_bits(" + hex(constant.bits, 4) + ")";
  if (constant.dtype == DType::kF32) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(constant.bits));
    if (!std::isfinite(value)) return "__uint_as_float(" + hex(constant.bits, 8) + "u)";
    const std::string text = shortest(value);
    return text.back() == ')' ? text.substr(0, text.size() - 1) + "f)" : text + "f";
  }
  const auto value = std::bit_cast<double>(constant.bits);
  if (!std::isfinite(value)) return "bit_copy<f64>(" + hex(constant.bits, 16) + "ull)";
  return shortest(value);
}

// Functions of CUDA (and of C) that have one name for f32 and one for f64.
std::string_view math_function(ScalarOp op) {
  static constexpr std::pair<ScalarOp, std::string_view> kNames[] = {
      {ScalarOp::kAbs, "fabs"},    {ScalarOp::kRem, "fmod"},    {ScalarOp::kFma, "fma"},
      {ScalarOp::kSqrt, "sqrt"},   {ScalarOp::kFloor, "floor"}, {ScalarOp::kCeil, "ceil"},
      {ScalarOp::kTrunc, "trunc"}, {ScalarOp::kRound, "rint"}};
  for (const auto& [known, name] : kNames)
    if (known == op) return name;
  const bool is_function =
      loop::scalar_op_class(op) == OpClass::kFunction && op != ScalarOp::kSigmoid;
  return is_function ? loop::scalar_op_name(op) : std::string_view{};
}

// Functions of the prelude, overloaded for all types.
std::string_view prelude_function(ScalarOp op) {
  static constexpr std::pair<ScalarOp, std::string_view> kNames[] = {
      {ScalarOp::kMin, "min_of"},
      {ScalarOp::kMax, "max_of"},
      {ScalarOp::kFloorDiv, "floor_div"},
      {ScalarOp::kMod, "floor_mod"},
      {ScalarOp::kShl, "shift_left"},
      {ScalarOp::kShr, "shift_right"},
      {ScalarOp::kLshr, "shift_right_zero"},
      {ScalarOp::kIsNan, "is_nan"},
      {ScalarOp::kIsInf, "is_inf"},
      {ScalarOp::kSignBit, "sign_bit"},
      {ScalarOp::kSigmoid, "sigmoid"}};
  for (const auto& [known, name] : kNames)
    if (known == op) return name;
  return {};
}

std::string_view infix_op(ScalarOp op) {
  static constexpr std::pair<ScalarOp, std::string_view> kNames[] = {
      {ScalarOp::kAdd, "+"}, {ScalarOp::kSub, "-"},      {ScalarOp::kMul, "*"},
      {ScalarOp::kDiv, "/"}, {ScalarOp::kTruncDiv, "/"}, {ScalarOp::kRem, "%"},
      {ScalarOp::kEq, "=="}, {ScalarOp::kNe, "!="},      {ScalarOp::kLt, "<"},
      {ScalarOp::kLe, "<="}, {ScalarOp::kGt, ">"},       {ScalarOp::kGe, ">="}};
  for (const auto& [known, text] : kNames)
    if (known == op) return text;
  return {};
}

}  // namespace

std::string_view type_text(DType dtype) {
  return dtype_name(dtype);  // the prelude defines types of the same names
}

std::string literal_text(const loop::Constant& constant) {
  if (is_float(constant.dtype)) return float_literal(constant);
  if (constant.dtype == DType::kBool) return constant.bits ? "true" : "false";
  const int64_t value = constant.as_int();
  if (constant.dtype == DType::kI32 && value != INT32_MIN)
    return value < 0 ? "(" + std::to_string(value) + ")" : std::to_string(value);
  if (constant.dtype != DType::kI64)
    return "((" + std::string(type_text(constant.dtype)) + ")" + std::to_string(value) + "ll)";
  if (value == INT64_MIN) return "(-9223372036854775807ll - 1)";
  return value < 0 ? "(" + std::to_string(value) + "ll)" : std::to_string(value) + "ll";
}

std::string identifier(std::string_view name) {
  std::string text = "v_";
  for (const char c : name) text += c == '.' ? std::string("__") : std::string(1, c);
  return text;
}

std::string buffer_text(const loop::Buffer* buffer) {
  return "p" + identifier(buffer->name).substr(1);
}

void Expressions::define(const loop::Variable* variable, VariableKind kind) {
  define_as(variable, identifier(variable->name), kind);
}

void Expressions::define_as(const loop::Variable* variable, std::string text, VariableKind kind) {
  kinds_[variable] = kind;
  texts_[variable] = std::move(text);
}

void Expressions::define_size(const loop::Variable* variable, std::string parameter) {
  define(variable, VariableKind::kIndex);
  parameters_[variable] = std::move(parameter);
}

// Index arithmetic on index variables and constants alone: exact in the index type. Shifts are not,
// nor is what looks at bits.
bool Expressions::is_index(Expr e) const {
  static constexpr std::array kArithmetic = {ScalarOp::kAdd,      ScalarOp::kSub, ScalarOp::kMul,
                                             ScalarOp::kFloorDiv, ScalarOp::kMod, ScalarOp::kMin,
                                             ScalarOp::kMax};
  if (const auto* constant = loop::as<loop::Constant>(e))
    return constant->as_int() == static_cast<int32_t>(constant->as_int());
  if (const auto* known = loop::as<loop::Variable>(e)) return is_index_variable(known);
  const auto* apply = loop::as<loop::Apply>(e);
  return apply != nullptr &&
         std::find(kArithmetic.begin(), kArithmetic.end(), apply->op) != kArithmetic.end() &&
         std::all_of(apply->args.begin(), apply->args.end(),
                     [&](Expr arg) { return is_index(arg); });
}

bool Expressions::fits_index(Expr e) const {
  if (wide_) return true;
  const auto bound = offsets_.bound(e);
  if (!bound) return false;
  const bool is_known = bound->is_constant() ||
                        std::find(assumed_below_2_30_.begin(), assumed_below_2_30_.end(), *bound) !=
                            assumed_below_2_30_.end();
  if (!is_known) assumed_below_2_30_.push_back(*bound);
  return true;
}

bool Expressions::is_index_variable(const loop::Variable* variable) const {
  const auto kind = kinds_.find(variable);
  return kind != kinds_.end() &&
         (kind->second == VariableKind::kIndex || kind->second == VariableKind::kElementIndex);
}

std::string Expressions::variable(const loop::Variable* variable, bool as_index) const {
  const auto kind = kinds_.find(variable);
  MLCC_CHECK(kind != kinds_.end(), "cuda: %", variable->name, " is not defined");
  if (!as_index)
    if (const auto size = parameters_.find(variable); size != parameters_.end())
      return size->second;
  const std::string& text = texts_.at(variable);
  const bool is_index = is_index_variable(variable);
  std::string place = text;
  if (kind->second == VariableKind::kElements) {
    MLCC_CHECK(!element_.empty(), "cuda: %", variable->name, " differs between elements");
    place = text + "[" + element_ + "]";
  } else if (kind->second == VariableKind::kElementIndex && !element_.empty()) {
    place = "(" + text + " + " + element_ + ")";
  }
  if (is_index == as_index || wide_) return place;
  return as_index ? "(i32)" + place : "(i64)" + place;
}

std::string Expressions::value(Expr e) const {
  switch (e->kind) {
  case ExprKind::kConstant: return literal_text(*loop::as<loop::Constant>(e));
  case ExprKind::kVariable: return variable(loop::as<loop::Variable>(e), false);
  case ExprKind::kLoad: return load(*loop::as<loop::Load>(e));
  case ExprKind::kApply: return apply(*loop::as<loop::Apply>(e));
  case ExprKind::kCast:
    return "cast<" + std::string(type_text(e->dtype)) + ">(" +
           value(loop::as<loop::Cast>(e)->value) + ")";
  }
  MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
}

std::string Expressions::load(const loop::Load& load) const {
  const auto known = loads_.find(&load);
  std::string text;
  if (known != loads_.end())
    text = known->second;
  else if (values_.contains(load.buffer))
    text = buffer_text(load.buffer);
  else if (local_.contains(load.buffer))
    text = buffer_text(load.buffer) + "[" + linear(load.buffer, load.indices) + "]";
  else
    text = "load(" + address(load.buffer, load.indices) + ")";
  if (load.mask == nullptr) return text;
  const std::string otherwise = load.otherwise != nullptr
                                    ? value(load.otherwise)
                                    : "cast<" + std::string(type_text(load.dtype)) + ">(0)";
  return "(" + value(load.mask) + " ? " + text + " : " + otherwise + ")";
}

std::string Expressions::linear(const loop::Buffer* buffer,
                                const std::vector<Expr>& indices) const {
  std::string sum;
  for (size_t d = 0; d < indices.size(); ++d) {
    const std::string at = index(indices[d]);
    if (buffer->strides.empty()) {
      sum = sum.empty() ? at : "(" + sum + ") * " + index(buffer->shape[d]) + " + " + at;
    } else {
      sum += (sum.empty() ? "" : " + ") + at + " * " + index(buffer->strides[d]);
    }
  }
  return sum.empty() ? "0" : sum;
}

std::string Expressions::address(const loop::Buffer* buffer,
                                 const std::vector<Expr>& indices) const {
  return buffer_text(buffer) + " + (" + linear(buffer, indices) + ")";
}

// Ops of integers and bool.
std::string Expressions::integer_op(const loop::Apply& apply,
                                    const std::vector<std::string>& args) const {
  static constexpr std::pair<ScalarOp, std::string_view> kWrapping[] = {
      {ScalarOp::kAdd, "wrap_add"},
      {ScalarOp::kSub, "wrap_sub"},
      {ScalarOp::kMul, "wrap_mul"},
      {ScalarOp::kNeg, "wrap_neg"},
      {ScalarOp::kAbs, "abs_of"}};
  // Not && and ||: both operands are evaluated anyway, and branches take the compiler long.
  static constexpr std::pair<ScalarOp, std::string_view> kLogic[] = {
      {ScalarOp::kAnd, "&"}, {ScalarOp::kOr, "|"}, {ScalarOp::kXor, "^"}};
  const std::string type(type_text(apply.dtype));
  const auto converted = [&](const std::string& text) { return "((" + type + ")" + text + ")"; };
  const bool is_bool = apply.dtype == DType::kBool;
  for (const auto& [op, name] : kWrapping)
    if (op == apply.op) return call(std::string(name) + "<" + type + ">", args);
  for (const auto& [op, name] : kLogic)
    if (op == apply.op) return is_bool ? infix(name, args) : converted(infix(name, args));
  if (apply.op == ScalarOp::kNot) return is_bool ? "(!" + args[0] + ")" : converted("~" + args[0]);
  if (const auto function = prelude_function(apply.op); !function.empty())
    return call(std::string(function) + "<" + type + ">", args);
  const std::string_view op = infix_op(apply.op);
  MLCC_CHECK(!op.empty(), "cuda: ", loop::scalar_op_name(apply.op), " of ", type);
  return converted(infix(op, args));
}

namespace {

bool is_place(Expr e) {
  if (e->kind == ExprKind::kConstant || e->kind == ExprKind::kVariable) return true;
  const auto* apply = loop::as<loop::Apply>(e);
  if (apply == nullptr) return false;
  static constexpr std::array kOps = {ScalarOp::kAdd, ScalarOp::kSub,      ScalarOp::kMin,
                                      ScalarOp::kMax, ScalarOp::kFloorDiv, ScalarOp::kMod};
  return std::find(kOps.begin(), kOps.end(), apply->op) != kOps.end() &&
         std::all_of(apply->args.begin(), apply->args.end(), is_place);
}

}  // namespace

bool Expressions::compares_places(const loop::Apply& apply) {
  return loop::scalar_op_class(apply.op) == OpClass::kCompare &&
         apply.args[0]->dtype == DType::kI64 && is_place(apply.args[0]) && is_place(apply.args[1]);
}

std::string Expressions::apply(const loop::Apply& apply) const {
  std::vector<std::string> args;
  const bool as_indices = compares_places(apply) && is_index(apply.args[0]) &&
                          is_index(apply.args[1]) && fits_index(apply.args[0]) &&
                          fits_index(apply.args[1]);
  for (Expr arg : apply.args) args.push_back(as_indices ? index(arg) : value(arg));
  if (apply.op == ScalarOp::kSelect) return "(" + args[0] + " ? " + args[1] + " : " + args[2] + ")";
  const OpClass op_class = loop::scalar_op_class(apply.op);
  if (op_class == OpClass::kCompare) return infix(infix_op(apply.op), args);
  if (op_class == OpClass::kTest) return call(prelude_function(apply.op), args);
  if (!is_float(apply.dtype)) return integer_op(apply, args);
  if (apply.op == ScalarOp::kNeg) return "(-" + args[0] + ")";
  if (const auto function = math_function(apply.op); !function.empty())
    return call(std::string(function) + (apply.dtype == DType::kF32 ? "f" : ""), args);
  if (const auto function = prelude_function(apply.op); !function.empty())
    return call(function, args);
  return infix(infix_op(apply.op), args);
}

std::string Expressions::index(Expr e) const {
  if (const auto* constant = loop::as<loop::Constant>(e)) {
    const int64_t value = constant->as_int();
    if (wide_ || value != static_cast<int32_t>(value)) return literal_text(*constant);
    return value < 0 ? "(" + std::to_string(value) + ")" : std::to_string(value);
  }
  if (const auto* known = loop::as<loop::Variable>(e)) return variable(known, true);
  if (const auto* apply = loop::as<loop::Apply>(e)) return index_op(*apply);
  return (wide_ ? "" : "(i32)") + value(e);
}

std::string Expressions::index_op(const loop::Apply& apply) const {
  const auto args = [&] {
    std::vector<std::string> texts;
    for (Expr arg : apply.args) texts.push_back(index(arg));
    return texts;
  };
  const bool is_unsigned = apply.args.size() == 2 && offsets_.is_nonnegative(apply.args[0]) &&
                           offsets_.is_nonnegative(apply.args[1]);
  const std::string type = "<" + std::string(index_type()) + ">";
  if (apply.op == ScalarOp::kAdd || apply.op == ScalarOp::kSub || apply.op == ScalarOp::kMul)
    return infix(infix_op(apply.op), args());
  // What follows does not commute with cutting off upper bits.
  const bool is_exact = is_index(&apply) && fits_index(apply.args[0]) && fits_index(apply.args[1]);
  if (!wide_ && !is_exact) return "(i32)" + value(&apply);
  if (apply.op == ScalarOp::kFloorDiv)
    return call((is_unsigned ? "unsigned_div" : "floor_div") + type, args());
  if (apply.op == ScalarOp::kMod)
    return call((is_unsigned ? "unsigned_mod" : "floor_mod") + type, args());
  if (apply.op == ScalarOp::kMin || apply.op == ScalarOp::kMax)
    return call(std::string(prelude_function(apply.op)) + type, args());
  return (wide_ ? "" : "(i32)") + value(&apply);
}

}  // namespace mlcc::codegen::cuda
