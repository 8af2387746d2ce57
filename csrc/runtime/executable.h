// A compiled graph as plain data: steps over a frame of slots, and the one function that runs them.
//
// A slot holds a tensor (the host's, e.g. an at::Tensor), a piece of the arena, or a size. Steps
// are run in order. The Executable is immutable behind one shared pointer; each call has a frame of
// its own, so calls may overlap.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/kernel.h"
#include "support/hash.h"
#include "types/argument.h"
#include "types/device.h"
#include "types/dtype.h"
#include "types/symbolic.h"

namespace mlcc::runtime {

using Slot = int32_t;

// What a tensor in a slot must look like; sizes are symbols bound during the call.
struct TensorSpec {
  DType dtype;
  std::vector<SymExpr> shape;
  // Explicit. Empty: 0-d, or the result of an extern call that may have any.
  std::vector<SymExpr> strides;
  Device device{};
};

struct PhasePlan {
  SymExpr extent;
  SymExpr grain;  // least iterations worth a thread
};

// Makes `slot` a tensor of the host, or a piece of the arena: touched by kernels only, and on the
// plan's device.
struct AllocateStep {
  Slot slot;
  TensorSpec spec;
  bool arena;
};

struct LaunchStep {
  std::string kernel_text;  // canonical loop IR: what is compiled again if the object is missing
  Hash128 key;              // of the object in the kernel cache
  std::string label;        // for logs: "softmax_add (3 nodes)"
  Device device{};          // where it runs
  // In parameter order. What the kernel takes by value is a tensor of the CPU.
  std::vector<Slot> buffers;
  std::vector<SymExpr> sizes;  // in parameter order
  std::vector<PhasePlan> phases;
  std::vector<KernelError> errors;
  std::string source;  // the user's line, for errors and logs
  // Runs at the same time as the launch in the step before, both on the CPU: neither touches what
  // the other writes.
  bool beside = false;
  // Besides, both walk over the same memory: part after part, each part by one and then the other.
  bool in_turns = false;
};

class Executable;

struct ExternStep {
  std::string op;              // "aten.addmm.default"
  std::vector<Argument> args;  // ArgRef: slots
  std::vector<std::pair<std::string, Argument>> kwargs;
  std::vector<Slot> results;                        // -1: not used
  std::vector<std::optional<TensorSpec>> expected;  // per result; nothing: a size or not a tensor
  bool aliases = false;                             // results may share memory with operands
  // Control flow: the op is no dispatcher's, but says how the host runs these.
  std::vector<std::shared_ptr<const Executable>> regions{};
};

// `slot` becomes a view of `base`'s tensor: sizes, strides, and an offset in elements from the
// base's first element.
struct ViewStep {
  Slot slot, base;
  TensorSpec spec;
  SymExpr offset;
};

// Binds a symbol to a size that the call has just seen: dimension `dim` of the tensor in `slot`, or
// the size in it (dim -1).
struct BindStep {
  std::string symbol;
  Slot slot;
  int dim;
};

struct ReleaseStep {
  std::vector<Slot> slots;  // last use is past
};

// slot becomes a size.
struct SizeStep {
  Slot slot;
  SymExpr size;
};

using Step =
    std::variant<AllocateStep, LaunchStep, ExternStep, ViewStep, BindStep, ReleaseStep, SizeStep>;

// How an input must look for this executable to be right; checked when the host asks for it
// (Dynamo's guards already did).
struct InputSpec {
  bool is_size = false;
  TensorSpec spec;
  SymExpr size;
};

// An input that the host fills by itself: with what `executable` computes from the tensors in
// `sources`, which may be kept from an earlier call as long as those hold what they held then.
// Nobody writes into it or hands it out.
struct KeptInput {
  Slot slot;
  Hash128 recipe;  // of what is computed, wherever it is
  std::shared_ptr<const Executable> executable;
  std::vector<Slot> sources;  // in the order of its inputs
  std::string label;          // for logs: "%kept0 of linear"
  bool reads_all = false;  // each call reads all bytes of the sources to see whether they changed
  // Computes the only source from the value, so that the value may take its place. Null: it stays.
  std::shared_ptr<const Executable> inverse = nullptr;
};

// What the caller says of the elements of an input, integers. The host looks whether it holds, once
// for as long as the input holds what it held then.
struct Promise {
  Slot slot;
  SymRange range;
};

struct ExecutablePlan {
  // Where the arena lies and launches go; launches on the CPU may stand between those of another
  // device.
  Device device{};
  std::vector<InputSpec> inputs;  // input i is slot i
  std::vector<KeptInput> kept{};  // the last of the inputs, in order
  int num_slots = 0;
  std::vector<Step> steps;
  std::vector<Slot> outputs;
  std::vector<Slot> written_inputs;  // by kernels; calls say themselves what they write
  std::vector<Promise> promises{};
  // The same without promises; empty where there are none.
  std::function<std::shared_ptr<const Executable>()> without_promises{};
};

// The tensors of one call; implemented where tensors live (csrc/python).
class Host {
 public:
  virtual ~Host() = default;
  // The stream that launches on a device go to, for the length of the call; null: its default one.
  virtual void* stream() { return nullptr; }
  virtual void* data(Slot slot) = 0;
  virtual int64_t tensor_size(Slot slot, int dim) = 0;
  virtual int64_t size(Slot slot) = 0;  // of a size slot
  virtual void set_size(Slot slot, int64_t value) = 0;
  virtual void allocate(Slot slot, DType dtype, std::span<const int64_t> shape,
                        std::span<const int64_t> strides, Device device) = 0;
  // Memory of the CPU for an arena, aligned to kArenaAlignment; null for 0 bytes. It goes back when
  // it is given back, or with the host.
  virtual char* take_arena(int64_t bytes) = 0;
  virtual void give_back_arena(char* data) = 0;
  // Memory of the plan's device for an arena, kept to the end of the call. Asked for only where
  // that is not the CPU.
  virtual void* workspace(int64_t bytes) = 0;
  virtual void make_view(Slot slot, Slot base, std::span<const int64_t> shape,
                         std::span<const int64_t> strides, int64_t offset) = 0;
  // `evaluate` gives a size expression's value now. Must check the results against `step.expected`.
  virtual void call_extern(const ExternStep& step, size_t step_index,
                           const std::function<int64_t(const SymExpr&)>& evaluate) = 0;
  virtual void release(Slot slot) = 0;
  // Throws eager's exception for a failed check.
  [[noreturn]] virtual void raise(const KernelError& error, const std::string& source) = 0;
};

class CallPlan;

// Who is asked for failed checks of launches on the plan's device: one of its kernels that run
// behind their calls, if there are any.
struct Polled {
  const Kernel* kernel = nullptr;
  int32_t device = 0;
};

class Executable {
 public:
  // `kernels[i]` belongs to the i-th LaunchStep in order. InternalError if the plan is
  // inconsistent.
  Executable(ExecutablePlan plan, std::vector<KernelPtr> kernels);
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  ~Executable();
  const ExecutablePlan& plan() const { return plan_; }
  // Those that the caller gives.
  size_t num_given_inputs() const { return plan_.inputs.size() - plan_.kept.size(); }

  // Runs all steps, unless an earlier launch on the device is found to have failed a check: then
  // that is raised before anything is done. Slots 0..inputs-1 are filled by the host before,
  // outputs are read by it afterwards. Any number of calls may run at the same time, each with a
  // host of its own.
  void run(Host& host, const ParallelFor& parallel_for) const;

  // The symbols of all sizes, in the order in which the next function takes their values.
  const std::vector<std::string>& symbols() const;
  // Of all arenas of a call where the symbols have these values.
  int64_t arena_bytes(std::span<const int64_t> symbols) const;

  // Of the largest arena that a call has needed so far.
  int64_t largest_arena_bytes() const { return arena_bytes_.load(std::memory_order_relaxed); }

 private:
  ExecutablePlan plan_;
  std::vector<KernelPtr> kernels_;  // per step; null where the step is no launch
  std::vector<int32_t> waves_;      // per step: launches from there on that run at the same time
  Polled polled_;
  std::unique_ptr<const CallPlan> call_plan_;
  mutable std::atomic<int64_t> arena_bytes_{0};
};

}  // namespace mlcc::runtime
