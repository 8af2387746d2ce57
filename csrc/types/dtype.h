// Element types. The names are those of both IRs' texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mlcc {

enum class DType : uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };

constexpr int kNumDTypes = 10;

std::string_view dtype_name(DType dtype);  // "bool", "u8", "i64", "bf16", "f32", ...
std::optional<DType> parse_dtype(std::string_view name);
int64_t dtype_size(DType dtype);      // bytes; bool is one byte, 0 or 1
bool is_float(DType dtype);           // f16, bf16, f32, f64
bool is_signed_integer(DType dtype);  // i8 .. i64
bool is_integer(DType dtype);         // u8, i8 .. i64 (bool is not)

}  // namespace mlcc
