#include "graph/call_alone.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/arguments.h"
#include "graph/effects.h"
#include "graph/index_map.h"
#include "graph/static_values.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

bool is_on_cpu(const Value& value) {
  return value.kind() == ValueKind::kTensor && value.type().device.kind == DeviceKind::kCpu;
}

bool is_plain(const Node& call) {
  if (call.op() != Op::kExtern || !is_pure(call)) return false;
  const ExternCall& facts = call.extern_call();
  return facts.regions.empty() && !has_symbols(facts) &&
         std::all_of(call.results().begin(), call.results().end(),
                     [](const auto& result) { return is_on_cpu(*result); }) &&
         std::all_of(call.operands().begin(), call.operands().end(),
                     [](const Value* operand) { return is_on_cpu(*operand); });
}

class Copier {
 public:
  explicit Copier(const Graph& from) : from_(from), into_(std::make_unique<Graph>("alone")) {}

  std::unique_ptr<Graph> copy(const Node& call) {
    std::vector<Value*> operands;
    for (Value* operand : call.operands()) {
      Value* input = input_for(operand);
      if (input == nullptr) return nullptr;
      operands.push_back(input);
    }
    std::vector<TensorType> types;
    for (const auto& result : call.results()) {
      TensorType& type = types.emplace_back(result->type());
      type.shape = renamed(type.shape);
      type.strides = renamed(type.strides);
    }
    for (const auto& [name, symbol] : names_)
      into_->add_size_input(symbol, SymExpr::symbol(symbol));
    into_->set_outputs(into_->extern_call(call.extern_call(), std::move(operands), types));
    return std::move(into_);
  }

 private:
  // As it lies in memory, and how the call sees that.
  Value* input_for(Value* operand) {
    Value*& input = inputs_[operand];
    if (input != nullptr) return input;
    const auto view = strided_view(operand);
    const Shape& shape = operand->type().shape;
    std::vector<int64_t> steps, order(shape.size());
    for (const SymExpr& stride : view->strides) steps.push_back(from_.expected(stride));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return steps[static_cast<size_t>(a)] > steps[static_cast<size_t>(b)];
    });
    Shape memory;
    int64_t least = 0;
    for (const int64_t place : order) {
      const auto dim = static_cast<size_t>(place);
      const bool is_repeated = view->strides[dim].equals_constant(0);
      memory.push_back(is_repeated ? SymExpr(1) : shape[dim]);
      if (!memory.back().equals_constant(1)) least = steps[dim];
    }
    if (least > 1) return nullptr;
    TensorType type{operand->type().dtype, renamed(memory), {}, {}};
    const std::string name = "x" + std::to_string(inputs_.size() - 1);
    input = into_->add_input(name, std::move(type), is_static_value(*operand));
    if (!std::is_sorted(order.begin(), order.end()))
      input = into_->permute(input, inverse_permutation(order));
    const Shape wanted = renamed(shape);
    if (!(input->type().shape == wanted)) input = into_->expand(input, wanted);
    return input;
  }

  Shape renamed(const Shape& sizes) {
    Shape found;
    for (const SymExpr& size : sizes)
      found.push_back(size.substitute([&](std::string_view name) -> std::optional<SymExpr> {
        return SymExpr::symbol(renamed(name));
      }));
    return found;
  }

  std::string renamed(std::string_view name) {
    for (const auto& [known, symbol] : names_)
      if (known == name) return symbol;
    const std::string symbol = "n" + std::to_string(names_.size());
    names_.emplace_back(name, symbol);
    SymRange range{0, kUnboundedHigh};
    for (const Symbol& one : from_.symbols())
      if (one.name == name) range = one.range;
    into_->add_symbol({symbol, range, from_.size_hint(name)});
    return symbol;
  }

  const Graph& from_;
  std::unique_ptr<Graph> into_;
  std::unordered_map<const Value*, Value*> inputs_;  // looked up only
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace

std::unique_ptr<Graph> call_alone(const Graph& graph, const Node& call) {
  if (!is_plain(call)) return nullptr;
  return Copier(graph).copy(call);
}

}  // namespace mlcc::graph
