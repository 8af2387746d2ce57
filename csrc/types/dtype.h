// Element types. The names are those of both IRs' texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mlcc {

// First those that kernels compute, then the foreign ones: values of the graph IR may have them,
// but only extern calls read and make those.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kU16,
  kU32,
  kU64,
  kF8E4M3,
  kF8E4M3FNUZ,
  kF8E5M2,
  kF8E5M2FNUZ,
  kF8E8M0,
  kC32,
  kC64,
  kC128,
};

constexpr int kNumDTypes = 21;

std::string_view dtype_name(DType dtype);  // "bool", "u8", "i64", "bf16", "f32", "c64", ...
std::optional<DType> parse_dtype(std::string_view name);
int64_t dtype_size(DType dtype);      // bytes; bool is one byte, 0 or 1
bool is_foreign(DType dtype);         // no kernel computes it; the predicates below are false
bool is_float(DType dtype);           // f16, bf16, f32, f64
bool is_signed_integer(DType dtype);  // i8 .. i64
bool is_integer(DType dtype);         // u8, i8 .. i64 (bool is not)
bool is_byte(DType dtype);            // u8, i8

}  // namespace mlcc
