#include "python/call/call_dispatch.h"

#include <ATen/ops/scalar_tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "python/call/call_form.h"
#include "python/call/gradient_node.h"
#include "python/process/without_gil.h"
#include "python/run/executable_object.h"
#include "python/tensors/stolen_weights.h"
#include "runtime/size_expr.h"
#include "support/error.h"
#include "types/symbolic.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

// Where a symbol's value comes from: a size of a tensor leaf, or an int leaf (dim is -1).
struct SymbolSource {
  size_t leaf;
  int64_t dim;
  int64_t value(const Leaves& leaves) const;
};

struct FixedSize {
  size_t leaf;
  int64_t dim;
  int64_t size;
};

// Tells a dict that nobody has written to since it was looked at, where Python counts writes, that
// is before 3.13. The attributes of a large model's modules are thousands of objects, which a call
// need not look at then.
class DictVersion {
 public:
  static uint64_t of(const py::handle& dict) {
    if (!PyDict_Check(dict.ptr())) return kUnknown;
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return reinterpret_cast<const PyDictObject*>(dict.ptr())->ma_version_tag;
#pragma GCC diagnostic pop
#else
    return kUnknown;
#endif
  }
  bool is(uint64_t version) const { return version != kUnknown && version == seen_; }
  void set(uint64_t version) { seen_ = version; }

 private:
  static constexpr uint64_t kUnknown = 0;
  uint64_t seen_ = kUnknown;
};

// A dict and the objects that it held, in order.
struct HeldDict {
  py::dict dict;
  std::vector<py::object> values;
  mutable DictVersion version = {};
  bool is_unchanged() const;
};

// What stands under some names of a dict: equal plain values, or the very objects.
struct HeldNames {
  py::dict dict;
  std::vector<std::pair<py::object, py::object>> values;  // null: nothing has the name
  bool by_identity;
  // Of the dict, if it matters: a new name may hide what the trace found in a class.
  std::optional<Py_ssize_t> size;
  // What it held that were not the very objects: lists and the like, which may change by
  // themselves.
  struct Equal {
    PyObject* found;  // as long as the dict has this version
    PyObject* expected;
  };
  mutable std::vector<Equal> equal = {};
  mutable DictVersion version = {};
  bool is_unchanged() const;

 private:
  static bool is_same(PyObject* found, PyObject* expected);
};

// A list, dict or set that an attribute holds, and what it held in order, of a dict keys and then
// values: plain values, or the very objects.
struct HeldContainer {
  py::object container;
  struct Item {
    py::object value;
    bool is_plain;
    bool is_same(PyObject* found) const;
  };
  std::vector<Item> items;
  bool is_unchanged() const;
};

// A closure variable that held a plain value.
struct HeldCell {
  py::object cell, value;
  bool is_unchanged() const;
};

// A function that the trace called, with its default arguments: a tuple and a dict of plain values.
struct HeldDefaults {
  py::object function, positional, named;
  bool is_unchanged() const {
    return is_same(PyFunction_GetDefaults(function.ptr()), positional) &&
           is_same(PyFunction_GetKwDefaults(function.ptr()), named);
  }

 private:
  static bool is_same(PyObject* found, const py::object& expected) {
    if (found == nullptr || found == Py_None) return py::len(expected) == 0;
    // A comparison may run Python code, which may replace it.
    const auto kept = py::reinterpret_borrow<py::object>(found);
    return is_same_constant(kept.ptr(), expected.ptr());
  }
};

// A tensor that the graph reads beside its arguments. `tensor.data = ...` and `module.double()`
// leave the object and change the rest.
struct HeldTensor {
  py::object object;  // not the tensor: torch.utils.swap_tensors refuses one that is held elsewhere
  uint64_t keys;
  at::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  std::vector<int64_t> sizes, strides;
  explicit HeldTensor(py::object held)
      : object(std::move(held)), keys(tensor().key_set().raw_repr()), dtype(tensor().scalar_type()),
        device(tensor().device()), requires_grad(tensor().requires_grad()),
        sizes(tensor().sizes().vec()), strides(tensor().strides().vec()) {}
  const at::Tensor& tensor() const { return THPVariable_Unpack(object.ptr()); }
  bool is_unchanged() const {
    const at::Tensor& tensor = this->tensor();
    return tensor.key_set().raw_repr() == keys && tensor.scalar_type() == dtype &&
           tensor.device() == device && tensor.requires_grad() == requires_grad &&
           tensor.sizes() == sizes && tensor.strides() == strides;
  }
};

int64_t SymbolSource::value(const Leaves& leaves) const {
  PyObject* object = leaves[leaf];
  if (dim >= 0) return THPVariable_Unpack(object).size(dim);
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
  MLCC_USER_CHECK(overflow == 0, "an int of more than 64 bits");
  return number;
}

bool HeldDict::is_unchanged() const {
  const uint64_t now = DictVersion::of(dict);
  if (version.is(now)) return true;
  if (static_cast<size_t>(PyDict_GET_SIZE(dict.ptr())) != values.size()) return false;
  Py_ssize_t iterator = 0;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (size_t i = 0; PyDict_Next(dict.ptr(), &iterator, &key, &value) != 0; ++i)
    if (value != values[i].ptr()) return false;
  version.set(now);
  return true;
}

bool HeldNames::is_unchanged() const {
  const uint64_t now = DictVersion::of(dict);
  if (version.is(now)) {
    size_t same = 0;
    while (same < equal.size() && is_same(equal[same].found, equal[same].expected)) {
      ++same;
      if (!version.is(DictVersion::of(dict))) break;  // the comparison ran code that wrote to it
    }
    if (version.is(DictVersion::of(dict))) return same == equal.size();
  }
  if (size && PyDict_GET_SIZE(dict.ptr()) != *size) return false;
  equal.clear();
  for (const auto& [name, expected] : values) {
    PyObject* found = PyDict_GetItemWithError(dict.ptr(), name.ptr());
    if (found == expected.ptr()) continue;
    if (found == nullptr || by_identity || !is_same(found, expected.ptr())) return false;
    equal.push_back({found, expected.ptr()});
  }
  version.set(now);
  return true;
}

// A comparison may run Python code, which may take the value out of the dict.
bool HeldNames::is_same(PyObject* found, PyObject* expected) {
  const auto kept = py::reinterpret_borrow<py::object>(found);
  return is_same_constant(kept.ptr(), expected);
}

bool HeldContainer::Item::is_same(PyObject* found) const {
  if (found == value.ptr()) return true;
  if (!is_plain) return false;
  // A comparison may run Python code, which may take the value out of the container.
  const auto kept = py::reinterpret_borrow<py::object>(found);
  return is_same_constant(kept.ptr(), value.ptr());
}

bool HeldContainer::is_unchanged() const {
  PyObject* found = container.ptr();
  if (PyDict_CheckExact(found)) {
    const size_t count = items.size() / 2;
    Py_ssize_t iterator = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (size_t i = 0; i < count; ++i)
      if (static_cast<size_t>(PyDict_GET_SIZE(found)) != count ||
          PyDict_Next(found, &iterator, &key, &value) == 0 || !items[i].is_same(key) ||
          !items[count + i].is_same(value))
        return false;
    return static_cast<size_t>(PyDict_GET_SIZE(found)) == count;
  }
  size_t count = 0;
  const auto goes_on = [&](const py::object& part) {
    return std::all_of(part.begin(), part.end(), [&](const py::handle one) {
      return count < items.size() && items[count++].is_same(one.ptr());
    });
  };
  // Other dicts may have an order of their own.
  const bool holds = PyDict_Check(found)
                         ? goes_on(container.attr("keys")()) && goes_on(container.attr("values")())
                         : goes_on(container);
  return holds && count == items.size();
}

bool HeldCell::is_unchanged() const {
  const auto found = py::reinterpret_steal<py::object>(PyCell_Get(cell.ptr()));
  return found && is_same_constant(found.ptr(), value.ptr());
}

// Tuples, sizes, lists and dicts as in `nesting`, with values[i] in the place of the number i.
py::object filled(py::handle nesting, const std::vector<py::object>& values) {
  if (PyTuple_Check(nesting.ptr()) || PyList_CheckExact(nesting.ptr())) {
    py::list items(PySequence_Fast_GET_SIZE(nesting.ptr()));
    for (size_t i = 0; i < items.size(); ++i) {
      const auto place = static_cast<Py_ssize_t>(i);
      py::handle item = PySequence_Fast_GET_ITEM(nesting.ptr(), place);
      PyList_SET_ITEM(items.ptr(), place, filled(item, values).release().ptr());
    }
    if (PyList_CheckExact(nesting.ptr())) return items;
    if (PyTuple_CheckExact(nesting.ptr())) return py::tuple(items);
    return py::type::of(nesting)(items);
  }
  if (PyDict_CheckExact(nesting.ptr())) {
    py::dict result;
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(nesting))
      result[key] = filled(item, values);
    return result;
  }
  return values.at(py::cast<size_t>(nesting));
}

// Whether two tensors among the arguments are views of one storage, one is of a storage that is
// read beside them, or two have no memory. One that is given twice is one.
bool share_memory(const Leaves& leaves, const std::vector<HeldTensor>& held) {
  Leaves tensors;
  std::copy_if(leaves.begin(), leaves.end(), std::back_inserter(tensors), THPVariable_Check);
  std::sort(tensors.begin(), tensors.end());
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  c10::SmallVector<int64_t, 16> storages;
  for (PyObject* tensor : tensors) storages.push_back(address_of(THPVariable_Unpack(tensor)));
  std::sort(storages.begin(), storages.end());
  return std::adjacent_find(storages.begin(), storages.end()) != storages.end() ||
         std::any_of(held.begin(), held.end(), [&](const HeldTensor& one) {
           return std::binary_search(storages.begin(), storages.end(), address_of(one.tensor()));
         });
}

// One executable and the calls that it is for.
class Entry {
 public:
  Entry(const py::tuple& args, const py::dict& kwargs, bool dynamic, const py::dict& facts)
      : modes_(ModeState::current()), form_(CallForm::read(args, kwargs, dynamic)) {
    std::vector<std::string> names;
    for (const auto& [name, leaf, dim] :
         py::cast<std::vector<std::tuple<std::string, size_t, int64_t>>>(facts["symbols"])) {
      names.push_back(name);
      symbols_.push_back({leaf, dim});
    }
    for (const auto& [leaf, dim, size] :
         py::cast<std::vector<std::tuple<size_t, int64_t, int64_t>>>(facts["fixed_sizes"]))
      fixed_sizes_.push_back({leaf, dim, size});
    for (const auto& [leaf, number] :
         py::cast<std::vector<std::pair<size_t, py::object>>>(facts["fixed_numbers"]))
      fixed_numbers_.push_back({leaf, number});
    for (const auto& text : py::cast<std::vector<std::string>>(facts["guards"]))
      guards_.emplace_back(SymExpr::parse(text), [&names](std::string_view name) {
        const auto found = std::find(names.begin(), names.end(), name);
        MLCC_CHECK(found != names.end(), "guard: no value for ", name);
        return static_cast<int32_t>(found - names.begin());
      });
    read_held(facts);
    read_program(facts);
  }

  // Whether the form finds the very leaves of this call that torch's pytree found.
  bool finds(const py::tuple& args, const py::dict& kwargs, const py::list& expected) const {
    Leaves leaves;
    if (!form_.matches(args.ptr(), kwargs.ptr(), leaves)) return false;
    if (leaves.size() != expected.size()) return false;
    for (size_t i = 0; i < leaves.size(); ++i)
      if (leaves[i] != PyList_GET_ITEM(expected.ptr(), static_cast<Py_ssize_t>(i))) return false;
    return true;
  }

  // Whether the entry is for this call. Appends the leaves.
  bool matches(const ModeState& modes, const py::tuple& args, const py::dict& kwargs,
               Leaves& leaves) const {
    if (!(modes == modes_) || !form_.matches(args.ptr(), kwargs.ptr(), leaves)) return false;
    if (writes_ && share_memory(leaves, tensors_)) return false;
    for (const FixedSize& fixed : fixed_sizes_)
      if (THPVariable_Unpack(leaves[fixed.leaf]).size(fixed.dim) != fixed.size) return false;
    for (const auto& [leaf, number] : fixed_numbers_)
      if (!is_same_constant(leaves[leaf], number.ptr())) return false;
    if (!guards_hold(leaves)) return false;
    for (const HeldDict& held : objects_)
      if (!held.is_unchanged()) return false;
    for (const HeldNames& held : names_)
      if (!held.is_unchanged()) return false;
    for (const HeldContainer& held : containers_)
      if (!held.is_unchanged()) return false;
    for (const HeldCell& held : cells_)
      if (!held.is_unchanged()) return false;
    for (const HeldDefaults& held : defaults_)
      if (!held.is_unchanged()) return false;
    for (const HeldTensor& held : tensors_)
      if (!held.is_unchanged()) return false;
    return true;
  }

  py::object run(const Leaves& leaves) const {
    std::vector<c10::IValue> inputs;
    inputs.reserve(tensors_.size() + inputs_.size());
    for (size_t i = 0; i < num_parameters_; ++i) inputs.emplace_back(tensors_[i].tensor());
    for (size_t place : inputs_) {
      PyObject* leaf = leaves[place];
      if (PyFloat_CheckExact(leaf))  // a number of the graph
        inputs.emplace_back(at::scalar_tensor(PyFloat_AS_DOUBLE(leaf), at::kDouble));
      else
        inputs.push_back(to_ivalue(leaf, static_cast<Py_ssize_t>(place)));
    }
    std::vector<torch::autograd::Edge> edges;
    if (gradient_) edges = gradient_edges(inputs);
    for (size_t i = num_parameters_; i < tensors_.size(); ++i)
      inputs.emplace_back(tensors_[i].tensor());
    // Who drops the last reference of C++ to a tensor of Python takes the GIL.
    const std::vector<c10::IValue> held = inputs;
    std::vector<c10::IValue> outputs;
    {
      const WithoutGil no_gil;
      outputs = program_->run(std::move(inputs));
    }
    if (gradient_) gradient_->attach(std::move(edges), outputs);
    return result(outputs);
  }

  int traverse(visitproc visit, void* arg) const {
    for (const HeldDict& held : objects_) {
      Py_VISIT(held.dict.ptr());
      for (const py::object& value : held.values) Py_VISIT(value.ptr());
    }
    for (const HeldNames& held : names_) {
      Py_VISIT(held.dict.ptr());
      for (const auto& [name, value] : held.values) Py_VISIT(value.ptr());
    }
    for (const HeldContainer& held : containers_) {
      Py_VISIT(held.container.ptr());
      for (const HeldContainer::Item& item : held.items) Py_VISIT(item.value.ptr());
    }
    for (const HeldCell& held : cells_) {
      Py_VISIT(held.cell.ptr());
      Py_VISIT(held.value.ptr());
    }
    for (const HeldDefaults& held : defaults_) {
      Py_VISIT(held.function.ptr());
      Py_VISIT(held.positional.ptr());
      Py_VISIT(held.named.ptr());
    }
    for (const auto& [place, constant] : outputs_) Py_VISIT(constant.ptr());
    Py_VISIT(nesting_.ptr());
    Py_VISIT(restore_.ptr());
    return form_.traverse(visit, arg);
  }

 private:
  using Output =
      std::pair<int64_t, py::object>;  // place among the executable's outputs, or constant

  void read_held(const py::dict& facts) {
    for (py::handle row : facts["objects"]) {
      const auto [dict, values] = py::cast<std::pair<py::dict, std::vector<py::object>>>(row);
      objects_.push_back({dict, values});
    }
    read_names(facts["plain"], {.by_identity = false, .sized = true});
    read_names(facts["identical"], {.by_identity = true, .sized = true});
    read_names(facts["globals"], {.by_identity = false, .sized = false});
    for (py::handle row : facts["absent"]) {
      auto [dict, names] = py::cast<std::pair<py::dict, std::vector<py::object>>>(row);
      HeldNames held{std::move(dict), {}, true, std::nullopt};
      for (py::object& name : names) held.values.emplace_back(std::move(name), py::object());
      names_.push_back(std::move(held));
    }
    for (py::handle row : facts["containers"]) {
      auto [container, items] =
          py::cast<std::pair<py::object, std::vector<std::pair<py::object, bool>>>>(row);
      HeldContainer held{std::move(container), {}};
      for (auto& [value, is_plain] : items) held.items.push_back({std::move(value), is_plain});
      containers_.push_back(std::move(held));
    }
    for (py::handle row : facts["cells"]) {
      auto [cell, value] = py::cast<std::pair<py::object, py::object>>(row);
      MLCC_CHECK(PyCell_Check(cell.ptr()), "no closure variable");
      cells_.push_back({std::move(cell), std::move(value)});
    }
    for (py::handle row : facts["defaults"]) {
      auto [function, positional, named] =
          py::cast<std::tuple<py::object, py::object, py::object>>(row);
      MLCC_CHECK(PyFunction_Check(function.ptr()), "no function");
      defaults_.push_back({std::move(function), std::move(positional), std::move(named)});
    }
  }

  struct Comparison {
    bool by_identity, sized;
  };

  void read_names(const py::object& rows, Comparison comparison) {
    for (py::handle row : rows) {
      const auto [dict, names, values] =
          py::cast<std::tuple<py::dict, std::vector<py::object>, std::vector<py::object>>>(row);
      HeldNames held{dict, {}, comparison.by_identity, std::nullopt};
      if (comparison.sized) held.size = PyDict_GET_SIZE(dict.ptr());
      for (size_t i = 0; i < names.size(); ++i) held.values.emplace_back(names[i], values[i]);
      names_.push_back(std::move(held));
    }
  }

  void read_program(const py::dict& facts) {
    const auto hold = [&](const char* name) {
      for (py::handle tensor : facts[name])
        tensors_.emplace_back(py::reinterpret_borrow<py::object>(tensor));
    };
    hold("parameters");
    num_parameters_ = tensors_.size();
    hold("constants");
    inputs_ = py::cast<std::vector<size_t>>(facts["inputs"]);
    writes_ = py::cast<bool>(facts["writes"]);
    outputs_ = py::cast<std::vector<Output>>(facts["outputs"]);
    nesting_ = facts["nesting"];
    restore_ = facts["restore"];
    program_ = py::cast<const ExecutableObject&>(facts["executable"]).program;
    const py::object gradient = facts["gradient"];
    if (!gradient.is_none()) gradient_ = std::make_shared<Gradient>(py::cast<py::dict>(gradient));
  }

  // Under the GIL, as all of a look-up is.
  bool guards_hold(const Leaves& leaves) const {
    if (guards_.empty()) return true;
    c10::SmallVector<int64_t, 16> values;
    try {
      for (const SymbolSource& symbol : symbols_) values.push_back(symbol.value(leaves));
      if (values == last_held_) return true;
      for (const runtime::SizeExpr& guard : guards_)
        if (guard.evaluate(values) != 1) return false;
    } catch (const Error&) {  // a divisor that is no longer positive, a size out of range
      return false;
    }
    last_held_ = std::move(values);
    return true;
  }

  py::object result(const std::vector<c10::IValue>& outputs) const {
    std::vector<py::object> values;
    values.reserve(outputs_.size());
    for (const auto& [place, constant] : outputs_)
      values.push_back(place >= 0 ? from_ivalue(outputs[static_cast<size_t>(place)]) : constant);
    return nesting_.is_none() ? restore_(py::cast(values)) : filled(nesting_, values);
  }

  ModeState modes_;
  CallForm form_;
  std::vector<SymbolSource> symbols_;
  std::vector<FixedSize> fixed_sizes_;
  std::vector<std::pair<size_t, py::object>> fixed_numbers_;  // leaves, which are ints or floats
  std::vector<runtime::SizeExpr> guards_;            // of symbols_; each is 1 where the trace holds
  mutable c10::SmallVector<int64_t, 16> last_held_;  // values of symbols_ for which they did
  std::vector<HeldDict> objects_;
  std::vector<HeldNames> names_;
  std::vector<HeldContainer> containers_;
  std::vector<HeldCell> cells_;
  std::vector<HeldDefaults> defaults_;
  std::vector<HeldTensor> tensors_;  // parameters, then constants
  size_t num_parameters_ = 0;
  std::vector<size_t> inputs_;  // leaves, in the order of the executable's inputs
  bool writes_ = false;         // some of its inputs
  std::vector<Output> outputs_;
  py::object nesting_;  // of tuples, sizes, lists and dicts, with places in outputs_; or None
  py::object restore_;  // of a list of values: the function's result
  std::shared_ptr<const TensorProgram> program_;
  std::shared_ptr<const Gradient> gradient_;  // null where autograd does not follow the call
};

// Touched under the GIL only; a call keeps its entry alive while it runs without.
class CallDispatch {
 public:
  // False if the call's nesting is not what torch's pytree sees; it stays with Python then.
  bool add(const py::tuple& args, const py::dict& kwargs, const py::list& expected_leaves,
           bool dynamic, const py::dict& facts) {
    auto entry = std::make_shared<const Entry>(args, kwargs, dynamic, facts);
    // Guards read tensors at the leaves' places: a container that the form holds as a constant is
    // none.
    if (!entry->finds(args, kwargs, expected_leaves)) return false;
    Leaves leaves;
    if (!entry->matches(ModeState::current(), args, kwargs, leaves)) return false;
    entries_.insert(entries_.begin(), std::move(entry));
    return true;
  }

  // The function's result, or NotImplemented if no entry is for this call.
  py::object call(const py::tuple& args, const py::dict& kwargs) {
    if (is_under_modes()) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
    const ModeState modes = ModeState::current();
    for (size_t i = 0; i < entries_.size(); ++i) {
      const std::shared_ptr<const Entry> entry = entries_[i];  // comparing may run Python code
      Leaves leaves;
      if (!entry->matches(modes, args, kwargs, leaves)) continue;
      // What is called often comes forward.
      if (i > 0 && i < entries_.size()) std::swap(entries_[i], entries_[i - 1]);
      return entry->run(leaves);
    }
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  }

  int traverse(visitproc visit, void* arg) const {
    for (const auto& entry : entries_)
      if (const int result = entry->traverse(visit, arg)) return result;
    return 0;
  }

  void clear() {
    const std::vector<std::shared_ptr<const Entry>> dropped = std::move(entries_);
    entries_.clear();
  }

 private:
  std::vector<std::shared_ptr<const Entry>> entries_;
};

// Entries hold the module's dicts, which may hold what holds this.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!py::detail::is_holder_constructed(self)) return 0;
  return py::cast<CallDispatch&>(py::handle(self)).traverse(visit, arg);
}

int clear(PyObject* self) {
  py::cast<CallDispatch&>(py::handle(self)).clear();
  return 0;
}

// The call that was made is the call to look up: pybind11 would take it apart first.
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  auto& dispatch = *reinterpret_cast<py::detail::instance*>(self)
                        ->get_value_and_holder()
                        .value_ptr<CallDispatch>();
  try {
    const auto given = py::reinterpret_borrow<py::tuple>(args);
    const auto named = kwargs == nullptr ? py::dict() : py::reinterpret_borrow<py::dict>(kwargs);
    return with_torch_errors([&] { return dispatch.call(given, named); }).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

void set_up_type(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_call = call;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
}

}  // namespace

void bind_call_dispatch(py::module_& module) {
  py::class_<CallDispatch>(module, "CallDispatch", "Finds the executable for a call's arguments.",
                           py::custom_type_setup(set_up_type))
      .def(py::init<>())
      .def("add", &CallDispatch::add, py::arg("args"), py::arg("kwargs"), py::arg("leaves"),
           py::arg("dynamic"), py::arg("facts"),
           "Add an entry for calls like this one, with what mlcc.capture.jit says of it.");
}

}  // namespace mlcc::python
