// A package that is open: its program, with code and weights where it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "package/contents.h"
#include "package/mapped_file.h"
#include "package/mlcc_runtime.h"
#include "package/targets.h"
#include "runtime/executable.h"

namespace mlcc::package {

// An input that the caller gives, or an output.
struct Port {
  std::string name;
  runtime::Slot slot = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes, strides;
};

// Immutable: any number of contexts use one at a time.
class Package {
 public:
  // `flags`: those of mlcc_package_open. StatusError where the file is no package of this machine.
  static std::shared_ptr<const Package> open(const std::string& path, uint32_t flags);
  // Of bytes that outlive the package, aligned to kWeightAlignment.
  static std::shared_ptr<const Package> open_memory(std::string_view bytes, uint32_t flags);

  const runtime::Executable& executable() const { return *executable_; }
  std::string_view manifest() const { return manifest_; }
  const std::vector<Input>& inputs() const { return inputs_; }  // as the plan's
  const std::vector<Port>& given() const { return given_; }     // of these, what the caller gives
  const std::vector<Port>& outputs() const { return outputs_; }
  const char* weight(const Input& input) const { return weights_.get() + input.offset; }
  int64_t arena_bytes() const { return arena_bytes_; }

 private:
  Package() = default;
  class Opener;

  Memory file_, code_, weights_;
  std::string_view manifest_;
  std::unique_ptr<const runtime::Executable> executable_;
  std::vector<Input> inputs_;
  std::vector<Port> given_, outputs_;
  int64_t arena_bytes_ = 0;
};

}  // namespace mlcc::package
