#include "driver/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "driver/kernels.h"
#include "graph/strided_view.h"
#include "support/error.h"

namespace mlcc::driver {

using graph::Node;
using graph::Value;
using graph::ValueKind;
using runtime::Slot;
using runtime::TensorSpec;

namespace {

TensorSpec spec_of(const Value& value) {
  const graph::TensorType& type = value.type();
  return {type.dtype, type.shape, type.dense_or_strides(), type.device};
}

class PlanBuilder {
 public:
  PlanBuilder(const graph::Graph& graph, const KernelPlan& plan, const CompiledRegions& regions)
      : graph_(graph), fusion_(plan.fusion), kernels_(plan.kernels), regions_(regions) {}

  runtime::ExecutablePlan build() {
    find_device();
    find_host_values();
    add_inputs();
    for (const fusion::Unit& unit : fusion_.order) {
      if (!unit.beside) flush_launches();
      if (unit.group >= 0)
        add_launch(fusion_.groups[unit.group], kernels_[unit.group], unit.in_turns);
      else
        add_extern(*unit.node);
    }
    flush_launches();
    for (Value* output : graph_.outputs()) plan_.outputs.push_back(output_slot(output));
    plan_.num_slots = next_slot_;
    add_releases();
    return std::move(plan_);
  }

 private:
  void find_device() {
    for (const fusion::Group& group : fusion_.groups) {
      if (group.device.kind == DeviceKind::kCpu || group.device == plan_.device) continue;
      MLCC_USER_CHECK(plan_.device.kind == DeviceKind::kCpu, "graph ", graph_.name(),
                      ": computes on ", plan_.device.str(), " and ", group.device.str(),
                      ", expected one of them");
      plan_.device = group.device;
    }
  }

  // Values that something other than a kernel sees must be tensors of the host; the rest may lie in
  // the arena.
  void find_host_values() {
    const auto mark = [&](Value* value) {
      if (value->kind() == ValueKind::kTensor)
        host_values_.insert(graph::strided_view(value)->base);
    };
    for (Value* output : graph_.outputs()) mark(output);
    for (const Node* node : graph_.nodes())
      if (node->op() == graph::Op::kExtern)
        for (Value* operand : node->operands()) mark(operand);
  }

  void add_inputs() {
    for (const auto& input : graph_.inputs()) {
      runtime::InputSpec spec;
      spec.is_size = input->kind() == ValueKind::kSize;
      if (spec.is_size)
        spec.size = input->size();
      else
        spec.spec = spec_of(*input);
      plan_.inputs.push_back(std::move(spec));
      slots_[input.get()] = next_slot_++;
    }
    for (const auto& input : graph_.inputs()) bind_symbols(*input);
    for (const graph::Symbol& symbol : graph_.symbols()) check_bindable(symbol.name);
  }

  // A symbol that no input's size spells out can only come from an extern call.
  void check_bindable(const std::string& name) const {
    if (bound_.count(name)) return;
    for (const auto& input : graph_.inputs()) {
      const bool inside =
          input->kind() == ValueKind::kSize
              ? input->size().contains(name)
              : std::any_of(input->type().shape.begin(), input->type().shape.end(),
                            [&](const SymExpr& size) { return size.contains(name); });
      if (inside) throw UnsupportedError("symbol " + name + ": no input gives its value by itself");
    }
  }

  void bind_symbols(const Value& value) {
    const Slot slot = slots_.at(&value);
    if (value.kind() == ValueKind::kSize) return bind(value.size(), slot, -1);
    for (size_t d = 0; d < value.type().shape.size(); ++d)
      bind(value.type().shape[d], slot, static_cast<int>(d));
  }

  void bind(const SymExpr& size, Slot slot, int dim) {
    const auto name = size.as_symbol();
    if (!name || !bound_.insert(*name).second) return;
    plan_.steps.emplace_back(runtime::BindStep{*name, slot, dim});
  }

  Slot new_slot(const Value* value) { return slots_[value] = next_slot_++; }

  void add_launch(const fusion::Group& group, const PlannedKernel& kernel, bool in_turns) {
    for (Value* output : group.outputs) {
      const auto memory = group.in_place.find(output);
      if (memory != group.in_place.end()) {
        slots_[output] = slots_.at(memory->second);
        plan_.written_inputs.push_back(slots_[output]);
        continue;
      }
      const Slot slot = new_slot(output);
      const bool arena = host_values_.count(output) == 0 && group.device == plan_.device;
      plan_.steps.emplace_back(runtime::AllocateStep{slot, spec_of(*output), arena});
    }
    runtime::LaunchStep launch;
    launch.kernel_text = kernel.text;
    launch.key = kernel.key;
    launch.label = kernel.lowered.label;
    launch.device = group.device;
    for (Value* buffer : kernel.lowered.buffers) launch.buffers.push_back(slots_.at(buffer));
    for (const lower::Scratch& scratch : kernel.lowered.scratch) {
      const Slot slot = next_slot_++;
      plan_.steps.emplace_back(
          runtime::AllocateStep{slot,
                                {scratch.dtype, {scratch.elements}, {SymExpr(1)}, group.device},
                                group.device == plan_.device});
      launch.buffers.push_back(slot);
    }
    launch.sizes = kernel.lowered.sizes;
    for (const lower::PhaseRange& range : kernel.lowered.phases)
      launch.phases.push_back({range.extent, range.grain});
    launch.errors = to_kernel_errors(kernel.lowered.kernel.errors);
    launch.source = group.nodes.back()->source();
    launch.beside = !launches_.empty();
    launch.in_turns = in_turns;
    launches_.push_back(std::move(launch));
  }

  // Launches that run at the same time stand behind all that allocates their results.
  void flush_launches() {
    for (runtime::LaunchStep& launch : launches_) plan_.steps.emplace_back(std::move(launch));
    launches_.clear();
  }

  // The slot of a value as a tensor of the host: its own, or a view into its base.
  Slot tensor_slot(Value* value) {
    const auto found = slots_.find(value);
    if (found != slots_.end()) return found->second;
    auto view = graph::strided_view(value);
    MLCC_CHECK(view && view->base != value, "plan: %", value->id(), " was not computed");
    // Those of single elements are no matter of memory, but tell a memory format.
    const std::vector<SymExpr> declared = value->type().dense_or_strides();
    for (size_t d = 0; d < declared.size(); ++d)
      if (view->shape[d].equals_constant(1)) view->strides[d] = declared[d];
    const Slot base = slots_.at(view->base);
    const Slot slot = new_slot(value);
    plan_.steps.emplace_back(
        runtime::ViewStep{slot,
                          base,
                          {value->type().dtype, view->shape, view->strides, value->type().device},
                          view->offset});
    return slot;
  }

  Slot size_slot(const SymExpr& size) {
    const Slot slot = next_slot_++;
    plan_.steps.emplace_back(runtime::SizeStep{slot, size});
    return slot;
  }

  Slot output_slot(Value* output) {
    if (output->kind() == ValueKind::kTensor) return tensor_slot(output);
    const auto found = slots_.find(output);
    return found != slots_.end() ? found->second : size_slot(output->size());
  }

  void add_extern(const Node& node) {
    if (fusion_.replaced.contains(&node)) {
      slots_[node.result()] = slots_.at(node.operand(0));
      return;
    }
    const graph::ExternCall& call = node.extern_call();
    runtime::ExternStep step;
    step.op = call.name;
    step.args = call.args;
    step.kwargs = call.kwargs;
    step.aliases = call.facts.aliases;
    if (!call.regions.empty()) step.regions = regions_.at(&node);
    std::vector<Slot> operands;
    for (Value* operand : node.operands())
      operands.push_back(operand->kind() == ValueKind::kTensor ? tensor_slot(operand)
                                                               : output_slot(operand));
    const auto to_slot = [&](ArgRef& ref) {
      ref.index = operands.at(static_cast<size_t>(ref.index));
    };
    for (Argument& argument : step.args) for_each_reference(argument, to_slot);
    for (auto& [name, argument] : step.kwargs) for_each_reference(argument, to_slot);
    for (const auto& result : node.results()) {
      step.results.push_back(is_needed(*result) ? new_slot(result.get()) : -1);
      if (result->kind() == ValueKind::kTensor)
        step.expected.emplace_back(expected_of(*result));
      else
        step.expected.emplace_back(std::nullopt);
    }
    plan_.steps.emplace_back(std::move(step));
    for (const auto& result : node.results())
      if (slots_.count(result.get())) bind_symbols(*result);
  }

  // Strides of what has sizes that the call tells are often foretold wrongly (unique along a
  // dimension); where it is handed out only, they are the call's own, as eager's are.
  TensorSpec expected_of(const Value& result) const {
    TensorSpec spec = spec_of(result);
    const bool has_regions = !result.producer()->extern_call().regions.empty();
    if (result.users().empty() && !has_regions && has_new_size(spec.shape)) spec.strides.clear();
    return spec;
  }

  bool has_new_size(const std::vector<SymExpr>& shape) const {
    return std::any_of(shape.begin(), shape.end(), [this](const SymExpr& size) {
      const auto name = size.as_symbol();
      return name && !bound_.count(*name);
    });
  }

  // A result that nobody reads is not even looked at: some ops leave those in shapes that torch
  // does not foretell (_embedding_bag).
  bool is_needed(const Value& result) const {
    if (!result.users().empty() || graph_.is_output(&result)) return true;
    if (result.kind() == ValueKind::kSize) return has_new_size({result.size()});
    return has_new_size(result.type().shape);
  }

  // -- releases: each slot right after the last step that uses it, and what runs at the same time,
  // unless it is an output
  static std::vector<Slot> slots_of(const runtime::Step& step) {
    std::vector<Slot> slots;
    if (const auto* allocate = std::get_if<runtime::AllocateStep>(&step)) {
      slots = {allocate->slot};
    } else if (const auto* launch = std::get_if<runtime::LaunchStep>(&step)) {
      slots = launch->buffers;
    } else if (const auto* call = std::get_if<runtime::ExternStep>(&step)) {
      slots = call->results;
      const auto add = [&](const ArgRef& ref) { slots.push_back(ref.index); };
      for (const Argument& argument : call->args) for_each_reference(argument, add);
      for (const auto& [name, argument] : call->kwargs) for_each_reference(argument, add);
      slots.erase(std::remove(slots.begin(), slots.end(), -1), slots.end());
    } else if (const auto* view = std::get_if<runtime::ViewStep>(&step)) {
      slots = {view->slot, view->base};
    } else if (const auto* bind = std::get_if<runtime::BindStep>(&step)) {
      slots = {bind->slot};
    } else if (const auto* size = std::get_if<runtime::SizeStep>(&step)) {
      slots = {size->slot};
    }
    return slots;
  }

  void add_releases() {
    std::map<Slot, size_t> last_use;
    for (Slot slot = 0; slot < static_cast<Slot>(plan_.inputs.size()); ++slot) last_use[slot] = 0;
    for (size_t i = 0; i < plan_.steps.size(); ++i)
      for (const Slot slot : slots_of(plan_.steps[i])) last_use[slot] = i;
    for (const Slot output : plan_.outputs) last_use.erase(output);
    for (const Slot input : plan_.written_inputs) last_use.erase(input);  // the host marks them
    std::map<size_t, std::vector<Slot>> dead_after;
    for (const auto& [slot, step] : last_use) dead_after[end_of_wave(step)].push_back(slot);
    std::vector<runtime::Step> steps;
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      steps.push_back(std::move(plan_.steps[i]));
      const auto dead = dead_after.find(i);
      if (dead != dead_after.end()) steps.emplace_back(runtime::ReleaseStep{dead->second});
    }
    plan_.steps = std::move(steps);
  }

  // The last step that runs at the same time as this one.
  size_t end_of_wave(size_t step) const {
    const auto is_beside = [this](size_t i) {
      const auto* launch =
          i < plan_.steps.size() ? std::get_if<runtime::LaunchStep>(&plan_.steps[i]) : nullptr;
      return launch != nullptr && launch->beside;
    };
    while (is_beside(step + 1)) ++step;
    return step;
  }

  const graph::Graph& graph_;
  const fusion::FusionPlan& fusion_;
  const std::vector<PlannedKernel>& kernels_;
  const CompiledRegions& regions_;
  std::vector<runtime::LaunchStep> launches_;  // to run at the same time, not among the steps yet
  runtime::ExecutablePlan plan_;
  std::unordered_map<const Value*, Slot> slots_;
  std::set<const Value*> host_values_;  // membership only
  std::set<std::string> bound_;
  Slot next_slot_ = 0;
};

}  // namespace

runtime::ExecutablePlan plan_executable(const graph::Graph& graph, const KernelPlan& plan,
                                        const CompiledRegions& regions) {
  return PlanBuilder(graph, plan, regions).build();
}

}  // namespace mlcc::driver
