// The kept values of an executable (runtime::KeptInput) as tensors: found in the process's store,
// or computed and put there.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "python/run/ivalues.h"
#include "runtime/executable.h"

namespace mlcc::python {

class TensorProgram;

// Immutable but for what it remembers of the last call; calls may overlap.
class KeptTensors {
 public:
  explicit KeptTensors(const runtime::ExecutablePlan& plan);
  ~KeptTensors();
  KeptTensors(const KeptTensors&) = delete;
  KeptTensors& operator=(const KeptTensors&) = delete;

  // Puts the values into their slots, where the tensors that they are computed from are already.
  // Each source is looked at once a call. Runs the recipes of those that are not there, or that
  // were computed from what the sources no longer are. False where a source is not what is promised
  // of it: then another executable is needed.
  bool fill(Slots& slots) const;

  // Whether nothing but one kept value needs this input, so that the call needs no memory of it.
  bool is_replaced(runtime::Slot input) const { return is_replaced_[static_cast<size_t>(input)]; }

 private:
  struct Recipe;
  struct Found;
  class Filling;

  // What is promised of a source, by its place in sources_.
  struct Promised {
    size_t source;
    SymRange range;
  };
  size_t source_of(runtime::Slot slot);

  std::vector<runtime::Slot> sources_;  // each once
  std::vector<Recipe> recipes_;
  std::vector<Promised> promises_;
  std::vector<bool> is_replaced_;  // per input
  bool reads_all_;                 // of the sources, in each call
  // What the last call that had to look something up found.
  mutable std::atomic<std::shared_ptr<const Found>> found_;
};

}  // namespace mlcc::python
