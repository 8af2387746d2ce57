// Writes a package: called where programs are compiled, not in the runtime.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "package/contents.h"
#include "package/recipes.h"
#include "package/targets.h"

namespace mlcc::package {

struct TargetCode {
  Target target;
  std::string code;
};

struct Weight {
  const void* data;
  int64_t bytes;
};

// Places weights one behind the other, aligned; those that lie at the same place of memory once.
class WeightLayout {
 public:
  int64_t place(const Weight& weight);  // the offset in the section
  const std::vector<std::pair<int64_t, Weight>>& weights() const { return weights_; }
  int64_t bytes() const { return bytes_; }
  std::string gathered() const;  // what they are, in this order

 private:
  std::vector<std::pair<int64_t, Weight>> weights_;  // by offset
  int64_t bytes_ = 0;
};

struct PackageFile {
  std::string manifest;
  Contents contents;
  TargetCode code;
  int64_t scratch_bytes = 0, stack_bytes = 0;  // of kernels: image.h
  WeightLayout weights;
  std::optional<Recipes> recipes;  // where weights can be exchanged
};

// Equal packages give equal bytes. Throws Error where the file cannot be written; then there is
// none.
void write_package(const std::string& path, const PackageFile& package);

}  // namespace mlcc::package
