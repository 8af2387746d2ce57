// A package that is open: its program, with code and weights where it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "package/mapped_file.h"
#include "package/mlcc_runtime.h"
#include "package/program.h"
#include "package/refit.h"
#include "package/weights.h"

namespace mlcc::package {

// Any number of contexts use one at a time; only its weights change.
class Package {
 public:
  // `flags`: those of mlcc_package_open. StatusError where the file is no package of this machine.
  static std::shared_ptr<Package> open(const std::string& path, uint32_t flags);
  // Of bytes that outlive the package, aligned to kWeightAlignment.
  static std::shared_ptr<Package> open_memory(std::string_view bytes, uint32_t flags);

  std::string_view manifest() const { return manifest_; }
  // StatusError where its file has shrunk since it was opened.
  void check_file() const { file_.check_is_whole(); }
  const Program& program() const { return *program_; }
  WeightsPtr weights() const;  // those of now

  // What exchanges weights. StatusError where the file has no recipes for that.
  std::shared_ptr<const Refit> refit() const;
  // As mlcc_package_refit: calls that begin later see all of them. StatusError: nothing is changed.
  void exchange_weights(std::span<const mlcc_weight> given);

 private:
  Package() = default;
  class Opener;

  MappedFile file_;  // none where the package lies in memory
  Memory code_;
  int64_t code_bytes_ = 0;
  std::string_view manifest_, recipes_;
  std::unique_ptr<const Program> program_;
  mutable std::mutex mutex_;
  WeightsPtr weights_;  // under it
  mutable std::mutex refit_mutex_;
  mutable std::shared_ptr<const Refit> refit_;  // under that; made when it is asked for
};

}  // namespace mlcc::package
