#include "python/run/kept_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "python/run/torch_host.h"
#include "python/tensors/file_weights.h"
#include "python/tensors/stolen_weights.h"
#include "python/tensors/tensor_allocator.h"
#include "python/tensors/tensor_identity.h"
#include "runtime/block_pool.h"
#include "runtime/kept_values.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::python {
namespace {

using runtime::KeptValues;

// Between tries to steal a weight that stays for now, since others use its memory.
constexpr int64_t kCallsBetweenTries = 64;

class KeptTensor final : public runtime::KeptValue {
 public:
  KeptTensor(at::Tensor tensor, std::vector<TensorIdentity> sources)
      : KeptValue(static_cast<int64_t>(tensor.storage().nbytes())), tensor_(std::move(tensor)),
        sources_(std::move(sources)) {}
  const at::Tensor& tensor() const { return tensor_; }
  const std::vector<TensorIdentity>& sources() const { return sources_; }
  bool is_orphan() const override {
    return std::any_of(sources_.begin(), sources_.end(),
                       [](const TensorIdentity& source) { return source.is_freed(); });
  }

 private:
  at::Tensor tensor_;
  std::vector<TensorIdentity> sources_;
};

std::vector<int64_t> constants(const std::vector<SymExpr>& sizes) {
  std::vector<int64_t> values;
  for (const SymExpr& size : sizes) values.push_back(*size.as_constant());
  return values;
}

// What holds while a recipe or its way back runs, and its result is made.
struct RecipeModes {
  // No inference tensor, since calls in and out of that mode share it.
  const c10::InferenceMode no_inference_mode{false};
  const at::AutoDispatchBelowAutograd below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  const at::NoGradGuard no_grad;
};

// Restores a stolen weight. The value is all that it needs of its call.
void unpack(const TensorProgram& inverse, const at::Tensor& value, const at::Tensor& place) {
  const RecipeModes modes;
  const std::vector<c10::IValue> outputs = inverse.run_nested({value}, {&place, 1});
  MLCC_CHECK(outputs[0].toTensor().is_same(place), "a weight is restored in another place");
}

struct BrokenPromise {};

bool is_within(const at::Tensor& tensor, const SymRange& range) {
  if (tensor.numel() == 0) return true;
  const RecipeModes modes;
  const auto [low, high] = at::aminmax(tensor);
  return low.item<int64_t>() >= range.low && high.item<int64_t>() <= range.high;
}

// The inputs that one recipe reads, and nothing else does.
std::vector<bool> find_replaced(const runtime::ExecutablePlan& plan) {
  std::vector<int> uses(static_cast<size_t>(plan.num_slots), 0);
  std::vector<bool> is_replaced(plan.inputs.size(), false);
  const auto use = [&](runtime::Slot slot) { uses[static_cast<size_t>(slot)] += 1; };
  for (const runtime::KeptInput& kept : plan.kept) {
    for (const runtime::Slot slot : kept.sources) use(slot);
    if (kept.sources.size() == 1) is_replaced[static_cast<size_t>(kept.sources[0])] = true;
  }
  for (const runtime::Slot slot : plan.outputs) use(slot);
  for (const runtime::Step& step : plan.steps) {
    if (const auto* launch = std::get_if<runtime::LaunchStep>(&step))
      for (const runtime::Slot slot : launch->buffers) use(slot);
    if (const auto* view = std::get_if<runtime::ViewStep>(&step)) use(view->base);
    const auto* call = std::get_if<runtime::ExternStep>(&step);
    if (call == nullptr) continue;
    const auto visit = [&](const ArgRef& reference) { use(reference.index); };
    for (const Argument& argument : call->args) for_each_reference(argument, visit);
    for (const auto& [name, argument] : call->kwargs) for_each_reference(argument, visit);
  }
  for (size_t i = 0; i < is_replaced.size(); ++i)
    if (uses[i] != 1) is_replaced[i] = false;
  return is_replaced;
}

const at::Tensor& tensor_in(const Slots& slots, runtime::Slot slot) {
  return slots[static_cast<size_t>(slot)].toTensor();
}

}  // namespace

struct KeptTensors::Recipe {
  runtime::KeptInput kept;
  std::unique_ptr<const TensorProgram> program;
  std::shared_ptr<const TensorProgram> inverse;  // null: its source is not to be stolen
  std::vector<size_t> sources;                   // places in sources_
  c10::ScalarType dtype;
  std::vector<int64_t> shape, strides;
};

// What stood in the slots, and what was kept of it.
struct KeptTensors::Found {
  int64_t clears = 0;                                  // of the store, when promises were looked at
  std::vector<std::optional<TensorIdentity>> sources;  // nothing: not to be looked at
  // Weak, so that the store alone decides what is kept.
  std::vector<std::weak_ptr<const KeptTensor>> values;
};

// One call's slots while they are filled.
class KeptTensors::Filling {
 public:
  Filling(const KeptTensors& kept, Slots& slots, const Found& before)
      : kept_(kept), slots_(slots), before_(before), now_(KeptValues::process().now()) {}

  // Null where `before` still says all there is to know.
  std::shared_ptr<const Found> fill() {
    find_changes();
    check_promises();
    int64_t hits = 0;
    for (size_t i = 0; i < kept_.recipes_.size(); ++i) {
      if (is_unchanged(kept_.recipes_[i]) && !is_time_to_steal(kept_.recipes_[i])) {
        if (const auto value = before_.values[i].lock()) {
          use(i, *value);
          ++hits;
          continue;
        }
      }
      hits += look_up(i) ? 1 : 0;
    }
    const auto all = static_cast<int64_t>(kept_.recipes_.size());
    KeptValues::process().count(hits, all - hits);
    return std::move(found_);
  }

 private:
  void find_changes() {
    changes_.reserve(kept_.sources_.size());
    for (size_t i = 0; i < kept_.sources_.size(); ++i) {
      const runtime::Slot slot = kept_.sources_[i];
      MLCC_USER_CHECK(slots_[static_cast<size_t>(slot)].isTensor(), "input ", slot,
                      ": expected a tensor");
      const at::Tensor& tensor = tensor_in(slots_, kept_.sources_[i]);
      changes_.push_back(TensorIdentity::is_known(tensor) ? change_of(i, tensor)
                                                          : Change::kAnother);
    }
  }

  void check_promises() {
    const int64_t clears = KeptValues::process().clears();
    for (const Promised& promised : kept_.promises_) {
      if (changes_[promised.source] == Change::kNone && clears == before_.clears) continue;
      begin_found();
      found_->clears = clears;
      if (is_within(tensor_in(slots_, kept_.sources_[promised.source]), promised.range)) continue;
      log(LogChannel::kCache, "input ", kept_.sources_[promised.source],
          ": found a weight outside of ", promised.range.low, "..", promised.range.high,
          "; the graph is compiled again without this promise");
      throw BrokenPromise();
    }
  }

  Change change_of(size_t source, const at::Tensor& tensor) {
    const std::optional<TensorIdentity>& before = before_.sources[source];
    if (may_be_stolen(source) && is_watched(tensor)) {
      // Stolen then and now: there is no memory to look at.
      if (before && before->is_stolen() && before->change(tensor) == Change::kNone)
        return Change::kNone;
      hold(source);
    }
    return before ? before->change(tensor) : Change::kAnother;
  }

  bool may_be_stolen(size_t source) const { return kept_.is_replaced(kept_.sources_[source]); }

  // The one recipe that reads a source which may be stolen.
  const Recipe& recipe_of(size_t source) const {
    const auto found =
        std::find_if(kept_.recipes_.begin(), kept_.recipes_.end(),
                     [&](const Recipe& recipe) { return recipe.sources[0] == source; });
    MLCC_CHECK(found != kept_.recipes_.end(), "no recipe begins with source ", source);
    return *found;
  }

  WeightHold& hold_of(size_t source) {
    if (holds_.empty()) holds_.resize(kept_.sources_.size());
    return holds_[source];
  }

  void hold(size_t source) {
    if (!hold_of(source))
      hold_of(source) =
          WeightHold(tensor_in(slots_, kept_.sources_[source]), &recipe_of(source).kept.recipe);
  }

  // A weight that could not be stolen is tried again now and then.
  bool is_time_to_steal(const Recipe& recipe) const {
    return recipe.inverse != nullptr && now_ % kCallsBetweenTries == 0 &&
           !before_.sources[recipe.sources[0]]->is_stolen() &&
           is_watched(tensor_in(slots_, kept_.sources_[recipe.sources[0]]));
  }

  bool is_unchanged(const Recipe& recipe) const {
    return std::all_of(recipe.sources.begin(), recipe.sources.end(),
                       [&](size_t source) { return changes_[source] == Change::kNone; });
  }

  void use(size_t recipe, const KeptTensor& value) {
    value.touch(now_);
    slots_[static_cast<size_t>(kept_.recipes_[recipe].kept.slot)] = value.tensor();
  }

  // What changed is looked at once more, for the next call.
  void begin_found() {
    if (found_ != nullptr) return;
    found_ = std::make_shared<Found>(before_);
    for (size_t i = 0; i < changes_.size(); ++i) {
      if (changes_[i] == Change::kNone) continue;
      look_at(i);
    }
  }

  void look_at(size_t source) {
    const at::Tensor& tensor = tensor_in(slots_, kept_.sources_[source]);
    found_->sources[source].reset();
    if (TensorIdentity::is_known(tensor)) found_->sources[source].emplace(tensor, kept_.reads_all_);
  }

  // Of a source that may be stolen: holds it from here on, and says what it is then.
  void hold_and_look(size_t source) {
    if (hold_of(source) || !may_be_stolen(source) ||
        !is_watched(tensor_in(slots_, kept_.sources_[source])))
      return;
    hold(source);
    look_at(source);
  }

  // Whether the store had it.
  bool look_up(size_t index) {
    begin_found();
    const Recipe& recipe = kept_.recipes_[index];
    found_->values[index].reset();
    hold_and_look(recipe.sources[0]);
    if (const auto& stolen_by = hold_of(recipe.sources[0]).value(); stolen_by != nullptr) {
      const auto value = std::static_pointer_cast<const KeptTensor>(stolen_by);
      found_->values[index] = value;
      use(index, *value);
      return true;
    }
    std::vector<TensorIdentity> sources;
    for (const size_t source : recipe.sources)
      if (found_->sources[source]) sources.push_back(*found_->sources[source]);
    if (sources.size() != recipe.sources.size()) {
      slots_[static_cast<size_t>(recipe.kept.slot)] = compute(recipe);
      return false;
    }
    FieldHasher hasher;
    hasher.add(static_cast<int64_t>(recipe.kept.recipe.low));
    hasher.add(static_cast<int64_t>(recipe.kept.recipe.high));
    for (const TensorIdentity& source : sources) source.add_to(hasher);
    const Hash128 key = hasher.finish();
    auto value = std::static_pointer_cast<const KeptTensor>(KeptValues::process().find(key));
    const Change change = value == nullptr ? Change::kAnother : first_change(*value, sources);
    const bool is_hit = change == Change::kNone;
    if (!is_hit) {
      if (const int64_t bytes = KeptValues::process().sweep(); bytes > 0)
        log(LogChannel::kCache, "kept values of ", bytes, " bytes go with their sources (freed)");
      const bool is_new = value == nullptr;
      value = std::make_shared<const KeptTensor>(compute(recipe), std::move(sources));
      value->touch(now_);
      log(LogChannel::kCache, "kept value ", recipe.kept.label, ": computed, ", value->bytes(),
          " bytes (", is_new ? reason_for_new(index) : change_text(change), ")");
    }
    if (steal(recipe, value))
      KeptValues::process().erase(key);
    else if (!is_hit)
      KeptValues::process().put(key, value);
    found_->values[index] = value;
    use(index, *value);
    return is_hit;
  }

  // Gives the source's memory up for its value, where that may be.
  bool steal(const Recipe& recipe, const std::shared_ptr<const KeptTensor>& value) {
    WeightHold& hold = hold_of(recipe.sources[0]);
    if (recipe.inverse == nullptr || !hold) return false;
    const auto restore = [inverse = recipe.inverse, packed = value->tensor()](
                             const at::Tensor& place) { unpack(*inverse, packed, place); };
    const at::Tensor& tensor = tensor_in(slots_, kept_.sources_[recipe.sources[0]]);
    const std::string_view reason = hold.steal(tensor, {value, recipe.kept.recipe, now_}, restore);
    log_debug(LogChannel::kCache, "kept value ", recipe.kept.label,
              reason.empty() ? ": its weight is stolen" : ": its weight stays: ", reason);
    if (!reason.empty()) return false;
    // A huge page that is used in part takes memory which the weight did not.
    runtime::BlockPool::process().shrink(static_cast<const char*>(value->tensor().const_data_ptr()),
                                         value->bytes());
    look_at(recipe.sources[0]);
    return true;
  }

  static Change first_change(const KeptTensor& value, const std::vector<TensorIdentity>& now) {
    for (size_t i = 0; i < now.size(); ++i)
      if (const Change change = value.sources()[i].change(now[i]); change != Change::kNone)
        return change;
    return Change::kNone;
  }

  // Why the store has nothing for these tensors.
  std::string_view reason_for_new(size_t index) const {
    const Recipe& recipe = kept_.recipes_[index];
    for (const size_t source : recipe.sources) {
      if (!before_.sources[source]) return "first use";
      if (before_.sources[source]->is_freed()) return "freed";
      if (changes_[source] != Change::kNone) return change_text(changes_[source]);
    }
    return "dropped";
  }

  // In memory of its own, whatever the recipe hands out.
  at::Tensor compute(const Recipe& recipe) const {
    const RecipeModes modes;
    const at::Tensor place = empty_in_huge_pages(recipe.shape, recipe.strides, recipe.dtype);
    std::vector<c10::IValue> inputs;
    std::vector<at::Tensor> sources;
    for (const size_t source : recipe.sources) {
      inputs.push_back(slots_[static_cast<size_t>(kept_.sources_[source])]);
      sources.push_back(inputs.back().toTensor());
    }
    const WholeReading reading(sources);
    const std::vector<c10::IValue> outputs =
        recipe.program->run_nested(std::move(inputs), {&place, 1});
    const at::Tensor& output = outputs[0].toTensor();
    if (!output.is_same(place)) place.copy_(output);
    return place;
  }

  const KeptTensors& kept_;
  Slots& slots_;
  const Found& before_;
  const int64_t now_;
  std::vector<Change> changes_;  // per source
  // Per source; only of those that may be stolen, and not where nothing is to be looked at. Empty
  // as long as a call finds all that it needs and steals nothing.
  std::vector<WeightHold> holds_;
  std::shared_ptr<Found> found_;
};

KeptTensors::KeptTensors(const runtime::ExecutablePlan& plan)
    : is_replaced_(find_replaced(plan)), reads_all_(!plan.kept.empty() && plan.kept[0].reads_all) {
  for (const runtime::KeptInput& kept : plan.kept) {
    const runtime::TensorSpec& spec = plan.inputs[static_cast<size_t>(kept.slot)].spec;
    Recipe recipe{kept,
                  std::make_unique<const TensorProgram>(kept.executable),
                  nullptr,
                  {},
                  to_torch(spec.dtype),
                  constants(spec.shape),
                  constants(spec.strides)};
    for (const runtime::Slot slot : kept.sources) recipe.sources.push_back(source_of(slot));
    if (kept.inverse != nullptr && is_replaced(kept.sources[0])) {
      auto inverse = std::make_shared<const TensorProgram>(kept.inverse);
      // A weight is also restored in the midst of an op, under whatever modes torch has then.
      if (!inverse->has_extern_calls()) recipe.inverse = std::move(inverse);
    }
    recipes_.push_back(std::move(recipe));
  }
  for (const runtime::Promise& promise : plan.promises)
    promises_.push_back({source_of(promise.slot), promise.range});
  auto nothing = std::make_shared<Found>();
  nothing->sources.resize(sources_.size());
  nothing->values.resize(recipes_.size());
  found_.store(std::move(nothing));
}

size_t KeptTensors::source_of(runtime::Slot slot) {
  const auto place = std::find(sources_.begin(), sources_.end(), slot);
  const auto number = static_cast<size_t>(place - sources_.begin());
  if (place == sources_.end()) sources_.push_back(slot);
  return number;
}

KeptTensors::~KeptTensors() {
  if (!recipes_.empty()) KeptValues::process().sweep();
}

bool KeptTensors::fill(Slots& slots) const {
  if (sources_.empty()) return true;
  const std::shared_ptr<const Found> before = found_.load();
  try {
    if (std::shared_ptr<const Found> found = Filling(*this, slots, *before).fill())
      found_.store(std::move(found));
  } catch (const BrokenPromise&) {
    return false;
  }
  return true;
}

}  // namespace mlcc::python
