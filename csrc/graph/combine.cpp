#include "graph/combine.h"

#include <array>
#include <utility>

namespace mlcc::graph {

std::optional<Combine> parse_combine(std::string_view text) {
  using Row = std::pair<std::string_view, Combine>;
  static constexpr std::array kCombines = {
      Row{"set", Combine::kSet},       Row{"add", Combine::kAdd},
      Row{"mul", Combine::kMul},       Row{"max", Combine::kMax},
      Row{"min", Combine::kMin},       Row{"and", Combine::kAnd},
      Row{"or", Combine::kOr},         Row{"logaddexp", Combine::kLogAddExp},
      Row{"argmax", Combine::kArgMax}, Row{"argmin", Combine::kArgMin},
  };
  for (const auto& [name, combine] : kCombines)
    if (name == text) return combine;
  return std::nullopt;
}

bool can_update(Combine combine, DType dtype) {
  switch (combine) {
  case Combine::kSet: return true;
  case Combine::kAdd:
  case Combine::kMul:
  case Combine::kMax:
  case Combine::kMin: return dtype != DType::kBool;
  case Combine::kAnd:
  case Combine::kOr: return dtype == DType::kBool;
  case Combine::kLogAddExp:
  case Combine::kArgMax:
  case Combine::kArgMin: return false;
  }
  return false;
}

bool can_scan(Combine combine, DType dtype) {
  switch (combine) {
  case Combine::kAdd:
  case Combine::kMul:
  case Combine::kMax:
  case Combine::kMin:
  case Combine::kArgMax:
  case Combine::kArgMin: return dtype != DType::kBool;
  case Combine::kLogAddExp: return is_float(dtype) && dtype != DType::kF64;
  case Combine::kSet:
  case Combine::kAnd:
  case Combine::kOr: return false;
  }
  return false;
}

}  // namespace mlcc::graph
