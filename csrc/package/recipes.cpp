#include "package/recipes.h"

#include <utility>

#include "support/bytes.h"
#include "support/error.h"

namespace mlcc::package {

std::string encode_recipes(const Recipes& recipes) {
  ByteWriter out;
  out.add_count(recipes.programs.size());
  for (const Contents& program : recipes.programs) out.add_text(encode_contents(program));
  out.add_count(recipes.recipes.size());
  for (const Recipe& recipe : recipes.recipes) {
    out.add_count(recipe.program);
    out.add_count(recipe.input);
    out.add_count(recipe.sources.size());
    for (const size_t source : recipe.sources) out.add_count(source);
  }
  out.add_count(recipes.names.size());
  for (const WeightName& weight : recipes.names) {
    out.add_text(weight.name);
    out.add_number(weight.input);
  }
  return out.bytes();
}

Recipes decode_recipes(std::string_view bytes, size_t num_inputs, int64_t code_bytes) {
  ByteReader in(bytes, "recipes");
  Recipes recipes;
  const size_t num_programs = in.length();
  for (size_t i = 0; i < num_programs; ++i)
    recipes.programs.push_back(decode_contents(in.text(), code_bytes, 0));
  const auto index_below = [&in](size_t count, std::string_view what) {
    const uint64_t index = in.count();
    if (index >= count) in.fail(detail::join("no ", what, " ", index));
    return static_cast<size_t>(index);
  };
  recipes.recipes.resize(in.length());
  for (Recipe& recipe : recipes.recipes) {
    recipe.program = index_below(num_programs, "program");
    recipe.input = index_below(num_inputs, "input");
    recipe.sources.resize(in.length());
    for (size_t& source : recipe.sources) source = index_below(num_inputs, "input");
    const Contents& program = recipes.programs[recipe.program];
    if (program.inputs.size() != recipe.sources.size() || program.outputs.size() != 1)
      in.fail(detail::join("input ", recipe.input, " is made by a program of ",
                           program.inputs.size(), " inputs and ", program.outputs.size(),
                           " outputs"));
    for (const Input& input : program.inputs)
      if (input.kind != InputKind::kGiven) in.fail("a recipe with weights of its own");
  }
  recipes.names.resize(in.length());
  for (WeightName& weight : recipes.names) {
    weight.name = in.text();
    weight.input = in.number();
    if (weight.input < WeightName::kUnread || weight.input >= static_cast<int64_t>(num_inputs))
      in.fail(detail::join("weight ", weight.name, " is no input"));
  }
  in.expect_end();
  return recipes;
}

}  // namespace mlcc::package
