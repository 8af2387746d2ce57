#include "loop/rewrite_rule.h"

#include "loop/scalar_value.h"

namespace mlcc::loop {
namespace {

bool has_bits(Expr e, uint64_t bits) {
  const auto* constant = as<Constant>(e);
  return constant != nullptr && constant->bits == bits;
}

bool bind(Expr& name, Expr e) {
  if (name == nullptr) name = e;
  return name == e;
}

bool match_node(const Pattern& pattern, size_t& at, Expr e, Bindings& bindings) {
  const PatternNode& node = pattern.nodes[at++];
  switch (node.kind) {
  case PatternKind::kAnything: return bind(bindings[static_cast<size_t>(node.value)], e);
  case PatternKind::kConstant:
    return e->kind == ExprKind::kConstant && bind(bindings[static_cast<size_t>(node.value)], e);
  case PatternKind::kNumber:
    return has_bits(e, convert(DType::kI64, e->dtype, static_cast<uint64_t>(node.value)));
  case PatternKind::kMinusZero:
    return is_float(e->dtype) && has_bits(e, encode_float(e->dtype, -0.0));
  case PatternKind::kOp: break;
  }
  const auto* apply = as<Apply>(e);
  if (apply == nullptr || apply->op != node.op) return false;
  for (const Expr arg : apply->args)
    if (!match_node(pattern, at, arg, bindings)) return false;
  return true;
}

}  // namespace

unsigned dtype_set(DType dtype) {
  if (dtype == DType::kBool) return kBools;
  if (is_integer(dtype)) return is_signed_integer(dtype) ? kSigned : kUnsigned;
  return dtype == DType::kF16 || dtype == DType::kBF16 ? kNarrow : kFloats;
}

std::optional<Bindings> match(const RewriteRule& rule, Expr e) {
  const auto* apply = as<Apply>(e);
  if (apply == nullptr || apply->op != rule.pattern.nodes[0].op) return std::nullopt;
  if ((rule.dtypes & dtype_set(apply->args.back()->dtype)) == 0) return std::nullopt;
  Bindings bindings{};
  size_t at = 0;
  if (!match_node(rule.pattern, at, e, bindings)) return std::nullopt;
  if (rule.condition != nullptr && !rule.condition(bindings)) return std::nullopt;
  return bindings;
}

}  // namespace mlcc::loop
