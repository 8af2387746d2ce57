#include "python/run/made_up_call.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>
#include <vector>

#include "python/run/ivalues.h"
#include "python/run/torch_host.h"
#include "python/tensors/tensor_allocator.h"
#include "runtime/trial.h"

namespace mlcc::python {
namespace {

// What somebody has switched on around the compilation: fake tensors, functionalization,
// transforms.
constexpr c10::DispatchKeySet kModes({
    c10::DispatchKey::Python,
    c10::DispatchKey::PythonTLSSnapshot,
    c10::DispatchKey::PythonDispatcher,
    c10::DispatchKey::PreDispatch,
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
    c10::DispatchKey::FuncTorchDynamicLayerBackMode,
    c10::DispatchKey::FuncTorchVmapMode,
    c10::DispatchKey::VmapMode,
});

at::Tensor made_up(const runtime::TensorSpec& spec,
                   const std::function<int64_t(std::string_view)>& size_of) {
  std::vector<int64_t> shape, strides;
  for (const SymExpr& size : spec.shape) shape.push_back(size.evaluate(size_of));
  for (const SymExpr& stride : spec.strides) strides.push_back(stride.evaluate(size_of));
  at::Tensor tensor = empty_strided(shape, strides, to_torch(spec.dtype), c10::kCPU);
  runtime::make_up(tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes()), spec.dtype);
  return tensor;
}

}  // namespace

std::function<void()> made_up_call(std::shared_ptr<const runtime::Executable> executable,
                                   const std::function<int64_t(std::string_view)>& size_of) {
  std::vector<c10::IValue> inputs;
  for (size_t i = 0; i < executable->num_given_inputs(); ++i) {
    const runtime::InputSpec& input = executable->plan().inputs[i];
    inputs.push_back(input.is_size ? c10::IValue(input.size.evaluate(size_of))
                                   : c10::IValue(made_up(input.spec, size_of)));
  }
  const auto program = std::make_shared<const TensorProgram>(std::move(executable));
  return [program, inputs = std::move(inputs)] {
    const c10::impl::ExcludeDispatchKeyGuard no_modes(kModes);
    const at::DisableRecordFunctionGuard no_profiler;
    program->run(inputs);
  };
}

}  // namespace mlcc::python
