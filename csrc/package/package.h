// A package that is open: its program, with code and weights where it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "package/contents.h"
#include "package/mapped_file.h"
#include "package/mlcc_runtime.h"
#include "package/ports.h"
#include "package/targets.h"
#include "runtime/executable.h"

namespace mlcc::package {

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
  const Ports& ports() const { return *ports_; }
  // StatusError where its file has shrunk since it was opened.
  void check_file() const { file_.check_is_whole(); }
  const char* weight(const Input& input) const { return weights_.get() + input.offset; }

 private:
  Package() = default;
  class Opener;

  MappedFile file_;  // none where the package lies in memory
  Memory code_, weights_;
  std::string_view manifest_;
  std::unique_ptr<const runtime::Executable> executable_;
  std::vector<Input> inputs_;
  std::unique_ptr<const Ports> ports_;
};

}  // namespace mlcc::package
