// MLCC_DUMP: what a compilation saw, as numbered files in one folder per graph.
#pragma once

#include <string>
#include <string_view>

#include "driver/options.h"

namespace mlcc::driver {

class Dump {
 public:
  // Makes the folder at the first file; `name` is the graph's.
  Dump(const Options& options, std::string_view name);
  bool wants(std::string_view stage) const;  // "graph", "loop", "llvm", "asm"
  // Writes "<number>_<label>.<stage>"; failures of the file system are logged, never raised.
  void write(std::string_view stage, std::string_view label, std::string_view text);

 private:
  std::string stages_;
  std::string folder_;
  std::string name_;
  int next_ = 0;
};

}  // namespace mlcc::driver
