// The structure of a Python call as mlcc.jit tells calls apart: nesting, and per leaf what its
// trace depends on. Sizes and numbers are not part of it where they are symbols of the trace.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace mlcc::python {

using Leaves = c10::SmallVector<PyObject*, 16>;  // borrowed, in the order of torch's pytree

// Modes that a trace depends on beside its arguments.
struct ModeState {
  bool grad;
  bool inference;
  bool deterministic;
  // Undefined where autocast is off.
  at::ScalarType cpu_autocast, cuda_autocast;
  at::ScalarType default_dtype;
  bool multiplies_in_bf16;  // torch.set_float32_matmul_precision("medium")
  static ModeState current();
  friend bool operator==(const ModeState&, const ModeState&) = default;
};

// Equal in type and value; floats, also those of complex numbers, bit by bit (0.0 is not -0.0).
bool is_same_constant(PyObject* a, PyObject* b);

// Whether someone watches or transforms the ops: a dispatch or function mode, a functorch level,
// forward-mode derivatives.
bool is_under_modes();

class CallForm {
 public:
  // Of the arguments of one call. With `dynamic` ints and floats are symbols, and so are the sizes
  // of dense tensors. What is neither a tensor nor a list, tuple or dict is a constant.
  static CallForm read(const pybind11::tuple& args, const pybind11::dict& kwargs, bool dynamic);

  // Whether a call has this form; appends its leaves. A tensor stands twice where it did in `read`.
  bool matches(PyObject* args, PyObject* kwargs, Leaves& leaves) const;

  // For Python's garbage collector: visits the objects that this holds.
  int traverse(visitproc visit, void* arg) const;

 private:
  enum class Kind : uint8_t { kTensor, kSymbol, kConstant, kTuple, kList, kDict };
  enum class Layout : uint8_t { kContiguous, kPermuted, kExact };

  struct TensorForm {
    bool is_parameter;  // torch.nn.Parameter, not torch.Tensor
    uint64_t keys;      // dispatch keys: device, layout, autograd, conj, neg, inference
    at::ScalarType dtype;
    c10::Device device;
    int64_t rank;
    bool requires_grad;
    Layout layout;
    std::vector<int64_t> order;           // dimensions from the innermost one, of kPermuted
    std::vector<int64_t> sizes, strides;  // of kExact
    bool matches(PyObject* object) const;
  };

  struct Item {
    Kind kind;
    size_t count = 0;        // children of a container, which follow
    pybind11::object value;  // of a constant; the type of a symbol; the keys of a dict, a tuple
    std::vector<TensorForm> tensor;  // one, of a tensor
  };

  void add(PyObject* object, bool dynamic);
  void add_items(PyObject* sequence, Kind kind, bool dynamic);
  void add_dict(PyObject* dict, bool dynamic);
  static TensorForm form_of(PyObject* object, bool dynamic);
  bool match_items(PyObject* args, PyObject* kwargs, Leaves& leaves) const;
  bool match_item(size_t& position, PyObject* object, Leaves& leaves) const;

  std::vector<Item> items_;                          // in preorder
  std::vector<std::pair<size_t, size_t>> repeated_;  // leaves that are one tensor
};

}  // namespace mlcc::python
