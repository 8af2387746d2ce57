// How the weights in a file follow from those of the model: what exchanges them while the package
// runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "package/contents.h"

namespace mlcc::package {

// Computes the input `input` of the package's program from the weights in `sources`.
struct Recipe {
  size_t program;               // of Recipes::programs
  size_t input;                 // of the package's program
  std::vector<size_t> sources;  // inputs of the package's program, in the order of the recipe's
};

// By what name the model knows an input of the package's program.
struct WeightName {
  static constexpr int64_t kUnread = -1;

  std::string name;
  int64_t input = kUnread;  // kUnread: no result depends on it
};

struct Recipes {
  std::vector<Contents> programs;  // all of whose inputs are given
  std::vector<Recipe> recipes;
  std::vector<WeightName> names;
};

std::string encode_recipes(const Recipes& recipes);
// Throws Error where the bytes are not such, or name what a program of `num_inputs` inputs and a
// section of code of `code_bytes` have not.
Recipes decode_recipes(std::string_view bytes, size_t num_inputs, int64_t code_bytes);

}  // namespace mlcc::package
