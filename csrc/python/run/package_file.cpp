#include "python/run/package_file.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "driver/kernels.h"
#include "driver/session.h"
#include "package/bundle.h"
#include "package/layouts.h"
#include "package/packing.h"
#include "python/process/options.h"
#include "python/process/without_gil.h"
#include "python/run/executable_object.h"
#include "python/run/kept_tensors.h"
#include "runtime/arena_plan.h"
#include "runtime/plan_memory.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

std::string architecture_of(const codegen::Target& target) {
  return target.features.find("+neon") != std::string::npos ? "aarch64" : "x86_64";
}

std::optional<package::Weight> weight_of(const c10::IValue& value) {
  if (!value.isTensor()) return std::nullopt;
  const at::Tensor& tensor = value.toTensor();
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t bytes =
      runtime::storage_bytes({sizes.data(), sizes.size()}, {strides.data(), strides.size()},
                             static_cast<int64_t>(tensor.element_size()));
  return package::Weight{bytes == 0 ? nullptr : tensor.const_data_ptr(), bytes};
}

// As (name, name shown to people, least value, greatest value or None).
using SymbolRow = std::tuple<std::string, std::string, int64_t, std::optional<int64_t>>;

std::vector<package::Symbol> to_symbols(const std::vector<SymbolRow>& rows) {
  std::vector<package::Symbol> symbols;
  for (const auto& [name, shown, low, high] : rows)
    symbols.push_back({name, shown, low, high.value_or(kUnboundedHigh)});
  return symbols;
}

// As (expression of sizes that is 1 where it holds, text for people).
using ConditionRow = std::pair<std::string, std::string>;

std::vector<package::Condition> to_conditions(const std::vector<ConditionRow>& rows) {
  std::vector<package::Condition> conditions;
  for (const auto& [truth, text] : rows) conditions.push_back({SymExpr::parse(truth), text});
  return conditions;
}

// As (name in the model's state_dict, number of the executable's input or -1).
using WeightRow = std::pair<std::string, int64_t>;

package::RecipesToPack to_recipes(const ExecutableObject& self, const std::vector<WeightRow>& names,
                                  const driver::Options& options) {
  package::RecipesToPack recipes;
  for (const auto& [name, input] : names) {
    MLCC_USER_CHECK(input >= package::WeightName::kUnread &&
                        input < static_cast<int64_t>(self.program->num_inputs()),
                    "package: weight ", name, " is input ", input);
    recipes.names.push_back({name, input});
  }
  recipes.executables = self.recipes;
  std::map<const runtime::Executable*, std::vector<std::string>> objects;
  for (const auto& executable : self.recipes) {
    const auto [found, is_new] = objects.try_emplace(executable.get());
    if (is_new) found->second = driver::launch_objects(executable->plan(), options);
    recipes.objects.push_back(found->second);
  }
  return recipes;
}

// What Python knows of a program beside its executable.
struct Facts {
  // Of each input that is given to the executable a tensor that it always is, or None.
  py::list inputs;
  std::vector<std::string> input_names, output_names;
  std::vector<SymbolRow> symbols;
  std::vector<ConditionRow> conditions;
  std::optional<std::vector<WeightRow>> weight_names;
};

// Calls `body` with the program as it stands in a file, while its weights are held.
template <typename Body>
void with_packed(const ExecutableObject& self, Facts facts, const py::object& options,
                 bool has_scratch, Body body) {
  const runtime::ExecutablePlan& plan = self.program->executable().plan();
  const py::list& inputs = facts.inputs;
  MLCC_USER_CHECK(inputs.size() == self.program->num_inputs(), "package: found ", inputs.size(),
                  " inputs, expected ", self.program->num_inputs());
  Slots slots;
  for (size_t i = 0; i < inputs.size(); ++i)
    slots.push_back(to_ivalue(PyList_GET_ITEM(inputs.ptr(), static_cast<Py_ssize_t>(i)),
                              static_cast<Py_ssize_t>(i)));
  slots.resize(static_cast<size_t>(plan.num_slots));
  const driver::Options values = to_options(options);
  const WithoutGil no_gil;
  const KeptTensors kept(plan);
  MLCC_CHECK(kept.fill(slots), "package: a weight is not what is promised of it");
  const codegen::Backend& backend = *driver::cpu_backend(values).backend;
  const codegen::Target& target = backend.target();
  package::ProgramToPack program{
      plan,
      driver::launch_objects(plan, values, has_scratch),
      std::move(facts.input_names),
      std::move(facts.output_names),
      {},
      {architecture_of(target), target.cpu, driver::needed_features(target)},
      to_symbols(facts.symbols),
      to_conditions(facts.conditions),
      std::nullopt};
  if (facts.weight_names) program.recipes = to_recipes(self, *facts.weight_names, values);
  for (size_t i = 0; i < plan.inputs.size(); ++i) program.values.push_back(weight_of(slots[i]));
  body(package::pack(program), backend);
}

// `manifest`: makes the text, when what is told here is known.
py::dict write_package(const ExecutableObject& self, const std::string& path,
                       const py::function& manifest, const py::list& inputs,
                       std::vector<std::string> input_names, std::vector<std::string> output_names,
                       std::vector<SymbolRow> symbols, std::vector<ConditionRow> conditions,
                       const py::object& options,
                       std::optional<std::vector<WeightRow>> weight_names) {
  py::dict facts;
  with_packed(self,
              {inputs, std::move(input_names), std::move(output_names), std::move(symbols),
               std::move(conditions), std::move(weight_names)},
              options, /*has_scratch=*/false,
              [&](package::PackageFile file, const codegen::Backend&) {
                {
                  const py::gil_scoped_acquire gil;
                  facts["code_bytes"] = file.code.code.size();
                  facts["weight_bytes"] = file.weights.bytes();
                  facts["stack_bytes"] = file.stack_bytes;
                  file.manifest = manifest(facts).cast<std::string>();
                }
                package::write_package(path, file);
              });
  return facts;
}

py::list to_list(const std::vector<package::BundlePort>& ports) {
  py::list rows;
  for (const package::BundlePort& port : ports) {
    py::dict row;
    row["name"] = port.name;
    row["dtype"] = std::string(dtype_name(port.dtype));
    row["sizes"] = port.sizes;
    row["strides"] = port.strides == package::row_major(port.sizes) ? py::object(py::none())
                                                                    : py::cast(port.strides);
    row["is_written"] = port.is_written;
    rows.append(row);
  }
  return rows;
}

py::dict make_bundle(const ExecutableObject& self, const std::string& name, bool has_weights,
                     const py::list& inputs, std::vector<std::string> input_names,
                     std::vector<std::string> output_names, const py::object& options) {
  package::Bundle bundle;
  size_t code_bytes = 0;
  int64_t weight_bytes = 0;
  with_packed(self, {inputs, std::move(input_names), std::move(output_names), {}, {}, {}}, options,
              /*has_scratch=*/true,
              [&](const package::PackageFile& file, const codegen::Backend& backend) {
                const auto compile = [&](const std::string& text) {
                  Result<codegen::ObjectCode> object = backend.compile_llvm(text);
                  if (!object) throw UnsupportedError(object.reason());
                  return std::move(object->bytes);
                };
                bundle = package::make_bundle(file, {name, has_weights, compile});
                code_bytes = file.code.code.size();
                weight_bytes = file.weights.bytes();
              });
  py::dict facts;
  facts["object"] = py::bytes(bundle.object);
  facts["weights"] = py::bytes(bundle.weights);
  facts["inputs"] = to_list(bundle.inputs);
  facts["outputs"] = to_list(bundle.outputs);
  py::list errors;
  for (const package::BundleError& error : bundle.errors)
    errors.append(py::make_tuple(error.status, error.text));
  facts["errors"] = errors;
  facts["code_bytes"] = code_bytes;
  facts["weight_bytes"] = weight_bytes;
  facts["alignment"] = runtime::kArenaAlignment;
  facts["arena_bytes"] = bundle.arena_bytes;
  facts["stack_bytes"] = bundle.stack_bytes;
  return facts;
}

}  // namespace

void bind_package_file(py::module_& module) {
  module.def(
      "write_package", &write_package, py::arg("executable"), py::arg("path"), py::arg("manifest"),
      py::arg("inputs"), py::arg("input_names"), py::arg("output_names"), py::arg("symbols"),
      py::arg("conditions"), py::arg("options"), py::arg("weight_names") = py::none(),
      "Write a package (csrc/package) of an executable. UnsupportedError "
      "where it needs what a package has not. `weight_names`: its weights can be exchanged.");
  module.def("make_bundle", &make_bundle, py::arg("executable"), py::arg("name"),
             py::arg("has_weights"), py::arg("inputs"), py::arg("input_names"),
             py::arg("output_names"), py::arg("options"),
             "An executable of fixed sizes as an object file (bytes) whose function <name>_run "
             "runs it, with what a header tells of it. UnsupportedError as write_package.");
}

}  // namespace mlcc::python
