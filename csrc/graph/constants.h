// Values that are known while compiling: the same number everywhere.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace mlcc::graph {

struct Constant {
  DType dtype;
  double real;      // of float dtypes, exactly representable in the dtype
  int64_t integer;  // of the others
};

// The number, if the value is `full`, or promised to be nothing else, also seen through index maps
// with one operand.
std::optional<Constant> constant_of(const Value& value);

// Whether it is exactly this number; +0.0 and -0.0 differ, see is_negative_zero.
bool equals(const Constant& constant, int64_t number);
bool is_negative_zero(const Constant& constant);
bool is_lowest(const Value& value);  // whether all of it is -inf

// The number after a cast, rounded like one at run time. Nothing for a float outside an integer's
// range.
std::optional<Constant> convert(const Constant& constant, DType dtype);

// `full` of the constant at the graph's insertion point.
Value* build_full(Graph& graph, const std::vector<SymExpr>& shape, const Constant& constant,
                  Device device);

}  // namespace mlcc::graph
