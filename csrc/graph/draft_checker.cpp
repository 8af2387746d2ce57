#include "graph/draft_checker.h"

#include <algorithm>

#include "graph/attributes.h"

namespace mlcc::graph {

void DraftChecker::check_operands() const {
  for (size_t i = 0; i < num_operands(); ++i) {
    require(draft_.operands[i] != nullptr, "operand ", i, " is null");
    require(draft_.operands[i]->kind() == ValueKind::kTensor, "operand ", i,
            " is a size, expected a tensor");
    require(!is_foreign(type(i).dtype), "operand ", i, " is ", dtype_name(type(i).dtype),
            ", which only extern calls take");
  }
}

void DraftChecker::check_num_operands(size_t expected) const {
  require(num_operands() == expected, "found ", num_operands(), " operands, expected ", expected);
}

void DraftChecker::check_attrs() const {
  const auto specs = attr_specs(op());
  for (const auto& [name, value] : draft_.attrs) {
    const auto spec =
        std::find_if(specs.begin(), specs.end(), [&](const AttrSpec& s) { return s.name == name; });
    require(spec != specs.end(), "unknown attribute '", name, "'");
    require(fits(value, spec->kind, draft_.declared.dtype), "attribute '", name,
            "' is of the wrong type");
  }
  for (const AttrSpec& spec : specs)
    require(std::any_of(draft_.attrs.begin(), draft_.attrs.end(),
                        [&](const auto& attr) { return attr.first == spec.name; }),
            "attribute '", spec.name, "' is missing");
  require(std::is_sorted(draft_.attrs.begin(), draft_.attrs.end(),
                         [](const auto& a, const auto& b) { return a.first <= b.first; }),
          "attributes are not in the order of their names");
}

void DraftChecker::check_dim(int64_t dim, int64_t rank) const {
  require(dim >= 0 && dim < rank, "dim ", dim, " is out of range for ", rank, " dimensions");
}

void DraftChecker::check_dims(const std::vector<int64_t>& dims, int64_t rank) const {
  std::vector<bool> seen(static_cast<size_t>(rank));
  for (const int64_t dim : dims) {
    check_dim(dim, rank);
    require(!seen[static_cast<size_t>(dim)], "dim ", dim, " stands twice in dims");
    seen[static_cast<size_t>(dim)] = true;
  }
}

void DraftChecker::check_same_dtype(size_t first) const {
  for (size_t i = first + 1; i < num_operands(); ++i)
    require(type(i).dtype == type(first).dtype, "operand ", i, " is ", dtype_name(type(i).dtype),
            ", operand ", first, " is ", dtype_name(type(first).dtype));
}

std::string text_of(const std::vector<SymExpr>& shape) {
  std::string text = "[";
  for (const SymExpr& size : shape) text += (text.size() > 1 ? ", " : "") + size.str();
  return text + "]";
}

}  // namespace mlcc::graph
