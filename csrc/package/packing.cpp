#include "package/packing.h"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "package/image.h"
#include "runtime/object_loader.h"
#include "support/error.h"

namespace mlcc::package {
namespace {

// Of each slot whether a step reads or writes what lies in it, or it is an output.
std::vector<bool> used_slots(const runtime::ExecutablePlan& plan) {
  std::vector<bool> is_used(static_cast<size_t>(plan.num_slots), false);
  const auto use = [&](runtime::Slot slot) { is_used[static_cast<size_t>(slot)] = true; };
  for (const runtime::Step& step : plan.steps) {
    if (const auto* launch = std::get_if<runtime::LaunchStep>(&step))
      for (const runtime::Slot slot : launch->buffers) use(slot);
    if (const auto* view = std::get_if<runtime::ViewStep>(&step)) use(view->base);
    if (const auto* bind = std::get_if<runtime::BindStep>(&step)) use(bind->slot);
  }
  for (const runtime::Slot slot : plan.outputs) use(slot);
  return is_used;
}

// What runs, without what compiles it again.
std::vector<runtime::Step> steps_without_text(std::vector<runtime::Step> steps) {
  for (runtime::Step& step : steps)
    if (auto* launch = std::get_if<runtime::LaunchStep>(&step)) {
      launch->kernel_text.clear();
      launch->key = {};
    }
  return steps;
}

// One object for each launch.
void add_objects(const runtime::ExecutablePlan& plan, const std::vector<std::string>& bytes,
                 std::vector<ObjectToLink>& objects) {
  size_t launches = 0;
  for (const runtime::Step& step : plan.steps) {
    const auto* launch = std::get_if<runtime::LaunchStep>(&step);
    if (launch == nullptr) continue;
    MLCC_CHECK(launches < bytes.size(), "package: fewer objects than launches");
    ObjectToLink& object = objects.emplace_back();
    object.bytes = bytes[launches++];
    for (size_t phase = 0; phase < launch->phases.size(); ++phase)
      object.symbols.push_back(runtime::phase_symbol("k", static_cast<int64_t>(phase)));
  }
}

// What runs of a plan: without kept inputs and promises, and without names.
runtime::ExecutablePlan plan_in_file(const runtime::ExecutablePlan& plan) {
  runtime::ExecutablePlan found;
  found.inputs = plan.inputs;
  found.num_slots = plan.num_slots;
  found.steps = steps_without_text(plan.steps);
  found.outputs = plan.outputs;
  found.written_inputs = plan.written_inputs;
  return found;
}

// Of each recipe once, in the order of the kept inputs.
void add_recipe_objects(const RecipesToPack& recipes, std::vector<ObjectToLink>& objects) {
  std::set<const runtime::Executable*> seen;
  for (size_t i = 0; i < recipes.executables.size(); ++i)
    if (seen.insert(recipes.executables[i].get()).second)
      add_objects(recipes.executables[i]->plan(), recipes.objects[i], objects);
}

using Addresses = std::vector<std::vector<int64_t>>;

// A recipe as a program by itself; takes its kernels' places from the front of `addresses`.
Contents recipe_in_file(const runtime::ExecutablePlan& plan, const std::string& label,
                        Addresses::const_iterator& addresses) {
  Contents contents;
  contents.plan = plan_in_file(plan);
  for (size_t i = 0; i < plan.inputs.size(); ++i)
    contents.inputs.push_back({InputKind::kGiven, "source" + std::to_string(i), {}, 0, 0});
  contents.outputs.resize(plan.outputs.size(), {"packed", {}});
  for (const runtime::Step& step : plan.steps) {
    if (std::holds_alternative<runtime::LaunchStep>(step)) contents.entries.push_back(*addresses++);
    if (const auto* call = std::get_if<runtime::ExternStep>(&step))
      throw UnsupportedError(
          detail::join("package: ", label, " is computed by a call of ", call->op));
  }
  return contents;
}

// Of the recipes, those of inputs that the file has.
Recipes recipes_in_file(const ProgramToPack& program, const std::vector<Input>& inputs,
                        Addresses::const_iterator addresses) {
  const RecipesToPack& from = *program.recipes;
  Recipes recipes;
  std::map<const runtime::Executable*, size_t> programs;
  for (size_t i = 0; i < from.executables.size(); ++i) {
    const auto [found, is_new] = programs.try_emplace(from.executables[i].get(), programs.size());
    const runtime::KeptInput& kept = program.plan.kept[i];
    if (is_new)
      recipes.programs.push_back(
          recipe_in_file(from.executables[i]->plan(), kept.label, addresses));
    if (inputs[static_cast<size_t>(kept.slot)].kind == InputKind::kWeight)
      recipes.recipes.push_back({found->second,
                                 static_cast<size_t>(kept.slot),
                                 {kept.sources.begin(), kept.sources.end()}});
  }
  std::vector<bool> is_read(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) is_read[i] = inputs[i].kind == InputKind::kWeight;
  for (const Recipe& recipe : recipes.recipes)
    for (const size_t source : recipe.sources) is_read[source] = true;
  for (const WeightName& weight : from.names) {
    const bool is_known =
        weight.input != WeightName::kUnread && is_read[static_cast<size_t>(weight.input)];
    recipes.names.push_back({weight.name, is_known ? weight.input : WeightName::kUnread});
  }
  return recipes;
}

// Inputs that recipes read and that nobody can give.
void use_fixed_sources(const ProgramToPack& program, std::vector<bool>& is_used) {
  std::vector<bool> is_named(program.plan.inputs.size(), false);
  for (const WeightName& weight : program.recipes->names)
    if (weight.input != WeightName::kUnread) is_named[static_cast<size_t>(weight.input)] = true;
  for (const runtime::KeptInput& kept : program.plan.kept)
    for (const runtime::Slot source : kept.sources)
      if (!is_named[static_cast<size_t>(source)]) is_used[static_cast<size_t>(source)] = true;
}

// As people see them: with their names of symbols. Empty where all are numbers.
std::vector<std::string> texts_of(const std::vector<SymExpr>& sizes,
                                  const std::vector<Symbol>& symbols) {
  if (are_constant(sizes)) return {};
  std::vector<std::string> texts;
  for (const SymExpr& size : sizes)
    texts.push_back(size.substitute([&](std::string_view name) -> std::optional<SymExpr> {
                          for (const Symbol& symbol : symbols)
                            if (symbol.name == name) return SymExpr::symbol(symbol.shown);
                          return std::nullopt;
                        })
                        .str());
  return texts;
}

const runtime::TensorSpec& spec_of(const runtime::ExecutablePlan& plan, runtime::Slot slot) {
  const runtime::TensorSpec* spec = find_output_spec(plan, slot);
  if (spec == nullptr) throw UnsupportedError("package: a result is a number that the sizes tell");
  return *spec;
}

}  // namespace

PackageFile pack(const ProgramToPack& program) {
  const runtime::ExecutablePlan& plan = program.plan;
  MLCC_CHECK(program.values.size() == plan.inputs.size() &&
                 program.input_names.size() + plan.kept.size() == plan.inputs.size(),
             "package: ", program.values.size(), " values and ", program.input_names.size(),
             " names for ", plan.inputs.size(), " inputs");
  PackageFile file;
  std::vector<bool> is_used = used_slots(plan);
  if (program.recipes) use_fixed_sources(program, is_used);
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    Input& input = file.contents.inputs.emplace_back();
    input.name = i < program.input_names.size() ? program.input_names[i]
                                                : plan.kept[i - program.input_names.size()].label;
    if (!program.values[i]) {
      input.kind = InputKind::kGiven;
      input.sizes = texts_of(plan.inputs[i].spec.shape, program.symbols);
    } else if (is_used[i]) {
      input.kind = InputKind::kWeight;
      input.offset = file.weights.place(*program.values[i]);
      input.bytes = program.values[i]->bytes;
    }
  }
  for (const runtime::Slot slot : plan.written_inputs)
    if (file.contents.inputs[static_cast<size_t>(slot)].kind != InputKind::kGiven)
      throw UnsupportedError(detail::join("package: the program writes into ",
                                          file.contents.inputs[static_cast<size_t>(slot)].name));
  std::vector<ObjectToLink> objects;
  add_objects(plan, program.objects, objects);
  const size_t num_launches = objects.size();
  if (program.recipes) add_recipe_objects(*program.recipes, objects);
  Image image = link_objects(objects);
  const auto behind = image.addresses.begin() + static_cast<std::ptrdiff_t>(num_launches);
  if (program.recipes) file.recipes = recipes_in_file(program, file.contents.inputs, behind);
  image.addresses.erase(behind, image.addresses.end());
  file.contents.plan = plan_in_file(plan);
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    file.contents.outputs.push_back(
        {program.output_names[i], texts_of(spec_of(plan, plan.outputs[i]).shape, program.symbols)});
  file.contents.symbols = program.symbols;
  file.contents.conditions = program.conditions;
  file.contents.entries = std::move(image.addresses);
  file.code = {program.target, std::move(image.bytes)};
  file.scratch_bytes = image.scratch_bytes;
  file.stack_bytes = image.stack_bytes;
  return file;
}

}  // namespace mlcc::package
