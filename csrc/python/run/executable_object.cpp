#include "python/run/executable_object.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/headeronly/version.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/kernel_facts.h"
#include "driver/options.h"
#include "graph/text.h"
#include "python/build/graph_builder.h"
#include "python/process/errors.h"
#include "python/process/log_sink.h"
#include "python/process/options.h"
#include "python/process/parallel.h"
#include "python/process/without_gil.h"
#include "python/run/made_up_call.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

// Takes the inputs out of the list, which is empty then: the caller keeps nothing alive through it.
std::vector<c10::IValue> take_inputs(const py::list& list) {
  std::vector<c10::IValue> inputs;
  const Py_ssize_t size = PyList_GET_SIZE(list.ptr());
  inputs.reserve(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i)
    inputs.push_back(to_ivalue(PyList_GET_ITEM(list.ptr(), i), i));
  if (PyList_SetSlice(list.ptr(), 0, size, nullptr) != 0) throw py::error_already_set();
  return inputs;
}

py::list call_program(const TensorProgram& program, const py::list& list) {
  std::vector<c10::IValue> inputs = take_inputs(list);
  std::vector<c10::IValue> outputs;
  {
    const WithoutGil no_gil;
    outputs = program.run(std::move(inputs));
  }
  py::list results(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i),
                    from_ivalue(std::move(outputs[i])).release().ptr());
  return results;
}

py::object call(const ExecutableObject& self, const py::list& list) {
  return with_torch_errors([&]() -> py::object { return call_program(*self.program, list); });
}

py::dict stats_of(const ExecutableObject& self) {
  py::dict stats;
  stats["nodes"] = self.stats.nodes;
  stats["generated_nodes"] = self.stats.generated_nodes;
  stats["kernels"] = self.stats.kernels;
  stats["compiled"] = self.stats.compiled;
  stats["memory_hits"] = self.stats.memory_hits;
  stats["disk_hits"] = self.stats.disk_hits;
  stats["extern_calls"] = self.stats.extern_calls;
  stats["replaced_calls"] = self.stats.replaced_calls;
  stats["kept"] = self.stats.kept;
  stats["live_bytes"] = self.stats.live_bytes;
  stats["seconds"] = self.stats.seconds;
  stats["arena_bytes"] = self.program->executable().largest_arena_bytes();
  return stats;
}

std::vector<std::string> steps_of(const ExecutableObject& self) {
  std::vector<std::string> steps;
  for (const runtime::Step& step : self.program->executable().plan().steps) {
    if (const auto* launch = std::get_if<runtime::LaunchStep>(&step))
      steps.push_back("launch " + launch->label);
    else if (const auto* call = std::get_if<runtime::ExternStep>(&step))
      steps.push_back("call " + call->op);
  }
  return steps;
}

py::list kernels_of(const ExecutableObject& self, const std::map<std::string, int64_t>& sizes) {
  const auto value_of = [&](std::string_view name) { return sizes.at(std::string(name)); };
  py::list kernels;
  for (const driver::KernelFacts& facts :
       driver::kernel_facts(self.program->executable().plan(), value_of)) {
    py::dict row;
    row["name"] = facts.label;
    row["line"] = facts.source;
    row["flops"] = facts.flops;
    row["bytes"] = facts.bytes;
    kernels.append(std::move(row));
  }
  return kernels;
}

ExecutableObject compile(const py::object& source, const py::object& options, bool for_file,
                         bool with_recipes) {
  driver::Options values = to_options(options);
  const int64_t threads = at::get_num_threads();
  if (values.num_threads <= 0) values.num_threads = threads;
  sync_log_levels();
  std::unique_ptr<graph::Graph> graph = py::isinstance<GraphBuilder>(source)
                                            ? py::cast<GraphBuilder&>(source).take()
                                            : graph::parse_graph(py::cast<std::string>(source));
  // Compile threads may log, which takes the GIL.
  const WithoutGil no_gil;
  const ForkBarrier barrier;
  driver::Host host{threads, torch_parallel};
  if (may_call_in_parallel()) host.prepare = made_up_call;
  host.libraries = TORCH_VERSION;
  const bool may_choose = !at::globalContext().deterministicAlgorithms();
  driver::Compilation compilation =
      for_file ? driver::compile_for_file(std::move(graph), values, with_recipes)
               : driver::compile(std::move(graph), values, may_choose ? &host : nullptr);
  return {std::make_shared<TensorProgram>(std::move(compilation.executable)),
          std::move(compilation.graph_text), compilation.stats,
          std::move(compilation.fusion_refusals), std::move(compilation.recipes)};
}

}  // namespace

c10::IValue to_ivalue(PyObject* object, Py_ssize_t index) {
  if (THPVariable_Check(object)) return THPVariable_Unpack(object);
  if (object == Py_None) return {};
  if (PyBool_Check(object)) return object == Py_True;
  if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
  const py::object integer = py::reinterpret_steal<py::object>(PyNumber_Index(object));
  if (!integer) {
    PyErr_Clear();
    throw Error(detail::join("input ", index, ": found a ", Py_TYPE(object)->tp_name,
                             ", expected a tensor or an int"));
  }
  const int64_t value = PyLong_AsLongLong(integer.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

py::object from_ivalue(c10::IValue value) {
  if (value.isTensor() && value.toTensor().defined())
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(value).toTensor()));
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isBool()) return py::bool_(value.toBool());
  return py::none();
}

py::object with_torch_errors(const std::function<py::object()>& body) {
  HANDLE_TH_ERRORS
  try {
    return body();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const InternalError& error) {
    set_python_internal_error(error.what());
  }
  throw py::error_already_set();
  END_HANDLE_TH_ERRORS_PYBIND
}

void bind_executable(py::module_& module) {
  py::class_<ExecutableObject>(module, "Executable", "A compiled graph.")
      .def("__call__", &call, py::arg("inputs"),
           "Run on a list of tensors and ints, which is emptied; return the list of outputs.")
      .def_property_readonly("graph_text",
                             [](const ExecutableObject& self) { return self.graph_text; })
      .def_property_readonly("stats", &stats_of)
      .def_property_readonly("steps", &steps_of,
                             "Kernels (\"launch add (3 nodes)\") and calls (\"call "
                             "aten.sort.default\") in the order in which they run.")
      .def("kernels", &kernels_of, py::arg("sizes"),
           "Of each kernel in the order in which they run, by the values of the symbols: name, "
           "line, "
           "flops (None: data tells) and bytes.")
      .def(
          "arena_bytes_of",
          [](const ExecutableObject& self, const std::map<std::string, int64_t>& sizes) {
            std::vector<int64_t> values;
            for (const std::string& symbol : self.program->executable().symbols())
              values.push_back(sizes.at(symbol));
            return self.program->executable().arena_bytes(values);
          },
          py::arg("sizes"), "Bytes of the arena of a call, by the values of the symbols.")
      .def_property_readonly("fusion_refusals",
                             [](const ExecutableObject& self) { return self.fusion_refusals; });
  module.def("compile", &compile, py::arg("graph"), py::arg("options") = py::none(),
             py::arg("for_file") = false, py::arg("with_recipes") = false,
             "Compile a GraphBuilder's graph, which it gives up, or the text of one. `for_file`: "
             "for write_package, also where this machine does not run the code; `with_recipes`: "
             "with what a package needs for exchanging its weights.");
}

}  // namespace mlcc::python
