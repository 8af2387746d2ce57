#include "python/kept_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "python/tensor_allocator.h"
#include "python/tensor_identity.h"
#include "python/torch_host.h"
#include "runtime/kept_values.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::python {
namespace {

using runtime::KeptValues;

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

const at::Tensor& tensor_in(const Slots& slots, runtime::Slot slot) {
  return slots[static_cast<size_t>(slot)].toTensor();
}

}  // namespace

struct KeptTensors::Recipe {
  runtime::KeptInput kept;
  std::unique_ptr<const TensorProgram> program;
  std::vector<size_t> sources;  // places in sources_
  c10::ScalarType dtype;
  std::vector<int64_t> shape, strides;
};

// What stood in the slots, and what was kept of it.
struct KeptTensors::Found {
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
    int64_t hits = 0;
    for (size_t i = 0; i < kept_.recipes_.size(); ++i) {
      if (is_unchanged(kept_.recipes_[i])) {
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
      changes_.push_back(before_.sources[i] && TensorIdentity::is_known(tensor)
                             ? before_.sources[i]->change(tensor)
                             : Change::kAnother);
    }
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
      const at::Tensor& tensor = tensor_in(slots_, kept_.sources_[i]);
      found_->sources[i].reset();
      if (TensorIdentity::is_known(tensor))
        found_->sources[i].emplace(tensor, kept_.recipes_[0].kept.reads_all);
    }
  }

  // Whether the store had it.
  bool look_up(size_t index) {
    begin_found();
    const Recipe& recipe = kept_.recipes_[index];
    found_->values[index].reset();
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
      KeptValues::process().put(key, value);
      log(LogChannel::kCache, "kept value ", recipe.kept.label, ": computed, ", value->bytes(),
          " bytes (", is_new ? reason_for_new(index) : change_text(change), ")");
    }
    found_->values[index] = value;
    use(index, *value);
    return is_hit;
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
    // No inference tensor, since calls in and out of that mode share it.
    const c10::InferenceMode no_inference_mode(false);
    const at::AutoDispatchBelowAutograd below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::NoGradGuard no_grad;
    const at::Tensor place = empty_in_huge_pages(recipe.shape, recipe.strides, recipe.dtype);
    std::vector<c10::IValue> inputs;
    for (const size_t source : recipe.sources)
      inputs.push_back(slots_[static_cast<size_t>(kept_.sources_[source])]);
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
  std::shared_ptr<Found> found_;
};

KeptTensors::KeptTensors(const runtime::ExecutablePlan& plan) {
  for (const runtime::KeptInput& kept : plan.kept) {
    const runtime::TensorSpec& spec = plan.inputs[static_cast<size_t>(kept.slot)].spec;
    Recipe recipe{kept,
                  std::make_unique<const TensorProgram>(kept.executable),
                  {},
                  to_torch(spec.dtype),
                  constants(spec.shape),
                  constants(spec.strides)};
    for (const runtime::Slot slot : kept.sources) {
      const auto place = std::find(sources_.begin(), sources_.end(), slot);
      recipe.sources.push_back(static_cast<size_t>(place - sources_.begin()));
      if (place == sources_.end()) sources_.push_back(slot);
    }
    recipes_.push_back(std::move(recipe));
  }
  auto nothing = std::make_shared<Found>();
  nothing->sources.resize(sources_.size());
  nothing->values.resize(recipes_.size());
  found_.store(std::move(nothing));
}

KeptTensors::~KeptTensors() {
  if (!recipes_.empty()) KeptValues::process().sweep();
}

void KeptTensors::fill(Slots& slots) const {
  if (recipes_.empty()) return;
  const std::shared_ptr<const Found> before = found_.load();
  if (std::shared_ptr<const Found> found = Filling(*this, slots, *before).fill())
    found_.store(std::move(found));
}

}  // namespace mlcc::python
