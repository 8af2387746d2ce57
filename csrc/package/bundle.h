// A program without a loader: an object file whose one function runs it, for programs that have no
// runtime, no files and no allocator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "package/writer.h"

namespace mlcc::package {

// An argument or result of the function, row-major unless strides say otherwise.
struct BundlePort {
  std::string name;
  DType dtype;
  std::vector<int64_t> sizes, strides;
  bool is_written;  // an argument that the program changes
};

// What the function returns where the program refuses its data.
struct BundleError {
  int64_t status;  // not 0
  std::string text;
};

struct Bundle {
  std::string object;
  std::string weights;  // what the caller points to; empty where the object holds them
  std::vector<BundlePort> inputs, outputs;
  std::vector<BundleError> errors;
  int64_t arena_bytes = 0;
  int64_t stack_bytes = 0;  // that a call takes at most
};

struct BundleOptions {
  std::string name;         // of the function: "<name>_run"
  bool has_weights = true;  // in the object
  // Text of LLVM IR to an object for the package's target.
  std::function<std::string(const std::string& llvm_text)> compile;
};

// The function is
//   int <name>_run(void* const* inputs, void* const* outputs, void* arena)
// with the pointers in the order of the ports, and behind the inputs one to the weights where the
// object has none. UnsupportedError where sizes vary.
Bundle make_bundle(const PackageFile& package, const BundleOptions& options);

}  // namespace mlcc::package
