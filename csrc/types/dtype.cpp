#include "types/dtype.h"

#include <array>

namespace mlcc {
namespace {

struct Row {
  std::string_view name;
  int64_t size;
};

constexpr std::array<Row, kNumDTypes> kRows = {{{"bool", 1},
                                                {"u8", 1},
                                                {"i8", 1},
                                                {"i16", 2},
                                                {"i32", 4},
                                                {"i64", 8},
                                                {"f16", 2},
                                                {"bf16", 2},
                                                {"f32", 4},
                                                {"f64", 8}}};

}  // namespace

std::string_view dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

int64_t dtype_size(DType dtype) { return kRows[static_cast<size_t>(dtype)].size; }

bool is_float(DType dtype) { return dtype >= DType::kF16; }

bool is_signed_integer(DType dtype) { return dtype >= DType::kI8 && dtype <= DType::kI64; }

bool is_integer(DType dtype) { return dtype >= DType::kU8 && dtype <= DType::kI64; }

}  // namespace mlcc
