// What was found to be faster where the cost model is in doubt, for this process and in the disk
// store for later ones.
//
// Within a process a verdict never changes: the ways differ in the order of their sums, so results
// would.
#pragma once

#include <functional>
#include <string>

#include "codegen/backend.h"
#include "driver/options.h"
#include "support/hash.h"

namespace mlcc::driver {

// What a verdict is about: a graph with the sizes that it hints at, on a CPU with so many threads.
Hash128 verdict_key(const std::string& graph_text, const codegen::Target& target,
                    int64_t num_threads, const Options& options);

// A word, and in the lines below it what was measured, for readers of the store.
struct Verdict {
  std::string word;
  std::string figures;
  bool is_lasting = true;  // else it is of this process, and a later one may find another
};

// The verdict under that key, whichever thread finds it; `measure` is asked if there is none yet.
std::string verdict_of(const Hash128& key, const Options& options,
                       const std::function<Verdict()>& measure);

// Of this process; those in the store are entries like others.
void forget_verdicts();

}  // namespace mlcc::driver
