// Where the weights of a package lie.
#pragma once

#include <memory>
#include <vector>

#include "package/mapped_file.h"

namespace mlcc::package {

// Immutable: a call uses those that there were when it began.
struct Weights {
  std::vector<Memory> data;  // of each input of the program; null where it is no weight
};
using WeightsPtr = std::shared_ptr<const Weights>;

}  // namespace mlcc::package
