// Which attributes each op has. In the text they stand in braces: `{dim = 1, start = s0, step =
// 1}`.
#pragma once

#include <span>
#include <string_view>

#include "graph/graph.h"

namespace mlcc::graph {

enum class AttrKind : uint8_t {
  kInt,   // int64_t
  kInts,  // vector<int64_t>
  kBool,
  kString,
  kSymbolic,   // SymExpr
  kSymbolics,  // vector<SymExpr>
  kIndex,      // the same, also over the axes of the node: d0, d1, ..
  kNumber,     // double for float dtypes of the result, else int64_t
};

struct AttrSpec {
  std::string_view name;
  AttrKind kind;
};

// All of them are required; sorted by name.
std::span<const AttrSpec> attr_specs(Op op);

// Whether `attr` is of the kind; a number is checked against `dtype`, the result's.
bool fits(const Attr& attr, AttrKind kind, DType dtype);

}  // namespace mlcc::graph
