// Arguments for kernels given as text: what mlcc-run and the tests feed them, and how results are
// compared.
//
// Directives are comment lines of the file; they speak of sizes and buffers by name:
//
//   // RUN-SIZE: %n = 37                     unless the caller says otherwise; 37 where nobody does
//   // RUN-DATA: %x = randn                  normal, mean 0; randn(0.1) with that deviation; the
//   default of floats // RUN-DATA: %i = randint(0, %n)         lowest and one past the highest,
//   expressions of sizes; the default of integers is (0, 8) // RUN-DATA: %p = sorted(0, %n + 1)
//    as randint, ascending: offsets of ragged rows // RUN-DATA: %m = bool                   0 or 1;
//    the default of bool
//   // RUN-DATA: %x = arange                 0, 1, 2, ...
//   // RUN-DATA: %x = [1, 2.5, -inf]         a value each, in row-major order; the last one is
//   repeated // RUN-TOLERANCE: 8 ulps                 allowed difference of an element; or
//   // RUN-TOLERANCE: 1e-6 of max            of an element, relative to the largest magnitude in
//   the buffer // EXPECT: %y = [1, 4, 9]                contents after the run, within the
//   tolerance // EXPECT-CODE: 3                        the check that fails; then no contents are
//   compared
//
// `out` and `scratch` buffers begin with a fixed byte pattern, `in` and `inout` with data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loop/ir.h"

namespace mlcc::loop {

struct Tolerance {
  double ulps = 0;
  double of_max = 0;
};

struct RunDirectives {
  struct Data {
    std::string kind;                 // "randn", ..., "list"
    std::vector<std::string> bounds;  // expressions of sizes, as text
    std::vector<double> values;       // of a list, or randn's deviation
  };
  std::map<std::string, int64_t, std::less<>> sizes;
  std::map<std::string, Data, std::less<>> data;
  std::map<std::string, std::vector<double>, std::less<>> expected;
  std::optional<Tolerance> tolerance;
  int64_t expected_code = 0;
};

// Error "line:col: ..." on a malformed directive.
RunDirectives parse_directives(std::string_view text);

// One buffer's memory.
struct BufferData {
  const Buffer* buffer;
  std::vector<int64_t> shape, strides;
  std::vector<std::byte> bytes;  // from the lowest to the highest element
  uint64_t
  element(int64_t number) const;  // the bits of an element, by its number in row-major order
  void set_element(int64_t number, uint64_t bits);
  int64_t count() const;
};

struct KernelArguments {
  std::vector<int64_t> sizes;
  std::vector<BufferData> buffers;

  std::vector<void*> pointers();
  const BufferData& find(std::string_view name) const;  // Error if there is none
};

// Sizes by the directives and over them by `sizes`; data by the directives and the seed, the same
// in every process.
KernelArguments make_arguments(const Kernel& kernel, const RunDirectives& directives,
                               const std::map<std::string, int64_t, std::less<>>& sizes,
                               uint64_t seed);

// How many iterations a phase has that is a range; nothing for any other phase.
std::optional<int64_t> phase_extent(const Kernel& kernel, size_t phase,
                                    const std::vector<int64_t>& sizes);

// The first difference between two runs of one kernel in what they wrote to `out` and `inout`
// buffers, in words.
std::optional<std::string> find_difference(const KernelArguments& found,
                                           const KernelArguments& expected,
                                           const Tolerance& tolerance);
// The same against the EXPECT lines.
std::optional<std::string> find_difference(const KernelArguments& found,
                                           const RunDirectives& directives,
                                           const Tolerance& tolerance);

// How many representable values lie between two values of a float dtype; 0 for two NaN or two
// zeros, infinity if one is NaN.
double ulps_between(DType dtype, uint64_t a, uint64_t b);

}  // namespace mlcc::loop
