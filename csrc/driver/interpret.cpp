#include "driver/interpret.h"

#include <cstring>
#include <unordered_map>

#include "fusion/fusion.h"
#include "graph/strided_view.h"
#include "loop/interpreter.h"
#include "lower/lower.h"
#include "runtime/kernel.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

using graph::Value;

class GraphInterpreter {
 public:
  GraphInterpreter(const graph::Graph& graph, const InterpretOptions& options,
                   const std::map<std::string, int64_t>& sizes)
      : graph_(graph), options_(options), sizes_(sizes) {}

  std::vector<HostTensor> run(const std::vector<HostTensor>& inputs) {
    size_t next = 0;
    for (const auto& input : graph_.inputs()) {
      if (input->kind() == graph::ValueKind::kSize) continue;
      MLCC_USER_CHECK(next < inputs.size(), "graph ", graph_.name(),
                      ": too few inputs: ", inputs.size());
      bind(*input, inputs[next]);
      tensors_[input.get()] = inputs[next++];
    }
    fusion::FusionOptions fusion_options;
    fusion_options.fuse = options_.fuse;
    const fusion::FusionPlan plan = fusion::plan_fusion(graph_, fusion_options);
    for (const fusion::Unit& unit : plan.order) {
      MLCC_USER_CHECK(unit.group >= 0,
                      "the interpreter has no extern calls: ", unit.node->extern_call().name);
      run_group(plan, plan.groups[unit.group]);
    }
    std::vector<HostTensor> outputs;
    for (Value* output : graph_.outputs())
      if (output->kind() == graph::ValueKind::kTensor) outputs.push_back(read(output));
    return outputs;
  }

 private:
  int64_t evaluate(const SymExpr& e) const {
    return e.evaluate([&](std::string_view name) {
      const auto found = sizes_.find(std::string(name));
      MLCC_USER_CHECK(found != sizes_.end(), "size ", name, " has no value");
      return found->second;
    });
  }

  std::vector<int64_t> evaluate(const std::vector<SymExpr>& all) const {
    std::vector<int64_t> values;
    for (const SymExpr& e : all) values.push_back(evaluate(e));
    return values;
  }

  void bind(const Value& input, const HostTensor& tensor) {
    const auto& shape = input.type().shape;
    MLCC_USER_CHECK(shape.size() == tensor.shape.size() && input.type().dtype == tensor.dtype,
                    "input ", input.name(), ": found another dtype or rank");
    for (size_t d = 0; d < shape.size(); ++d)
      if (const auto name = shape[d].as_symbol()) sizes_[*name] = tensor.shape[d];
  }

  void run_group(const fusion::FusionPlan& plan, const fusion::Group& group) {
    loop::Arena arena;
    const lower::LoweredKernel lowered =
        lower::lower_group(graph_, plan, group, {options_.vector_bits}, arena);
    for (const Value* output : group.outputs)
      tensors_[output] = make_host_tensor(output->type().dtype, evaluate(output->type().shape),
                                          evaluate(output->type().dense_or_strides()));
    std::vector<void*> buffers;
    for (const Value* value : lowered.buffers) buffers.push_back(tensors_.at(value).bytes.data());
    const std::vector<int64_t> sizes = evaluate(lowered.sizes);
    loop::InterpreterOptions options;
    options.seed = options_.seed;
    options.partials = options_.partials;
    loop::CheckDetails details;
    const int64_t code = loop::interpret(lowered.kernel, sizes, buffers, options, &details);
    for (const loop::ErrorText& error : lowered.kernel.errors)
      MLCC_USER_CHECK(code != error.code, error.exception, ": ",
                      runtime::fill_in(error.text, details));
  }

  // A dense copy of a value that is, or is a view of, a computed one.
  HostTensor read(Value* value) const {
    const auto view = graph::strided_view(value);
    const HostTensor& base = tensors_.at(view->base);
    const std::vector<int64_t> shape = evaluate(view->shape);
    const std::vector<int64_t> strides = evaluate(view->strides);
    std::vector<int64_t> dense(shape.size(), 1);
    int64_t count = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      dense[d] = count;
      count *= shape[d];
    }
    HostTensor result = make_host_tensor(base.dtype, shape, dense);
    const int64_t size = dtype_size(base.dtype);
    const int64_t offset = evaluate(view->offset);
    for (int64_t i = 0; i < count; ++i) {
      int64_t at = offset;
      for (size_t d = 0; d < shape.size(); ++d) at += i / dense[d] % shape[d] * strides[d];
      std::memcpy(result.bytes.data() + i * size, base.bytes.data() + at * size,
                  static_cast<size_t>(size));
    }
    return result;
  }

  const graph::Graph& graph_;
  const InterpretOptions& options_;
  std::map<std::string, int64_t> sizes_;
  std::unordered_map<const Value*, HostTensor> tensors_;
};

}  // namespace

int64_t spanned_bytes(const HostTensor& tensor) {
  int64_t elements = 1;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) return 0;
    elements += (tensor.shape[d] - 1) * tensor.strides[d];
  }
  return elements * dtype_size(tensor.dtype);
}

HostTensor make_host_tensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  HostTensor tensor{dtype, std::move(shape), std::move(strides), {}};
  static constexpr int64_t kAtLeast = 8;  // so that an empty tensor still has an address
  tensor.bytes.resize(static_cast<size_t>(spanned_bytes(tensor) + kAtLeast));
  return tensor;
}

std::vector<HostTensor> interpret_graph(const graph::Graph& graph,
                                        const std::vector<HostTensor>& inputs,
                                        const std::map<std::string, int64_t>& sizes,
                                        const InterpretOptions& options) {
  return GraphInterpreter(graph, options, sizes).run(inputs);
}

}  // namespace mlcc::driver
