#include "python/call/call_form.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace mlcc::python {
namespace {

namespace py = pybind11;

// The dimensions from the innermost one if the tensor is dense without being row-major and its
// sizes do not matter to that; else nothing.
std::vector<int64_t> dense_order(const at::Tensor& tensor) {
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) < tensor.stride(b); });
  int64_t expected = 1;
  for (int64_t dim : order) {
    if (tensor.size(dim) == 1 || tensor.stride(dim) != expected) return {};
    expected *= tensor.size(dim);
  }
  return order;
}

bool has_order(const at::Tensor& tensor, const std::vector<int64_t>& order) {
  int64_t expected = 1;
  for (int64_t dim : order) {
    if (tensor.size(dim) == 1 || tensor.stride(dim) != expected) return false;
    expected *= tensor.size(dim);
  }
  return true;
}

// Row-major; not an image or volume whose strides of dimensions of size 1 tell torch's kernels
// another memory format.
bool is_row_major(const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) return false;
  if (tensor.dim() != 4 && tensor.dim() != 5) return true;
  int64_t elements = 1;
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    if (tensor.stride(dim) != elements) return false;
    elements *= std::max<int64_t>(tensor.size(dim), 1);
  }
  return true;
}

// Attributes that Python code gave to it: a trace does not see them. Those of torch itself begin
// with an underscore.
bool has_attributes(PyObject* tensor) {
  PyObject** dict = _PyObject_GetDictPtr(tensor);
  if (dict == nullptr || *dict == nullptr) return false;
  Py_ssize_t iterator = 0;
  PyObject* name = nullptr;
  while (PyDict_Next(*dict, &iterator, &name, nullptr) != 0)
    if (PyUnicode_Check(name) && PyUnicode_READ_CHAR(name, 0) != '_') return true;
  return false;
}

bool is_parameter(PyObject* tensor) {
  return reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == ParameterClass;
}

// A number that may be a symbol of the trace. A NaN is none: to a symbol, it would be equal to
// itself. Nor is an infinity, a zero, whose sign no relation tells, or an int whose products may
// not fit in 64 bits.
bool is_symbol(PyObject* object) {
  if (PyFloat_CheckExact(object)) {
    const double number = PyFloat_AS_DOUBLE(object);
    return std::isfinite(number) && number != 0;
  }
  if (!PyLong_CheckExact(object)) return false;
  constexpr int64_t kLimit = int64_t{1} << 31;
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && number > -kLimit && number < kLimit;
}

// For each leaf that is a tensor which stands at an earlier place too, (the first such place, its
// own). Most calls have none.
std::vector<std::pair<size_t, size_t>> repeated_tensors(const Leaves& leaves) {
  c10::SmallVector<std::pair<PyObject*, size_t>, 16> tensors;
  for (size_t i = 0; i < leaves.size(); ++i)
    if (THPVariable_CheckExact(leaves[i])) tensors.emplace_back(leaves[i], i);
  std::sort(tensors.begin(), tensors.end());
  std::vector<std::pair<size_t, size_t>> repeated;
  for (size_t i = 1, first = 0; i < tensors.size(); ++i) {
    if (tensors[i].first != tensors[first].first)
      first = i;
    else
      repeated.emplace_back(tensors[first].second, tensors[i].second);
  }
  std::sort(repeated.begin(), repeated.end());
  return repeated;
}

bool has_same_items(PyObject* a, PyObject* b) {
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(a);
  if (count != PySequence_Fast_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!is_same_constant(PySequence_Fast_GET_ITEM(a, i), PySequence_Fast_GET_ITEM(b, i)))
      return false;
  return true;
}

// In the same order.
bool has_same_entries(PyObject* a, PyObject* b) {
  const Py_ssize_t size = PyDict_GET_SIZE(a);
  if (PyDict_GET_SIZE(b) != size) return false;
  Py_ssize_t at_a = 0, at_b = 0;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject *key_a = nullptr, *value_a = nullptr, *key_b = nullptr, *value_b = nullptr;
    if (PyDict_Next(a, &at_a, &key_a, &value_a) == 0 ||
        PyDict_Next(b, &at_b, &key_b, &value_b) == 0)
      return false;
    // A comparison may run Python code, which may write to the dicts.
    const py::object kept[] = {
        py::reinterpret_borrow<py::object>(key_a), py::reinterpret_borrow<py::object>(value_a),
        py::reinterpret_borrow<py::object>(key_b), py::reinterpret_borrow<py::object>(value_b)};
    if (!is_same_constant(key_a, key_b) || !is_same_constant(value_a, value_b) ||
        PyDict_GET_SIZE(a) != size || PyDict_GET_SIZE(b) != size)
      return false;
  }
  return true;
}

}  // namespace

bool is_same_constant(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    const double x = PyFloat_AS_DOUBLE(a);
    const double y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyComplex_CheckExact(a)) {
    const Py_complex x = PyComplex_AsCComplex(a);
    const Py_complex y = PyComplex_AsCComplex(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyTuple_CheckExact(a) || PyList_CheckExact(a)) return has_same_items(a, b);
  if (PyDict_CheckExact(a)) return has_same_entries(a, b);
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) throw py::error_already_set();
  return equal == 1;
}

ModeState ModeState::current() {
  const auto autocast = [](at::DeviceType device) {
    return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                     : at::ScalarType::Undefined;
  };
  return {.grad = at::GradMode::is_enabled(),
          .inference = c10::InferenceMode::is_enabled(),
          .deterministic = at::globalContext().deterministicAlgorithms(),
          .cpu_autocast = autocast(at::kCPU),
          .cuda_autocast = autocast(at::kCUDA),
          .default_dtype = c10::get_default_dtype().toScalarType(),
          .multiplies_in_bf16 = at::globalContext().float32Precision(at::Float32Backend::MKLDNN,
                                                                     at::Float32Op::MATMUL) ==
                                at::Float32Precision::BF16};
}

bool is_under_modes() {
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
         at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         c10::impl::tls_is_dispatch_key_included(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

// -- tensors

CallForm::TensorForm CallForm::form_of(PyObject* object, bool dynamic) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  TensorForm form{.is_parameter = is_parameter(object),
                  .keys = tensor.key_set().raw_repr(),
                  .dtype = tensor.scalar_type(),
                  .device = tensor.device(),
                  .rank = tensor.dim(),
                  .requires_grad = tensor.requires_grad(),
                  .layout = Layout::kExact,
                  .order = {},
                  .sizes = {},
                  .strides = {}};
  if (dynamic && is_row_major(tensor)) {
    form.layout = Layout::kContiguous;
    return form;
  }
  if (dynamic && !tensor.is_contiguous()) form.order = dense_order(tensor);
  if (!form.order.empty()) {
    form.layout = Layout::kPermuted;
    return form;
  }
  form.sizes = tensor.sizes().vec();
  form.strides = tensor.strides().vec();
  return form;
}

bool CallForm::TensorForm::matches(PyObject* object) const {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (mlcc::python::is_parameter(object) != is_parameter || tensor.key_set().raw_repr() != keys ||
      tensor.scalar_type() != dtype || tensor.dim() != rank || tensor.device() != device ||
      tensor.requires_grad() != requires_grad)
    return false;
  if (layout == Layout::kContiguous) return is_row_major(tensor);
  if (layout == Layout::kPermuted) return !tensor.is_contiguous() && has_order(tensor, order);
  return tensor.sizes() == sizes && tensor.strides() == strides;
}

// -- reading a call

CallForm CallForm::read(const py::tuple& args, const py::dict& kwargs, bool dynamic) {
  CallForm form;
  form.add_items(args.ptr(), Kind::kTuple, dynamic);
  form.add_dict(kwargs.ptr(), dynamic);
  Leaves leaves;
  if (form.match_items(args.ptr(), kwargs.ptr(), leaves)) form.repeated_ = repeated_tensors(leaves);
  return form;
}

void CallForm::add(PyObject* object, bool dynamic) {
  if (PyTuple_CheckExact(object)) return add_items(object, Kind::kTuple, dynamic);
  if (PyList_CheckExact(object)) return add_items(object, Kind::kList, dynamic);
  if (PyDict_CheckExact(object)) return add_dict(object, dynamic);
  Item item{.kind = Kind::kConstant, .value = {}, .tensor = {}};
  if (THPVariable_CheckExact(object)) {
    item.kind = Kind::kTensor;
    item.tensor.push_back(form_of(object, dynamic));
  } else if (dynamic && is_symbol(object)) {
    item.kind = Kind::kSymbol;
    item.value = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  } else {
    item.value = py::reinterpret_borrow<py::object>(object);
  }
  items_.push_back(std::move(item));
}

void CallForm::add_items(PyObject* sequence, Kind kind, bool dynamic) {
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence));
  items_.push_back({.kind = kind, .count = count, .value = {}, .tensor = {}});
  for (size_t i = 0; i < count; ++i)
    add(PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(i)), dynamic);
}

void CallForm::add_dict(PyObject* dict, bool dynamic) {
  const size_t place = items_.size();
  items_.push_back({.kind = Kind::kDict, .value = {}, .tensor = {}});
  py::list keys;
  for (auto [key, value] : py::reinterpret_borrow<py::dict>(dict)) {
    keys.append(key);
    add(value.ptr(), dynamic);
  }
  items_[place].count = keys.size();
  items_[place].value = py::tuple(keys);
}

// -- matching

bool CallForm::matches(PyObject* args, PyObject* kwargs, Leaves& leaves) const {
  // The trace had one fake for each object.
  return match_items(args, kwargs, leaves) && repeated_tensors(leaves) == repeated_;
}

bool CallForm::match_items(PyObject* args, PyObject* kwargs, Leaves& leaves) const {
  size_t position = 0;
  return match_item(position, args, leaves) && match_item(position, kwargs, leaves);
}

int CallForm::traverse(visitproc visit, void* arg) const {
  for (const Item& item : items_) Py_VISIT(item.value.ptr());
  return 0;
}

bool CallForm::match_item(size_t& position, PyObject* object, Leaves& leaves) const {
  const Item& item = items_[position++];
  switch (item.kind) {
  case Kind::kTensor:
    if (!THPVariable_CheckExact(object) || has_attributes(object) ||
        !item.tensor[0].matches(object))
      return false;
    leaves.push_back(object);
    return true;
  case Kind::kSymbol:
    leaves.push_back(object);
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == item.value.ptr() && is_symbol(object);
  case Kind::kConstant: leaves.push_back(object); return is_same_constant(item.value.ptr(), object);
  case Kind::kTuple:
  case Kind::kList: {
    const bool is_tuple = item.kind == Kind::kTuple;
    if (is_tuple ? !PyTuple_CheckExact(object) : !PyList_CheckExact(object)) return false;
    if (static_cast<size_t>(PySequence_Fast_GET_SIZE(object)) != item.count) return false;
    for (size_t i = 0; i < item.count; ++i)
      if (!match_item(position, PySequence_Fast_GET_ITEM(object, static_cast<Py_ssize_t>(i)),
                      leaves))
        return false;
    return true;
  }
  case Kind::kDict: {
    if (!PyDict_CheckExact(object) || static_cast<size_t>(PyDict_GET_SIZE(object)) != item.count)
      return false;
    Py_ssize_t iterator = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t i = 0; PyDict_Next(object, &iterator, &key, &value) != 0; ++i)
      if (!is_same_constant(PyTuple_GET_ITEM(item.value.ptr(), i), key) ||
          !match_item(position, value, leaves))
        return false;
    return true;
  }
  }
  return false;
}

}  // namespace mlcc::python
