// How an update (scatter, index_put) or a scan joins two elements: the attribute `combine`.
//
//   text           updates                      scans
//   set            the new element              -
//   add, mul       any number; a scan carries f32 in f64, f16 and bf16 in f32, and rounds each
//                  result; an update rounds each time
//   max, min       any number; NaN if either is
//   and, or        bool                         -
//   logaddexp      -                            log of the sum of exponentials, f16, bf16 and f32;
//                                               the sum is carried in f64, its scale in f32
//   argmax, argmin -                            the place of the extreme so far, the last of equal
//                                               ones; NaN counts as extreme; i64
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "types/dtype.h"

namespace mlcc::graph {

enum class Combine : uint8_t {
  kSet,
  kAdd,
  kMul,
  kMax,
  kMin,
  kAnd,
  kOr,
  kLogAddExp,
  kArgMax,
  kArgMin
};

std::optional<Combine> parse_combine(std::string_view text);
bool can_update(Combine combine, DType dtype);
bool can_scan(Combine combine, DType dtype);

}  // namespace mlcc::graph
