// Other weights for a package, by the names that the model has for them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "package/mlcc_runtime.h"
#include "package/ports.h"
#include "package/program.h"
#include "package/recipes.h"
#include "package/weights.h"

namespace mlcc::package {

// What a package needs for that. Immutable.
class Refit {
 public:
  // StatusError where the recipes do not make what `program` takes. `program` and the code that it
  // runs outlive this.
  Refit(Recipes recipes, const Program& program, const char* code);

  const std::vector<Port>& weights() const { return weights_; }  // that results depend on

  // `current` with these in their places; what is packed is packed anew. StatusError where one is
  // unknown, has another dtype or sizes, or is packed together with one that is neither given nor
  // in the file.
  WeightsPtr refitted(const WeightsPtr& current, std::span<const mlcc_weight> given) const;

 private:
  class Replacement;

  const Port* find(std::string_view name) const;  // null: unread; StatusError: unknown

  const Program& program_;
  std::vector<std::unique_ptr<const Program>> programs_;
  std::vector<Recipe> recipes_;
  std::vector<Port> weights_;
  std::vector<std::string> unread_;  // names that are allowed
};

}  // namespace mlcc::package
