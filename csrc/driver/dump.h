// MLCC_DUMP: what a compilation saw, as numbered files in one folder per graph.
//
// With `dump_dir` the folders of graphs stand in it and nothing is ever deleted. Without, they
// stand in repro/dump-<time>-<process> in the cache folder, and the newest 20 such folders are
// kept.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/options.h"

namespace mlcc::driver {

class Dump {
 public:
  // `name` is the graph's. Error if `options.dump` names no stage or no pass.
  Dump(const Options& options, std::string name);
  bool wants(std::string_view stage) const;  // "graph", "loop", "llvm", ...
  // Writes "<number>_<label>.<stage>", if it is wanted; makes the folder at the first file.
  // Failures of the file system are logged, never raised.
  void write(std::string_view stage, std::string_view label, std::string_view text);
  // Where files were written; empty: there are none.
  const std::string& folder() const { return folder_; }

 private:
  struct Wish {
    std::string stage;
    std::string label;  // empty: all of the stage
  };
  bool make_folder();

  std::vector<Wish> wishes_;
  std::string base_;    // empty: there is no place to write to
  std::string folder_;  // empty: not made yet
  std::string name_;
  int next_ = 0;
  bool has_failed_ = false;
};

}  // namespace mlcc::driver
