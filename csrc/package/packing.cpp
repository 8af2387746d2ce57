#include "package/packing.h"

#include <optional>
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

Image link(const ProgramToPack& program) {
  std::vector<ObjectToLink> objects;
  for (const runtime::Step& step : program.plan.steps) {
    const auto* launch = std::get_if<runtime::LaunchStep>(&step);
    if (launch == nullptr) continue;
    MLCC_CHECK(objects.size() < program.objects.size(), "package: fewer objects than launches");
    ObjectToLink& object = objects.emplace_back();
    object.bytes = program.objects[objects.size() - 1];
    for (size_t phase = 0; phase < launch->phases.size(); ++phase)
      object.symbols.push_back(runtime::phase_symbol("k", static_cast<int64_t>(phase)));
  }
  return link_objects(objects);
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
  const std::vector<bool> is_used = used_slots(plan);
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
  Image image = link(program);
  file.contents.plan.inputs = plan.inputs;
  file.contents.plan.num_slots = plan.num_slots;
  file.contents.plan.steps = steps_without_text(plan.steps);
  file.contents.plan.outputs = plan.outputs;
  file.contents.plan.written_inputs = plan.written_inputs;
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    file.contents.outputs.push_back(
        {program.output_names[i], texts_of(spec_of(plan, plan.outputs[i]).shape, program.symbols)});
  file.contents.symbols = program.symbols;
  file.contents.conditions = program.conditions;
  file.contents.entries = std::move(image.addresses);
  file.code = {program.target, std::move(image.bytes)};
  return file;
}

}  // namespace mlcc::package
