// Runs a graph by the loop IR's reference interpreter: the judge of graph passes, fusion and
// lowering, without torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace mlcc::driver {

// A tensor in host memory; `bytes` spans its storage (from the first element, by its strides).
struct HostTensor {
  DType dtype;
  std::vector<int64_t> shape, strides;
  std::vector<char> bytes;
};

HostTensor make_host_tensor(DType dtype, std::vector<int64_t> shape,
                            std::vector<int64_t> strides);  // zeros
// From the first element to behind the last one; 0 if there are none.
int64_t spanned_bytes(const HostTensor& tensor);

struct InterpretOptions {
  bool fuse = false;  // one kernel per node (the reference), or the groups that would be compiled
  uint64_t seed = 0;  // order of iterations, see loop/interpreter.h
  int64_t partials = 1;
  int64_t vector_bits = 512;  // what schedules are made for
};

// Tensor inputs in order; symbols get their values from the inputs' sizes and from `sizes`. Outputs
// are dense copies. Throws Error for extern nodes and for a failed check.
std::vector<HostTensor> interpret_graph(const graph::Graph& graph,
                                        const std::vector<HostTensor>& inputs,
                                        const std::map<std::string, int64_t>& sizes,
                                        const InterpretOptions& options);

}  // namespace mlcc::driver
