// From a compiled plan to a package of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "package/targets.h"
#include "package/writer.h"
#include "runtime/executable.h"

namespace mlcc::package {

// What computes kept inputs, for the target of the package.
struct RecipesToPack {
  std::vector<std::shared_ptr<const runtime::Executable>> executables;  // of each kept input
  std::vector<std::vector<std::string>> objects;                        // of these, of each launch
  std::vector<WeightName> names;  // of the given inputs that can be exchanged
};

struct ProgramToPack {
  const runtime::ExecutablePlan& plan;   // of the CPU, no calls
  std::vector<std::string> objects;      // of each launch
  std::vector<std::string> input_names;  // of the inputs that are given to the plan
  std::vector<std::string> output_names;
  // Of each input, kept ones among them: what it always holds, from its first element to its last.
  // Nothing: whoever runs the package gives it.
  std::vector<std::optional<Weight>> values;
  Target target;
  std::vector<Symbol> symbols;  // of the plan
  std::vector<Condition> conditions;
  std::optional<RecipesToPack> recipes;  // where weights can be exchanged
};

// Weights that no step reads are left out: what is kept of them stands for them. Without manifest.
// UnsupportedError where the plan or its code needs what a package has not.
PackageFile pack(const ProgramToPack& program);

}  // namespace mlcc::package
