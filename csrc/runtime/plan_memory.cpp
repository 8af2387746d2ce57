#include "runtime/plan_memory.h"

#include <variant>

#include "support/error.h"

namespace mlcc::runtime {
namespace {

// What a process can address; sums of so many stay in range.
constexpr int64_t kMostBytes = int64_t{1} << 47;

class Walk {
 public:
  Walk(const ExecutablePlan& plan, const std::function<int64_t(std::string_view)>& value_of)
      : plan_(plan), value_of_(value_of), bytes_(static_cast<size_t>(plan.num_slots), 0) {}

  std::vector<int64_t> run() {
    for (size_t i = 0; i < plan_.inputs.size(); ++i)
      if (!plan_.inputs[i].is_size) add(static_cast<Slot>(i), plan_.inputs[i].spec);
    std::vector<int64_t> live;
    for (const Step& step : plan_.steps) {
      std::visit([this](const auto& alternative) { visit(alternative); }, step);
      live.push_back(live_);
      for (const Slot slot : released_) drop(slot);
      released_.clear();
    }
    return live;
  }

 private:
  void visit(const AllocateStep& step) { add(step.slot, step.spec); }
  void visit(const ExternStep& step) {
    if (step.aliases) return;
    for (size_t i = 0; i < step.results.size(); ++i)
      if (step.results[i] >= 0 && step.expected[i]) add(step.results[i], *step.expected[i]);
  }
  void visit(const ReleaseStep& step) { released_ = step.slots; }
  template <typename Other>
  void visit(const Other&) {}

  void add(Slot slot, const TensorSpec& spec) {
    int64_t& bytes = bytes_[static_cast<size_t>(slot)];
    bytes = product(spec.shape).evaluate(value_of_) * dtype_size(spec.dtype);
    live_ += bytes;
  }

  void drop(Slot slot) {
    live_ -= bytes_[static_cast<size_t>(slot)];
    bytes_[static_cast<size_t>(slot)] = 0;
  }

  const ExecutablePlan& plan_;
  const std::function<int64_t(std::string_view)>& value_of_;
  std::vector<int64_t> bytes_;  // of each slot
  int64_t live_ = 0;
  std::vector<Slot> released_;
};

}  // namespace

int64_t storage_bytes(std::span<const int64_t> shape, std::span<const int64_t> strides,
                      int64_t element_bytes) {
  int64_t elements = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    int64_t reach = 0;
    MLCC_USER_CHECK(shape[d] > 0 && strides[d] >= 0 &&
                        !__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) &&
                        !__builtin_add_overflow(elements, reach, &elements),
                    "a tensor has size ", shape[d], " at stride ", strides[d]);
  }
  int64_t bytes = 0;
  MLCC_USER_CHECK(!__builtin_mul_overflow(elements, element_bytes, &bytes) && bytes <= kMostBytes,
                  "a tensor has ", elements, " elements");
  return bytes;
}

std::vector<int64_t> live_bytes(const ExecutablePlan& plan,
                                const std::function<int64_t(std::string_view)>& value_of) {
  return Walk(plan, value_of).run();
}

}  // namespace mlcc::runtime
