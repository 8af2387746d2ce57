// What the runtime sees of compiled code: a kernel that can be launched.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace mlcc::runtime {

constexpr size_t kMaxCheckDetails = 2;
using CheckDetails = std::array<int64_t, kMaxCheckDetails>;

// What every kernel receives. A pointer is to the first element (the tensor's data pointer), in the
// memory of the kernel's device; for a value that a kernel takes by value it is in host memory.
struct KernelArgs {
  void* const* buffers;        // in the kernel's parameter order
  const int64_t* sizes;        // in the kernel's parameter order
  int64_t* details = nullptr;  // where a check that fails writes its details; the kernel sets it
  char* scratch = nullptr;     // of a kernel that is compiled to have its large arrays there
};

// Runs body(begin, end) over a partition of [0, n), each part at least `grain` long except the
// last, on any threads, and returns when all is done. `body` never throws. libtorch's
// torch_parallel_for in a process with torch.
using ParallelFor = std::function<void(int64_t n, int64_t grain,
                                       const std::function<void(int64_t, int64_t)>& body)>;

// A check that failed, and the numbers for its text; code 0: none did.
struct CheckFailure {
  int64_t code = 0;
  CheckDetails details{};
};

// What eager raises when a kernel's check fails; {0} and {1} in the text stand for its details.
struct KernelError {
  int64_t code;
  std::string exception;
  std::string text;
  CheckDetails details{};  // of a check that failed
};

// What a launch is given by the host.
struct LaunchContext {
  const ParallelFor& parallel_for;
  void* stream = nullptr;  // of the device; null: its default stream
  int32_t device = 0;      // which one, of several of a kind
};

// Callable code. Immutable to its callers; whoever holds the shared pointer keeps the code loaded.
class Kernel {
 public:
  explicit Kernel(std::string name) : name_(std::move(name)) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;

  const std::string& name() const { return name_; }
  virtual int num_phases() const = 0;

  // Runs the phases one after the other. `ranges` holds extent and grain (least iterations worth a
  // thread) of each. A device runs them behind the call: a check that fails there is told by this
  // call if it can be, else by a later one, or by poll().
  virtual CheckFailure run(const KernelArgs& args, std::span<const int64_t> ranges,
                           const LaunchContext& context) const = 0;

  // A failed check of launches that have ended and that no run() has told; it is told once.
  virtual CheckFailure take_failure() const { return {}; }

  // Whether launches run behind their calls.
  virtual bool is_asynchronous() const { return false; }
  // A failed check of any kernel of this kind on that device that no run() has told, ready to be
  // raised; it is told once. Cheap where there is none.
  virtual std::optional<KernelError> poll(int32_t) const { return std::nullopt; }

 private:
  const std::string name_;
};
using KernelPtr = std::shared_ptr<const Kernel>;

// `text` with details[0] in place of {0}, and so on.
std::string fill_in(std::string_view text, const CheckDetails& details);

}  // namespace mlcc::runtime
