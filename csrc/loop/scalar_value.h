// Scalar values as bit patterns and what every op computes on them: the one definition that the
// interpreter and all constant folding share.
//
// A value of any dtype is held zero-extended in 64 bits. f16 and bf16 are storage formats:
// conversions to them from f64 and from integers go through f32, as eager's do. Functions
// (scalar_functions.def) are computed in f64 and rounded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "loop/ir.h"
#include "types/dtype.h"

namespace mlcc::loop {

uint64_t encode_float(DType dtype, double value);  // a float dtype; rounds to nearest even
double decode_float(DType dtype, uint64_t bits);   // exact
uint64_t encode_int(DType dtype, int64_t value);   // an integer dtype wraps; bool is != 0
int64_t decode_int(DType dtype, uint64_t bits);    // an integer dtype or bool

uint64_t convert(DType from, DType to, uint64_t bits);

bool is_function(ScalarOp op);  // an elementary function, of scalar_functions.def

// op(args), the args of `dtype` (a select's first is bool). Nothing where an integer division has
// no answer: by 0, or the lowest value by -1.
std::optional<uint64_t> evaluate(ScalarOp op, DType dtype, std::span<const uint64_t> args);

}  // namespace mlcc::loop
