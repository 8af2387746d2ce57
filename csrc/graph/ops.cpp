#include <array>

#include "graph/graph.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// clang-format off
// In the order of the enumeration.
constexpr OpInfo kOps[] = {
#define POINTWISE(enumerator, text, arity, rule, domain, formula, aten) \
  {Op::enumerator, text, OpClass::kPointwise, arity, \
   DTypeRule::rule, DTypeDomain::domain, formula, aten, ""},
#define STRUCTURED(enumerator, text, op_class, meaning) \
  {Op::enumerator, text, OpClass::op_class, -1, \
   DTypeRule::kSame, DTypeDomain::kAny, "", "", meaning},
#include "graph/ops.def"
#undef POINTWISE
#undef STRUCTURED
};
// clang-format on

}  // namespace

const OpInfo& op_info(Op op) { return kOps[static_cast<size_t>(op)]; }

std::optional<Op> parse_op(std::string_view text) {
  for (const OpInfo& info : kOps)
    if (info.text == text) return info.op;
  return std::nullopt;
}

std::span<const OpInfo> all_ops() { return kOps; }

bool holds(DTypeDomain domain, DType dtype) {
  if (is_foreign(dtype)) return false;
  switch (domain) {
  case DTypeDomain::kAny: return true;
  case DTypeDomain::kNumber: return dtype != DType::kBool;
  case DTypeDomain::kFloat: return is_float(dtype);
  case DTypeDomain::kInteger: return is_integer(dtype);
  case DTypeDomain::kIntegral: return !is_float(dtype);
  case DTypeDomain::kBool: return dtype == DType::kBool;
  }
  MLCC_UNREACHABLE("dtype domain ", static_cast<int>(domain));
}

std::string_view dtype_rule_name(DTypeRule rule) {
  switch (rule) {
  case DTypeRule::kDefault: return "default";
  case DTypeRule::kIntToFloat: return "int_to_float";
  case DTypeRule::kSame: return "same";
  case DTypeRule::kCompare: return "compare";
  case DTypeRule::kLogical: return "logical";
  case DTypeRule::kTest: return "test";
  case DTypeRule::kSelect: return "select";
  }
  MLCC_UNREACHABLE("dtype rule ", static_cast<int>(rule));
}

std::string_view dtype_domain_name(DTypeDomain domain) {
  switch (domain) {
  case DTypeDomain::kAny: return "any";
  case DTypeDomain::kNumber: return "number";
  case DTypeDomain::kFloat: return "float";
  case DTypeDomain::kInteger: return "integer";
  case DTypeDomain::kIntegral: return "integral";
  case DTypeDomain::kBool: return "bool";
  }
  MLCC_UNREACHABLE("dtype domain ", static_cast<int>(domain));
}

}  // namespace mlcc::graph
