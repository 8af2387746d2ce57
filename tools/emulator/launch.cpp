#include "launch.h"

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>

#include <signal.h>

#include "block.h"
#include "memory.h"

namespace mlcc_emulator {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kSignalCount = 4;
constexpr size_t kSignalStackBytes = 64 * 1024;

// A launch as its signal handler sees it.
struct Landing {
  sigjmp_buf jump;
  const BlockRunner* runner;
  volatile int signal;
  void* volatile address;
};

thread_local Landing* landing = nullptr;
struct sigaction previous_actions[kSignalCount];

void pass_on(int signal, siginfo_t* info, void* context) {
  int i = 0;
  while (kSignals[i] != signal) ++i;
  const struct sigaction& previous = previous_actions[i];
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    sigaction(signal, &previous, nullptr);  // the instruction faults again, without us
  }
}

void handle_signal(int signal, siginfo_t* info, void* context) {
  if (!landing || !landing->runner->is_in_kernel()) return pass_on(signal, info, context);
  landing->signal = signal;
  landing->address = info->si_addr;
  siglongjmp(landing->jump, 1);
}

// While it lives, faults of kernels on this thread jump to the landing.
class SignalScope {
 public:
  explicit SignalScope(Landing& target) : stack_(new char[kSignalStackBytes]) {
    landing = &target;
    stack_t stack = {};
    stack.ss_sp = stack_.get();
    stack.ss_size = kSignalStackBytes;
    sigaltstack(&stack, &previous_stack_);
    struct sigaction action = {};
    action.sa_sigaction = &handle_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &action, &previous_actions[i]);
  }
  ~SignalScope() {
    for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &previous_actions[i], nullptr);
    sigaltstack(&previous_stack_, nullptr);
    landing = nullptr;
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  std::unique_ptr<char[]> stack_;
  stack_t previous_stack_ = {};
};

Fault fault_of_signal(const Landing& at) {
  const std::string who = at.runner->describe_thread();
  char address[32];
  std::snprintf(address, sizeof address, "%p", at.address);
  if (at.signal == SIGFPE)
    return {CUDA_ERROR_LAUNCH_FAILED, who + ": integer division by zero, or of the smallest by -1"};
  if (at.signal == SIGILL) return {CUDA_ERROR_LAUNCH_FAILED, who + ": trap"};
  if (at.runner->overruns_stack(at.address))
    return {CUDA_ERROR_LAUNCH_FAILED, who + ": stack overflow"};
  return {CUDA_ERROR_ILLEGAL_ADDRESS,
          who + ": illegal access at " + address + ", " + describe_address(at.address)};
}

// Dynamic shared memory: ends at a page that cannot be touched.
class DynamicShared {
 public:
  explicit DynamicShared(size_t size) : size_(size), memory_(allocate(size, MemoryKind::kHost)) {}
  ~DynamicShared() {
    if (memory_) deallocate(memory_, MemoryKind::kHost);
  }
  DynamicShared(const DynamicShared&) = delete;
  DynamicShared& operator=(const DynamicShared&) = delete;

  unsigned char* begin() const { return static_cast<unsigned char*>(memory_); }
  void poison() const {
    if (memory_) std::memset(memory_, kPoison, size_);
  }

 private:
  size_t size_;
  void* memory_;
};

// The blocks of a grid in the order of a schedule; at random: first + i * step modulo their number.
class BlockOrder {
 public:
  BlockOrder(Index3 grid, Schedule schedule, uint64_t seed)
      : grid_(grid), count_(uint64_t{grid.x} * grid.y * grid.z) {
    if (schedule == Schedule::kReverse || schedule == Schedule::kSkewLast) {
      first_ = count_ - 1;
      step_ = count_ - 1;
    } else if (schedule == Schedule::kRandom) {
      std::mt19937_64 random(seed);
      first_ = random() % count_;
      do step_ = random() % count_ + 1;
      while (std::gcd(step_, count_) != 1);
    }
  }

  uint64_t count() const { return count_; }
  Index3 block(uint64_t i) const {
    const auto at =
        static_cast<uint64_t>((first_ + static_cast<unsigned __int128>(i) * step_) % count_);
    return {static_cast<unsigned>(at % grid_.x), static_cast<unsigned>(at / grid_.x % grid_.y),
            static_cast<unsigned>(at / grid_.x / grid_.y)};
  }

 private:
  Index3 grid_;
  uint64_t count_, first_ = 0, step_ = 1;
};

struct State {
  std::mutex running;  // one launch at a time
  Api api = {};
  BlockRunner runner{api};
  uint64_t launches = 0;

  std::mutex log_mutex;
  std::deque<LoggedLaunch> log;
  std::string last_fault;
  bool counts_bytes = false;
};

// Never destroyed: calls may come while the process ends.
State& state() {
  static State* state = new State;
  return *state;
}

std::optional<Fault> run_blocks(const Launch& launch, const BlockOrder& order,
                                const DynamicShared& shared) {
  const Program& program = launch.module->program();
  Landing target = {};
  target.runner = &state().runner;
  const SignalScope scope(target);
  if (sigsetjmp(target.jump, 1) != 0) {
    Fault fault = fault_of_signal(target);
    state().runner.abandon();
    return fault;
  }
  for (uint64_t i = 0; i < order.count(); ++i) {
    std::memset(program.shared_begin, kPoison, program.shared_end - program.shared_begin);
    shared.poison();
    state().api.block = order.block(i);
    if (std::optional<Fault> fault = state().runner.run()) return fault;
  }
  return std::nullopt;
}

void log_launch(LoggedLaunch logged) {
  std::lock_guard lock(state().log_mutex);
  if (state().log.size() == kMaxLoggedLaunches) state().log.pop_front();
  state().log.push_back(std::move(logged));
}

bool counts_bytes() {
  std::lock_guard lock(state().log_mutex);
  return state().counts_bytes;
}

}  // namespace

Api& program_api() { return state().api; }

CUresult run_launch(const Launch& launch, void** parameters) {
  std::lock_guard lock(state().running);
  const Settings now = settings();
  LoggedLaunch logged = {launch.entry->name, launch, next_schedule(), CUDA_SUCCESS, 0, {}};
  const uint64_t seed = static_cast<uint64_t>(now.seed) * 1000003 + state().launches++;

  std::optional<ByteCounter> bytes;
  const bool counts = counts_bytes();
  if (counts || now.strict)
    bytes.emplace(usable_ranges(),
                  static_cast<int>(launch.block.x * launch.block.y * launch.block.z));
  const DynamicShared shared(launch.shared_bytes);
  Api& api = state().api;
  api.block_size = launch.block;
  api.grid_size = launch.grid;
  api.dynamic_shared = shared.begin();
  api.watches_memory = bytes.has_value();
  state().runner.begin_launch(*launch.entry, parameters, launch.block, logged.schedule, seed,
                              bytes ? &*bytes : nullptr, now.strict != 0);
  const std::optional<Fault> fault =
      run_blocks(launch, BlockOrder(launch.grid, logged.schedule, seed), shared);
  if (fault) {
    logged.result = fault->result;
    set_last_fault(logged.function + ": " + fault->message + " (schedule " +
                   name_of(logged.schedule) + ")");
  }
  logged.switches = state().runner.switches();
  if (counts) logged.bytes = bytes->result();
  logged.launch.module.reset();  // the log does not keep programs loaded
  logged.launch.entry = nullptr;
  const CUresult result = logged.result;
  log_launch(std::move(logged));
  return result;
}

void set_last_fault(std::string message) {
  std::lock_guard lock(state().log_mutex);
  state().last_fault = std::move(message);
}

std::string last_fault() {
  std::lock_guard lock(state().log_mutex);
  return state().last_fault;
}

size_t logged_launch_count() {
  std::lock_guard lock(state().log_mutex);
  return state().log.size();
}

LoggedLaunch logged_launch(size_t index) {
  std::lock_guard lock(state().log_mutex);
  return state().log.at(index);
}

void clear_launch_log() {
  std::lock_guard lock(state().log_mutex);
  state().log.clear();
}

void count_bytes(bool enabled) {
  std::lock_guard lock(state().log_mutex);
  state().counts_bytes = enabled;
}

}  // namespace mlcc_emulator
