#include "driver/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>

#include "driver/comparison.h"
#include "graph/text.h"
#include "loop/interpreter.h"
#include "loop/scalar_value.h"
#include "runtime/kernel.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

using graph::OpClass;
using graph::Value;

OpClass class_of(const fusion::Group& group) {
  return graph::op_info(group.nodes.front()->op()).op_class;
}

// Moves each float that is no whole number by one epsilon. Whole numbers are most often exact:
// counts, rounded values, zeros.
void perturb(HostTensor& tensor, uint64_t seed) {
  if (!is_float(tensor.dtype)) return;
  const auto size = static_cast<size_t>(dtype_size(tensor.dtype));
  const double step = epsilon(tensor.dtype);
  uint64_t state = seed;
  for (size_t at = 0; at + size <= tensor.bytes.size(); at += size) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    uint64_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + at, size);
    const double value = loop::decode_float(tensor.dtype, bits);
    if (!std::isfinite(value) || value == std::floor(value)) continue;
    const bool up = (state >> 63U) != 0;
    bits = loop::encode_float(tensor.dtype, value * (up ? 1 + step : 1 - step));
    std::memcpy(tensor.bytes.data() + at, &bits, size);
  }
}

bool is_computed_float(const Value* value) {
  const graph::Node* node = value->producer();
  if (node == nullptr || !is_float(value->type().dtype) || node->op() == graph::Op::kCast)
    return false;
  const OpClass op_class = graph::op_info(node->op()).op_class;
  return op_class == OpClass::kPointwise || op_class == OpClass::kReduction;
}

bool compares_computed_floats(const graph::Node& node) {
  const bool is_equality = node.op() == graph::Op::kEq || node.op() == graph::Op::kNe;
  return is_equality && std::any_of(node.operands().begin(), node.operands().end(),
                                    [](const Value* v) { return is_computed_float(v); });
}

int64_t count(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

}  // namespace

std::shared_ptr<const NodeByNode> run_node_by_node(std::shared_ptr<const graph::Graph> graph) {
  fusion::FusionOptions options;
  options.fuse = false;
  fusion::FusionPlan plan = fusion::plan_fusion(*graph, options);
  return std::make_shared<const NodeByNode>(NodeByNode{std::move(graph), std::move(plan)});
}

Reference::Reference(std::shared_ptr<const NodeByNode> nodes, const fusion::Group& group)
    : nodes_(std::move(nodes)), outputs_(group.outputs) {
  add_steps(group);
  find_symbols();
}

// Backwards from the results to what the group reads.
void Reference::add_steps(const fusion::Group& group) {
  const fusion::FusionPlan& plan = nodes_->plan;
  const std::set<const Value*> given(group.inputs.begin(), group.inputs.end());
  std::set<const Value*> read;
  std::set<int> needed;
  std::vector<Value*> wanted = outputs_;
  while (!wanted.empty()) {
    const Value* value = wanted.back();
    wanted.pop_back();
    const int index = plan.group_of.at(value->producer());
    if (!needed.insert(index).second) continue;
    for (Value* input : plan.groups[static_cast<size_t>(index)].inputs) {
      if (!given.contains(input))
        wanted.push_back(input);
      else if (read.insert(input).second)
        inputs_.push_back(input);
    }
  }
  for (const fusion::Unit& unit : plan.order)
    if (needed.contains(unit.group)) add_step(plan.groups[static_cast<size_t>(unit.group)]);
}

void Reference::add_step(const fusion::Group& group) {
  const OpClass op_class = class_of(group);
  const bool copies = op_class == OpClass::kIndexMap || op_class == OpClass::kGather ||
                      op_class == OpClass::kCreation;
  const bool accumulates = op_class == OpClass::kReduction || op_class == OpClass::kUpdate ||
                           op_class == OpClass::kScan || op_class == OpClass::kContraction ||
                           op_class == OpClass::kAttention;
  auto arena = std::make_unique<loop::Arena>();
  lower::LoweredKernel lowered =
      lower::lower_group(*nodes_->graph, nodes_->plan, group, {}, *arena);
  for (const Value* value : group.outputs)
    rounds_to_16_bits_ |= is_float(value->type().dtype) && dtype_size(value->type().dtype) == 2;
  for (const graph::Node* node : group.nodes) compares_computed_ |= compares_computed_floats(*node);
  steps_.push_back({&group, accumulates, copies, std::move(arena), std::move(lowered)});
}

void Reference::find_symbols() {
  std::set<std::string> names;
  const auto add = [&](const std::vector<SymExpr>& all) {
    for (const SymExpr& expr : all)
      for (const std::string& name : expr.symbols()) names.insert(name);
  };
  const auto add_value = [&](const Value* value) {
    add(value->type().shape);
    add(value->type().dense_or_strides());
  };
  for (const Value* input : inputs_) add_value(input);
  for (const Step& step : steps_) {
    for (const Value* output : step.group->outputs) add_value(output);
    add(step.group->domain);
    add(step.lowered.sizes);
    for (const lower::Scratch& scratch : step.lowered.scratch) add({scratch.elements});
  }
  symbols_.assign(names.begin(), names.end());
}

int64_t Reference::evaluate(const SymExpr& expr, std::span<const int64_t> sizes) const {
  return expr.evaluate([&](std::string_view name) {
    const auto found = std::lower_bound(symbols_.begin(), symbols_.end(), name);
    return sizes[static_cast<size_t>(found - symbols_.begin())];
  });
}

std::vector<int64_t> Reference::evaluate(const std::vector<SymExpr>& all,
                                         std::span<const int64_t> sizes) const {
  std::vector<int64_t> values;
  for (const SymExpr& expr : all) values.push_back(evaluate(expr, sizes));
  return values;
}

int64_t Reference::num_terms(std::span<const int64_t> sizes) const {
  int64_t most = 1;
  for (const Step& step : steps_) {
    if (!step.accumulates) continue;
    const OpClass op_class = class_of(*step.group);
    const bool is_reduced = op_class == OpClass::kReduction || op_class == OpClass::kContraction ||
                            op_class == OpClass::kAttention;
    int64_t terms = 1;
    for (size_t d = 0; d < step.group->domain.size(); ++d)
      if (!is_reduced || step.group->reduced[d]) terms *= evaluate(step.group->domain[d], sizes);
    most = std::max(most, terms);
  }
  return most;
}

int64_t Reference::num_elements(std::span<const int64_t> sizes) const {
  int64_t sum = 0;
  for (const Step& step : steps_) sum += count(evaluate(step.group->domain, sizes));
  return sum;
}

bool Reference::has_negative_extent(std::span<const int64_t> sizes) const {
  const auto is_negative = [&](const Value* value) {
    const std::vector<int64_t> shape = evaluate(value->type().shape, sizes);
    const std::vector<int64_t> strides = evaluate(value->type().dense_or_strides(), sizes);
    int64_t extent = 1;
    for (size_t d = 0; d < shape.size(); ++d) extent += (shape[d] - 1) * strides[d];
    return extent < 0;
  };
  return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
    const std::vector<Value*>& values = step.lowered.buffers;
    return std::any_of(values.begin(), values.end(), is_negative);
  });
}

std::string Reference::graph_text() const { return graph::print(*nodes_->graph); }

class Reference::Run {
 public:
  Run(const Reference& reference, std::span<const int64_t> sizes, uint64_t rounding)
      : reference_(reference), sizes_(sizes), rounding_(rounding) {}

  ReferenceRun operator()(std::span<const HostTensor> inputs) {
    const std::set<const Value*> accumulated = find_accumulated();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Value* value = reference_.inputs_[i];
      HostTensor& tensor = tensors_[value] = inputs[i];
      if (rounding_ != 0 && accumulated.contains(value)) perturb(tensor, next_seed());
    }
    ReferenceRun result;
    for (const Step& step : reference_.steps_) {
      result.failed_check = run_step(step);
      if (result.failed_check) return result;
    }
    for (const Value* output : reference_.outputs_)
      result.outputs.push_back(std::move(tensors_.at(output)));
    return result;
  }

 private:
  uint64_t next_seed() { return rounding_ * 1000003U + ++num_seeds_; }

  std::set<const Value*> find_accumulated() const {
    std::set<const Value*> found;
    for (const Step& step : reference_.steps_)
      if (step.accumulates)
        for (const Value* input : step.group->inputs) found.insert(input);
    return found;
  }

  std::optional<std::string> run_step(const Step& step) {
    const lower::LoweredKernel& lowered = step.lowered;
    for (const Value* output : step.group->outputs)
      tensors_[output] =
          make_host_tensor(output->type().dtype, reference_.evaluate(output->type().shape, sizes_),
                           reference_.evaluate(output->type().dense_or_strides(), sizes_));
    std::vector<void*> buffers;
    for (const Value* value : lowered.buffers) buffers.push_back(tensors_.at(value).bytes.data());
    std::vector<HostTensor> scratch;
    for (const lower::Scratch& one : lowered.scratch)
      scratch.push_back(
          make_host_tensor(one.dtype, {reference_.evaluate(one.elements, sizes_)}, {1}));
    for (HostTensor& one : scratch) buffers.push_back(one.bytes.data());
    static constexpr int64_t kPartials = 4;  // that a sum is cut into, for another order of terms
    loop::InterpreterOptions options;
    options.seed = rounding_;
    options.partials = rounding_ == 0 ? 1 : kPartials;
    options.has_inexact_functions = rounding_ != 0;
    loop::CheckDetails details{};
    const int64_t code = loop::interpret(lowered.kernel, reference_.evaluate(lowered.sizes, sizes_),
                                         buffers, options, &details);
    for (const loop::ErrorText& error : lowered.kernel.errors)
      if (code == error.code) return error.exception + ": " + runtime::fill_in(error.text, details);
    if (rounding_ != 0 && !step.copies)
      for (const Value* output : step.group->outputs) perturb(tensors_.at(output), next_seed());
    return std::nullopt;
  }

  const Reference& reference_;
  const std::span<const int64_t> sizes_;
  const uint64_t rounding_;
  uint64_t num_seeds_ = 0;
  std::unordered_map<const Value*, HostTensor> tensors_;
};

ReferenceRun Reference::run(std::span<const HostTensor> inputs, std::span<const int64_t> sizes,
                            uint64_t rounding) const {
  return Run(*this, sizes, rounding)(inputs);
}

}  // namespace mlcc::driver
