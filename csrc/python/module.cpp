// mlcc._C: the compiled core as Python sees it.
#include <pybind11/pybind11.h>

#include "graph/graph.h"
#include "mlcc_build_id.h"
#include "python/build/graph_builder.h"
#include "python/call/call_dispatch.h"
#include "python/call/overlaps.h"
#include "python/process/device.h"
#include "python/process/errors.h"
#include "python/process/log_sink.h"
#include "python/process/options.h"
#include "python/process/parallel.h"
#include "python/process/without_gil.h"
#include "python/run/caches.h"
#include "python/run/executable_object.h"
#include "python/run/loop_kernel.h"
#include "python/run/package_file.h"
#include "python/tensors/file_weights.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

// Rows (op, arity, dtype rule, dtype domain, aten overloads) of the pointwise ops.
py::list op_table() {
  py::list rows;
  for (const graph::OpInfo& info : graph::all_ops()) {
    if (info.op_class != graph::OpClass::kPointwise || info.arity < 0) continue;
    rows.append(py::make_tuple(info.text, info.arity, graph::dtype_rule_name(info.rule),
                               graph::dtype_domain_name(info.domain), info.aten));
  }
  return rows;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The compiled core of mlcc.";
  register_error_translator();
  install_log_sink();
  install_fork_barrier();
  sync_log_levels();
  install_fork_handlers();
  find_exchange_table();
  bind_graph_builder(module);
  bind_executable(module);
  bind_caches(module);
  bind_call_dispatch(module);
  bind_device(module);
  bind_file_weights(module);
  bind_loop_kernel(module);
  bind_overlaps(module);
  bind_package_file(module);
  module.def("op_table", &op_table);
  module.def("option_table", &option_table);
  module.def("sync_log_levels", &sync_log_levels);
  module.def("version", [] { return MLCC_VERSION; });
  module.def("build_id", [] { return MLCC_BUILD_ID; });
  module.def("torch_version", [] { return MLCC_TORCH_VERSION; });
}

}  // namespace mlcc::python
