#include "python/run/package_file.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "driver/kernels.h"
#include "driver/session.h"
#include "package/packing.h"
#include "python/process/options.h"
#include "python/process/without_gil.h"
#include "python/run/executable_object.h"
#include "python/run/kept_tensors.h"
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

// `inputs`: of each input that is given to the executable a tensor that it always is, or None.
py::dict write_package(const ExecutableObject& self, const std::string& path,
                       const std::string& manifest, const py::list& inputs,
                       std::vector<std::string> input_names, std::vector<std::string> output_names,
                       const std::vector<SymbolRow>& symbols,
                       const std::vector<ConditionRow>& conditions, const py::object& options) {
  const runtime::ExecutablePlan& plan = self.program->executable().plan();
  MLCC_USER_CHECK(inputs.size() == self.program->num_inputs(), "package: found ", inputs.size(),
                  " inputs, expected ", self.program->num_inputs());
  Slots slots;
  for (size_t i = 0; i < inputs.size(); ++i)
    slots.push_back(to_ivalue(PyList_GET_ITEM(inputs.ptr(), static_cast<Py_ssize_t>(i)),
                              static_cast<Py_ssize_t>(i)));
  slots.resize(static_cast<size_t>(plan.num_slots));
  const driver::Options values = to_options(options);
  package::PackageFile file;
  {
    const WithoutGil no_gil;
    const KeptTensors kept(plan);
    MLCC_CHECK(kept.fill(slots), "package: a weight is not what is promised of it");
    const codegen::Target& target = driver::cpu_backend(values).backend->target();
    package::ProgramToPack program{
        plan,
        driver::launch_objects(plan, values),
        std::move(input_names),
        std::move(output_names),
        {},
        {architecture_of(target), target.cpu, driver::needed_features(target)},
        to_symbols(symbols),
        to_conditions(conditions)};
    for (size_t i = 0; i < plan.inputs.size(); ++i) program.values.push_back(weight_of(slots[i]));
    file = package::pack(program);
    file.manifest = manifest;
    package::write_package(path, file);
  }
  py::dict facts;
  facts["code_bytes"] = file.code.code.size();
  facts["weight_bytes"] = file.weights.bytes();
  return facts;
}

}  // namespace

void bind_package_file(py::module_& module) {
  module.def("write_package", &write_package, py::arg("executable"), py::arg("path"),
             py::arg("manifest"), py::arg("inputs"), py::arg("input_names"),
             py::arg("output_names"), py::arg("symbols"), py::arg("conditions"), py::arg("options"),
             "Write a package (csrc/package) of an executable. UnsupportedError "
             "where it needs what a package has not.");
}

}  // namespace mlcc::python
