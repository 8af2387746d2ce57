#include "python/run/control_flow.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "python/process/device.h"
#include "python/run/torch_host.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

using Values = std::vector<c10::IValue>;

// Outputs of earlier rounds that nobody reads any more: their memory takes those of later rounds.
class CarriedBuffers {
 public:
  explicit CarriedBuffers(size_t num_carried) : kept_(num_carried) {}

  // A tensor that only this holds, or none.
  at::Tensor take(size_t carried) {
    auto& kept = kept_[carried];
    const auto free = std::find_if(kept.begin(), kept.end(), [](const at::Tensor& tensor) {
      return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
    });
    return free == kept.end() ? at::Tensor() : *free;
  }

  bool has_room_for(size_t carried, const at::Tensor& tensor) const {
    const auto& kept = kept_[carried];
    return kept.size() < kBuffers &&
           std::none_of(
               kept.begin(), kept.end(),
               [&](const at::Tensor& known) { return known.is_same(tensor); });
  }

  // No operand of the loop lies in its memory, and there is room for it.
  void keep(size_t carried, const at::Tensor& tensor) { kept_[carried].push_back(tensor); }

 private:
  static constexpr size_t kBuffers = 2;  // one is read while the other is written
  std::vector<std::vector<at::Tensor>> kept_;
};

// Draws from a state of the device's generator, whose own state comes back at the end.
class BorrowedGenerator {
 public:
  BorrowedGenerator(at::Generator generator, const at::Tensor& state)
      : generator_(std::move(generator)) {
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_state(state);
  }
  ~BorrowedGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(before_);
  }
  BorrowedGenerator(const BorrowedGenerator&) = delete;
  BorrowedGenerator& operator=(const BorrowedGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

// Of the first tensor on another device than the CPU, else of the CPU.
at::Generator generator_for(const Values& values) {
  c10::Device device(c10::kCPU);
  for (const c10::IValue& value : values)
    if (value.isTensor() && device.is_cpu()) device = value.toTensor().device();
  return at::globalContext().defaultGenerator(device);
}

bool truth_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item().toBool() : value.toScalar().toBool();
}

Values joined(const Values& a, const Values& b) {
  Values both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

// The elements of a tensor along dimension 0, one after the other. A view that nobody holds any
// more moves on, so that a round makes none.
class Rows {
 public:
  explicit Rows(at::Tensor whole) : whole_(std::move(whole)) {}

  const at::Tensor& whole() const { return whole_; }

  const at::Tensor& operator[](int64_t i) {
    const int64_t offset = whole_.storage_offset() + i * whole_.stride(0);
    if (row_.defined() && row_.use_count() == 1)
      row_.unsafeGetTensorImpl()->set_storage_offset(offset);
    else
      row_ = make_alias(whole_, whole_.sizes().slice(1), whole_.strides().slice(1), offset);
    return row_;
  }

 private:
  at::Tensor whole_;
  at::Tensor row_;
};

bool lies_in(const at::Tensor& tensor, const at::Tensor& place) {
  return tensor.is_alias_of(place) && tensor.storage_offset() == place.storage_offset();
}

}  // namespace

// One execution of the step.
class ControlFlowCall::Run {
 public:
  Run(const ControlFlowCall& call, Slots& slots, const Evaluate& evaluate)
      : call_(call), step_(call.step_), slots_(slots), evaluate_(evaluate) {}

  void run() {
    switch (call_.kind_) {
    case graph::ControlFlow::kCond: return run_cond();
    case graph::ControlFlow::kWhileLoop: return run_while_loop();
    case graph::ControlFlow::kWhileLoopStack: return run_while_loop_stack();
    case graph::ControlFlow::kScan: return run_scan();
    case graph::ControlFlow::kCall: return put_results(region(0).run_nested(values(0)));
    case graph::ControlFlow::kSaveRng: return run_save_rng();
    case graph::ControlFlow::kWithRng: return run_with_rng();
    }
    MLCC_UNREACHABLE("control flow ", step_.op);
  }

 private:
  const TensorProgram& region(size_t i) const { return *call_.regions_[i]; }

  c10::IValue value(const Argument& argument) const {
    if (const auto* reference = std::get_if<ArgRef>(&argument.value))
      return slots_[static_cast<size_t>(reference->index)];
    return evaluate_(std::get<SymExpr>(argument.value));
  }

  // Of a list among the arguments.
  Values values(size_t argument) const {
    Values list;
    for (const Argument& element : std::get<ArgList>(step_.args[argument].value))
      list.push_back(value(element));
    return list;
  }

  void run_cond() {
    const bool holds = truth_of(value(step_.args[0]));
    put_results(region(holds ? 0 : 1).run_nested(values(1)));
  }

  void run_while_loop() {
    Values carried = values(0);
    const Values others = values(1);
    CarriedBuffers buffers(carried.size());
    while (truth_of(region(0).run_nested(joined(carried, others)).at(0))) {
      std::vector<at::Tensor> places;
      for (size_t i = 0; i < carried.size(); ++i) places.push_back(buffers.take(i));
      carried.insert(carried.end(), others.begin(), others.end());
      carried = region(1).run_nested(std::move(carried), places);
      keep(buffers, carried, carried.size());
    }
    put_results(std::move(carried));
  }

  // Each round's results stay where they are until the number of rounds is known.
  void run_while_loop_stack() {
    Values carried = values(0);
    const Values others = values(1);
    std::vector<std::vector<at::Tensor>> rounds(carried.size());
    const auto keep_round = [&] {
      for (size_t c = 0; c < carried.size(); ++c) rounds[c].push_back(carried[c].toTensor());
    };
    while (truth_of(region(0).run_nested(joined(carried, others)).at(0))) {
      carried = region(1).run_nested(joined(carried, others));
      keep_round();
    }
    if (!rounds.empty() && rounds[0].empty()) keep_round();
    for (size_t c = 0; c < rounds.size(); ++c)
      if (step_.results[c] >= 0)
        slots_[static_cast<size_t>(step_.results[c])] = at::stack(rounds[c]);
  }

  void run_scan() {
    Values carried = values(0);
    const Values others = values(2);
    const size_t num_carried = carried.size();
    std::vector<Rows> xs, stacked;
    for (c10::IValue& x : values(1)) xs.emplace_back(std::move(x).toTensor());
    for (size_t r = num_carried; r < step_.expected.size(); ++r)
      stacked.emplace_back(empty_result(r));
    CarriedBuffers buffers(num_carried);
    std::vector<at::Tensor> places;
    const int64_t rounds = xs.empty() ? 0 : xs[0].whole().size(0);
    const auto num_slots = static_cast<size_t>(region(0).executable().plan().num_slots);
    for (int64_t i = 0; i < rounds; ++i) {
      places.clear();
      for (size_t c = 0; c < num_carried; ++c) places.push_back(buffers.take(c));
      for (Rows& rows : stacked) places.push_back(rows[i]);
      carried.reserve(num_slots);
      for (Rows& rows : xs) carried.emplace_back(rows[i]);
      carried.insert(carried.end(), others.begin(), others.end());
      Values outputs = region(0).run_nested(std::move(carried), places);
      for (size_t r = num_carried; r < outputs.size(); ++r)
        if (!lies_in(outputs[r].toTensor(), places[r])) places[r].copy_(outputs[r].toTensor());
      outputs.resize(num_carried);
      keep(buffers, outputs, num_carried);
      carried = std::move(outputs);
    }
    for (const Rows& rows : stacked) carried.emplace_back(rows.whole());
    put_results(std::move(carried));
  }

  void run_save_rng() {
    Values operands = values(0);
    at::Generator generator = generator_for(operands);
    Values outputs;
    {
      const std::lock_guard lock(generator.mutex());
      outputs.emplace_back(generator.get_state());
    }
    for (c10::IValue& output : region(0).run_nested(std::move(operands)))
      outputs.push_back(std::move(output));
    put_results(std::move(outputs));
  }

  void run_with_rng() {
    Values operands = values(0);
    const at::Tensor state = operands.at(0).toTensor();
    operands.erase(operands.begin());
    const BorrowedGenerator borrowed(generator_for(operands), state);
    put_results(region(0).run_nested(std::move(operands)));
  }

  // Only what no operand lies in may be written to later.
  void keep(CarriedBuffers& buffers, const Values& outputs, size_t num_carried) const {
    for (size_t c = 0; c < num_carried; ++c) {
      if (!outputs[c].isTensor()) continue;
      const at::Tensor& tensor = outputs[c].toTensor();
      if (buffers.has_room_for(c, tensor) && !is_operand(tensor)) buffers.keep(c, tensor);
    }
  }

  bool is_operand(const at::Tensor& tensor) const {
    bool found = false;
    const auto visit = [&](const ArgRef& reference) {
      const c10::IValue& operand = slots_[static_cast<size_t>(reference.index)];
      found = found || (operand.isTensor() && operand.toTensor().is_alias_of(tensor));
    };
    for (const Argument& argument : step_.args) for_each_reference(argument, visit);
    return found;
  }

  std::vector<int64_t> numbers(const std::vector<SymExpr>& expressions) const {
    std::vector<int64_t> list;
    for (const SymExpr& expression : expressions) list.push_back(evaluate_(expression));
    return list;
  }

  at::Tensor empty_result(size_t r) const {
    const runtime::TensorSpec& spec = *step_.expected[r];
    return at::empty_strided(numbers(spec.shape), numbers(spec.strides),
                             at::TensorOptions(to_torch(spec.dtype)).device(to_torch(spec.device)));
  }

  // Each becomes a tensor of its own, in the strides that the graph says. The stacked ones, at the
  // end, keep their memory.
  void put_results(Values outputs) const {
    MLCC_USER_CHECK(outputs.size() == step_.results.size(), step_.op, ": gave ", outputs.size(),
                    " results, expected ", step_.results.size());
    for (size_t r = outputs.size(); r-- > 0;) {
      if (step_.results[r] < 0) continue;
      at::Tensor result = outputs[r].toTensor();
      bool is_shared = is_operand(result);
      for (size_t other = r + 1; other < outputs.size(); ++other)
        is_shared = is_shared || outputs[other].toTensor().is_alias_of(result);
      slots_[static_cast<size_t>(step_.results[r])] = fitted(r, std::move(result), is_shared);
    }
  }

  at::Tensor fitted(size_t r, at::Tensor result, bool is_shared) const {
    const runtime::TensorSpec& spec = *step_.expected[r];
    const std::vector<int64_t> shape = numbers(spec.shape);
    MLCC_USER_CHECK(result.sizes() == at::IntArrayRef(shape) &&
                        result.scalar_type() == to_torch(spec.dtype),
                    step_.op, ": result ", r, " is ", result.scalar_type(), result.sizes(),
                    ", expected ", to_torch(spec.dtype), at::IntArrayRef(shape));
    const std::vector<int64_t> strides = numbers(spec.strides);
    bool fits = !is_shared;
    for (size_t d = 0; fits && result.numel() > 0 && d < shape.size(); ++d)
      fits = shape[d] == 1 || result.stride(static_cast<int64_t>(d)) == strides[d];
    if (fits) return result;
    at::Tensor copy = at::empty_strided(shape, strides, result.options());
    copy.copy_(result);
    return copy;
  }

  const ControlFlowCall& call_;
  const runtime::ExternStep& step_;
  Slots& slots_;
  const Evaluate& evaluate_;
};

ControlFlowCall::ControlFlowCall(const runtime::ExternStep& step) : step_(step) {
  const std::optional<graph::ControlFlow> kind = graph::parse_control_flow(step.op);
  MLCC_CHECK(kind.has_value(), "step ", step.op, " has regions but is no control flow");
  kind_ = *kind;
  for (const auto& region : step.regions)
    regions_.push_back(std::make_unique<const TensorProgram>(region));
}

ControlFlowCall::~ControlFlowCall() = default;

void ControlFlowCall::run(Slots& slots, const Evaluate& evaluate) const {
  Run(*this, slots, evaluate).run();
}

}  // namespace mlcc::python
