#include "runtime/call_plan.h"

#include <algorithm>

#include "runtime/plan_memory.h"
#include "support/error.h"

namespace mlcc::runtime {
namespace {

// Tuples of sizes whose layout a segment keeps: more than a serving loop with bucketed lengths has.
constexpr size_t kMaxRecentSizes = 32;

void for_each_slot(const Step& step, const std::function<void(Slot)>& visit) {
  const auto visit_argument = [&](const Argument& argument) {
    for_each_reference(argument, [&](const ArgRef& reference) { visit(reference.index); });
  };
  if (const auto* allocate = std::get_if<AllocateStep>(&step)) visit(allocate->slot);
  if (const auto* launch = std::get_if<LaunchStep>(&step))
    for (Slot slot : launch->buffers) visit(slot);
  if (const auto* call = std::get_if<ExternStep>(&step)) {
    for (const Argument& argument : call->args) visit_argument(argument);
    for (const auto& [name, argument] : call->kwargs) visit_argument(argument);
    for (Slot slot : call->results)
      if (slot >= 0) visit(slot);
  }
  if (const auto* view = std::get_if<ViewStep>(&step)) {
    visit(view->slot);
    visit(view->base);
  }
  if (const auto* bind = std::get_if<BindStep>(&step)) visit(bind->slot);
  if (const auto* release = std::get_if<ReleaseStep>(&step))
    for (Slot slot : release->slots) visit(slot);
  if (const auto* size = std::get_if<SizeStep>(&step)) visit(size->slot);
}

}  // namespace

std::shared_ptr<const SegmentSizes> Segment::sizes(std::span<const int64_t> symbol_values) const {
  if (fixed_ != nullptr) return fixed_;
  {
    const std::lock_guard lock(mutex_);
    if (auto found = find(symbol_values)) return found;
  }
  auto fresh = compute(symbol_values);
  const std::lock_guard lock(mutex_);
  if (auto found = find(symbol_values)) return found;
  if (recent_.size() == kMaxRecentSizes) recent_.pop_back();
  recent_.insert(recent_.begin(), fresh);
  return fresh;
}

void Segment::fix_if_static() {
  if (symbols.empty()) fixed_ = compute({});
}

std::shared_ptr<const SegmentSizes> Segment::find(std::span<const int64_t> symbol_values) const {
  for (size_t i = 0; i < recent_.size(); ++i) {
    const std::vector<int64_t>& key = recent_[i]->key;
    size_t equal = 0;
    while (equal < key.size() && key[equal] == symbol_values[static_cast<size_t>(symbols[equal])])
      ++equal;
    if (equal < key.size()) continue;
    std::rotate(recent_.begin(), recent_.begin() + static_cast<ptrdiff_t>(i),
                recent_.begin() + static_cast<ptrdiff_t>(i) + 1);
    return recent_.front();
  }
  return nullptr;
}

std::shared_ptr<const SegmentSizes> Segment::compute(std::span<const int64_t> symbol_values) const {
  auto sizes = std::make_shared<SegmentSizes>();
  for (int32_t symbol : symbols) sizes->key.push_back(symbol_values[static_cast<size_t>(symbol)]);
  sizes->values.reserve(exprs.size());
  for (const SizeExpr& expr : exprs) sizes->values.push_back(expr.evaluate(symbol_values));

  std::vector<ArenaRequest> requests;
  requests.reserve(arena.size());
  for (const ArenaSlot& slot : arena) {
    const std::span values(sizes->values);
    const auto first = static_cast<size_t>(slot.values);
    const auto rank = static_cast<size_t>(slot.rank);
    const int64_t bytes = storage_bytes(values.subspan(first, rank),
                                        values.subspan(first + rank, rank), slot.element_bytes);
    requests.push_back({bytes, slot.begin, slot.end});
  }
  ArenaLayout layout = plan_arena(requests);
  sizes->offsets = std::move(layout.offsets);
  sizes->arena_bytes = layout.bytes;
  return sizes;
}

// Walks the steps once, in order.
class CallPlan::Builder {
 public:
  Builder(const ExecutablePlan& plan, CallPlan& out) : plan_(plan), out_(out) {}

  void run() {
    check_slots();
    arena_of_slot_.assign(static_cast<size_t>(plan_.num_slots), Arena{});
    out_.steps_.resize(plan_.steps.size());
    start_segment();
    for (step_ = 0; step_ < static_cast<int32_t>(plan_.steps.size()); ++step_) {
      const Step& step = plan_.steps[static_cast<size_t>(step_)];
      const bool binds = std::holds_alternative<BindStep>(step);
      const bool has_work = segment_->first_work < step_;
      if (binds && has_work) start_segment();
      if (binds || (!has_work && std::holds_alternative<ReleaseStep>(step)))
        segment_->first_work = step_ + 1;
      for_each_slot(step, [&](Slot slot) { extend_lease(slot); });
      std::visit([&](const auto& alternative) { add(alternative); }, step);
    }
    end_segment();
  }

 private:
  struct Arena {
    int32_t index = -1;
    int32_t segment = -1;
    int32_t place = -1;  // in Segment::arena
  };

  void check_slots() const {
    const auto check = [&](Slot slot) {
      MLCC_CHECK(slot >= 0 && slot < plan_.num_slots, "executable: slot ", slot, " of ",
                 plan_.num_slots);
    };
    MLCC_CHECK(static_cast<size_t>(plan_.num_slots) >= plan_.inputs.size(),
               "executable: ", plan_.num_slots, " slots for ", plan_.inputs.size(), " inputs");
    for (const Step& step : plan_.steps) for_each_slot(step, check);
    for (Slot slot : plan_.outputs) check(slot);
  }

  void start_segment() {
    if (segment_ != nullptr) end_segment();
    out_.segments_.push_back(std::make_unique<Segment>());
    segment_ = out_.segments_.back().get();
    segment_->begin = segment_->first_work = step_;
    segment_->lease_until = segment_index();
  }

  void end_segment() {
    segment_->end = step_;
    for (ArenaSlot& slot : segment_->arena)
      if (slot.end < 0) slot.end = step_;
    std::sort(segment_->symbols.begin(), segment_->symbols.end());
    segment_->fix_if_static();
  }

  int32_t segment_index() const { return static_cast<int32_t>(out_.segments_.size()) - 1; }
  StepPlan& step_plan() { return out_.steps_[static_cast<size_t>(step_)]; }
  Arena& arena_of(Slot slot) { return arena_of_slot_[static_cast<size_t>(slot)]; }

  void extend_lease(Slot slot) {
    const Arena& arena = arena_of(slot);
    if (arena.index >= 0)
      out_.segments_[static_cast<size_t>(arena.segment)]->lease_until = segment_index();
  }

  void must_be_of_host(Slot slot) {
    MLCC_CHECK(arena_of(slot).index < 0, "executable: step ", step_, " takes slot ", slot,
               " of the arena, which only kernels may touch");
  }

  bool is_bound(const SymExpr& expr) const {
    const std::vector<std::string> names = expr.symbols();
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::find(out_.symbols_.begin(), out_.symbols_.end(), name) != out_.symbols_.end();
    });
  }

  int32_t symbol_index(std::string_view name) const {
    const auto it = std::find(out_.symbols_.begin(), out_.symbols_.end(), name);
    MLCC_CHECK(it != out_.symbols_.end(), "executable: step ", step_, " uses symbol ", name,
               " before it is bound");
    return static_cast<int32_t>(it - out_.symbols_.begin());
  }

  int32_t add_value(const SymExpr& expr) {
    segment_->exprs.emplace_back(expr, [&](std::string_view name) {
      const int32_t index = symbol_index(name);
      auto& used = segment_->symbols;
      if (std::find(used.begin(), used.end(), index) == used.end()) used.push_back(index);
      return index;
    });
    return static_cast<int32_t>(segment_->exprs.size()) - 1;
  }

  int32_t add_spec(const TensorSpec& spec) {
    MLCC_CHECK(spec.shape.size() == spec.strides.size(), "executable: step ", step_,
               " has a shape of rank ", spec.shape.size(), " with ", spec.strides.size(),
               " strides");
    const auto first = static_cast<int32_t>(segment_->exprs.size());
    for (const SymExpr& size : spec.shape) add_value(size);
    for (const SymExpr& stride : spec.strides) add_value(stride);
    return first;
  }

  void add(const AllocateStep& step) {
    step_plan().values = add_spec(step.spec);
    if (!step.arena) return;
    MLCC_CHECK(step.spec.device == plan_.device, "executable: slot ", step.slot, " is on ",
               step.spec.device.str(), ", its arena on ", plan_.device.str());
    Arena& arena = arena_of(step.slot);
    MLCC_CHECK(arena.index < 0, "executable: slot ", step.slot, " is allocated twice");
    arena = {out_.num_arena_slots_++, segment_index(),
             static_cast<int32_t>(segment_->arena.size())};
    step_plan().arena_index = arena.place;
    segment_->arena.push_back({arena.index, step_plan().values,
                               static_cast<int32_t>(step.spec.shape.size()),
                               static_cast<int32_t>(dtype_size(step.spec.dtype)), step_, -1});
  }

  void add(const LaunchStep& step) {
    for (Slot slot : step.buffers) {
      const Arena& arena = arena_of(slot);
      step_plan().buffers.push_back(arena.index >= 0 ? ~arena.index : slot);
    }
    buffers_of_wave_ = step.buffers.size() + (step.beside ? buffers_of_wave_ : 0);
    out_.max_buffers_ = std::max(out_.max_buffers_, buffers_of_wave_);
    step_plan().values = static_cast<int32_t>(segment_->exprs.size());
    for (const SymExpr& size : step.sizes) add_value(size);
    for (const PhasePlan& phase : step.phases) {
      add_value(phase.extent);
      add_value(phase.grain);
    }
  }

  void add(const ExternStep& step) {
    for_each_slot(step, [&](Slot slot) { must_be_of_host(slot); });
    const auto add_extern = [&](const SymExpr& expr) {
      if (is_bound(expr)) out_.extern_values_.emplace(&expr, add_value(expr));
    };
    for (const Argument& argument : step.args) for_each_size(argument, add_extern);
    for (const auto& [name, argument] : step.kwargs) for_each_size(argument, add_extern);
    for (const auto& spec : step.expected) {
      if (!spec) continue;
      for (const SymExpr& size : spec->shape) add_extern(size);
      for (const SymExpr& stride : spec->strides) add_extern(stride);
    }
  }

  void add(const ViewStep& step) {
    must_be_of_host(step.base);
    step_plan().values = add_spec(step.spec);
    add_value(step.offset);
  }

  void add(const BindStep& step) {
    must_be_of_host(step.slot);
    const auto it = std::find(out_.symbols_.begin(), out_.symbols_.end(), step.symbol);
    step_plan().rebinds = it != out_.symbols_.end();
    step_plan().symbol = static_cast<int32_t>(it - out_.symbols_.begin());
    if (!step_plan().rebinds) out_.symbols_.push_back(step.symbol);
  }

  void add(const ReleaseStep& step) {
    for (Slot slot : step.slots) {
      const Arena& arena = arena_of(slot);
      if (arena.index < 0) step_plan().releases.push_back(slot);
      if (arena.segment == segment_index())
        segment_->arena[static_cast<size_t>(arena.place)].end = step_;
    }
  }

  void add(const SizeStep& step) {
    must_be_of_host(step.slot);
    step_plan().values = add_value(step.size);
  }

  const ExecutablePlan& plan_;
  CallPlan& out_;
  Segment* segment_ = nullptr;
  int32_t step_ = 0;
  std::vector<Arena> arena_of_slot_;
  size_t buffers_of_wave_ = 0;
};

CallPlan::CallPlan(const ExecutablePlan& plan) { Builder(plan, *this).run(); }

const int32_t* CallPlan::find_value(const SymExpr* expr) const {
  const auto it = extern_values_.find(expr);
  return it == extern_values_.end() ? nullptr : &it->second;
}

}  // namespace mlcc::runtime
