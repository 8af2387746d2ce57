#include "types/dtype.h"

#include <array>

namespace mlcc {
namespace {

enum class Kind : uint8_t { kBool, kUnsigned, kSigned, kFloat, kForeign };

struct Row {
  std::string_view name;
  int64_t size;
  Kind kind;
};

constexpr std::array<Row, kNumDTypes> kRows = {
    {{"bool", 1, Kind::kBool},          {"u8", 1, Kind::kUnsigned},
     {"i8", 1, Kind::kSigned},          {"i16", 2, Kind::kSigned},
     {"i32", 4, Kind::kSigned},         {"i64", 8, Kind::kSigned},
     {"f16", 2, Kind::kFloat},          {"bf16", 2, Kind::kFloat},
     {"f32", 4, Kind::kFloat},          {"f64", 8, Kind::kFloat},
     {"u16", 2, Kind::kForeign},        {"u32", 4, Kind::kForeign},
     {"u64", 8, Kind::kForeign},        {"f8e4m3", 1, Kind::kForeign},
     {"f8e4m3fnuz", 1, Kind::kForeign}, {"f8e5m2", 1, Kind::kForeign},
     {"f8e5m2fnuz", 1, Kind::kForeign}, {"f8e8m0", 1, Kind::kForeign},
     {"c32", 4, Kind::kForeign},        {"c64", 8, Kind::kForeign},
     {"c128", 16, Kind::kForeign}}};

const Row& row_of(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

int64_t dtype_size(DType dtype) { return row_of(dtype).size; }

bool is_foreign(DType dtype) { return row_of(dtype).kind == Kind::kForeign; }

bool is_float(DType dtype) { return row_of(dtype).kind == Kind::kFloat; }

bool is_signed_integer(DType dtype) { return row_of(dtype).kind == Kind::kSigned; }

bool is_integer(DType dtype) {
  return is_signed_integer(dtype) || row_of(dtype).kind == Kind::kUnsigned;
}

bool is_byte(DType dtype) { return dtype == DType::kI8 || dtype == DType::kU8; }

}  // namespace mlcc
