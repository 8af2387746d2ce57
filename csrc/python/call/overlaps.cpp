#include "python/call/overlaps.h"

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "python/tensors/stolen_weights.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

struct Extent {
  int64_t size;
  int64_t stride;  // in bytes
};

// Where a tensor's elements lie: the bytes from `begin` to `end`, in steps of its extents.
struct Footprint {
  intptr_t begin;
  intptr_t end;
  int64_t element_bytes;
  std::vector<Extent> extents;  // larger than 1; the largest stride first
  size_t argument;
};

// Nothing for what has no bytes of its own that could be told: no tensor, empty, sparse, a
// subclass.
std::optional<Footprint> footprint_of(py::handle value, size_t argument) {
  if (!THPVariable_Check(value.ptr())) return std::nullopt;
  const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
  const bool is_plain = tensor.layout() == at::kStrided && tensor.has_storage() &&
                        !tensor.is_nested() && !tensor.is_meta() &&
                        !tensor.key_set().has(c10::DispatchKey::Python);
  if (!is_plain || tensor.numel() == 0) return std::nullopt;
  const auto offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  Footprint footprint{.begin = static_cast<intptr_t>(address_of(tensor) + offset),
                      .end = 0,
                      .element_bytes = static_cast<int64_t>(tensor.element_size()),
                      .extents = {},
                      .argument = argument};
  footprint.end = footprint.begin + footprint.element_bytes;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const Extent extent{tensor.size(dim), tensor.stride(dim) * footprint.element_bytes};
    footprint.end += (extent.size - 1) * extent.stride;
    if (extent.size > 1) footprint.extents.push_back(extent);
  }
  std::sort(footprint.extents.begin(), footprint.extents.end(),
            [](const Extent& a, const Extent& b) { return a.stride > b.stride; });
  return footprint;
}

bool have_same_strides(const Footprint& a, const Footprint& b) {
  return a.element_bytes == b.element_bytes &&
         std::equal(a.extents.begin(), a.extents.end(), b.extents.begin(), b.extents.end(),
                    [](const Extent& x, const Extent& y) { return x.stride == y.stride; });
}

// Whether elements of both lie `distance` bytes or less than one element from it apart, by steps of
// the extents from `axis` on. A step more or less than the quotient is all that smaller strides,
// whose steps fill at most one larger stride, can make good.
bool can_meet(const Footprint& a, const Footprint& b, size_t axis, int64_t distance) {
  if (axis == a.extents.size()) return std::abs(distance) < a.element_bytes;
  const int64_t stride = a.extents[axis].stride;
  if (stride == 0) return can_meet(a, b, axis + 1, distance);
  const int64_t quotient = distance / stride;
  for (int64_t steps = quotient - 1; steps <= quotient + 1; ++steps) {
    // a's element lies `steps` behind b's along this axis.
    if (steps >= a.extents[axis].size || -steps >= b.extents[axis].size) continue;
    if (can_meet(a, b, axis + 1, distance - steps * stride)) return true;
  }
  return false;
}

// Whether each stride spans all that the smaller ones reach, as in views of a dense tensor.
bool is_nested(const Footprint& a) {
  int64_t reach = a.element_bytes;
  for (auto extent = a.extents.rbegin(); extent != a.extents.rend(); ++extent) {
    if (extent->stride < reach) return false;
    reach = extent->stride * extent->size;
  }
  return true;
}

// True also where it cannot be told.
bool share_elements(const Footprint& a, const Footprint& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  if (!have_same_strides(a, b) || !is_nested(a) || !is_nested(b)) return true;
  return can_meet(a, b, 0, b.begin - a.begin);
}

// Whether one of the arguments at the places `written`, in order, shares elements with another one.
bool writes_overlap(const py::sequence& arguments, const std::vector<size_t>& written) {
  std::vector<Footprint> footprints;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (const auto footprint = footprint_of(arguments[i], i)) footprints.push_back(*footprint);
  std::sort(footprints.begin(), footprints.end(),
            [](const Footprint& a, const Footprint& b) { return a.begin < b.begin; });
  const auto is_written = [&](const Footprint& footprint) {
    return std::binary_search(written.begin(), written.end(), footprint.argument);
  };
  for (size_t i = 0; i < footprints.size(); ++i)
    for (size_t j = i + 1; j < footprints.size() && footprints[j].begin < footprints[i].end; ++j) {
      const bool concerns_writes = is_written(footprints[i]) || is_written(footprints[j]);
      if (concerns_writes && share_elements(footprints[i], footprints[j])) return true;
    }
  return false;
}

}  // namespace

void bind_overlaps(py::module_& module) {
  module.def(
      "writes_overlap", &writes_overlap, py::arg("arguments"), py::arg("written"),
      "Whether an argument at one of the places `written` (in order) may share elements with "
      "another one.");
}

}  // namespace mlcc::python
