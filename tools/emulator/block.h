// Runs the threads of a block as fibers, in the order of a schedule, with their barriers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "byte_count.h"
#include "cuda_types.h"
#include "fibers.h"
#include "kernel_api.h"
#include "settings.h"

namespace mlcc_emulator {

struct Fault {
  CUresult result;
  std::string message;
};

// Only one block runs at a time in a process, on the thread that called run().
//
// A thread runs until its next barrier. Which thread is next: kForward and kReverse go round all
// threads that can run, kRandom draws one of them, kSkewFirst takes the lowest and kSkewLast the
// highest, so that a warp (and in it a group of lanes) runs to its next block barrier, or its end,
// before the next one starts.
class BlockRunner {
 public:
  static constexpr int kMaxThreads = 1024;

  explicit BlockRunner(Api& api);

  // What the next blocks run. `bytes` may be null.
  void begin_launch(const Entry& entry, void** parameters, Index3 block_size, Schedule schedule,
                    uint64_t seed, ByteCounter* bytes, bool strict);

  // Runs the block of index api.block.
  std::optional<Fault> run();

  // After run() was left by a jump: makes its stacks free.
  void abandon();

  bool is_in_kernel() const { return running_ >= 0; }
  // The running thread as "block (1, 0, 0), thread (5, 0, 0)".
  std::string describe_thread() const;
  bool overruns_stack(const void* address) const;
  uint64_t switches() const { return switches_; }

 private:
  enum class State : uint8_t { kNew, kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };
  struct Fiber : Thread {
    FiberContext context;
    int stack = -1;
    State state = State::kNew;
    BlockOp block_op = BlockOp::kSync;
    unsigned predicate = 0;  // brought to a block barrier; afterwards its result
  };
  // Lanes as bits.
  struct Warp {
    unsigned exists, ready, waiting, done;
  };

  static void enter_fiber();
  static void warp_barrier();
  static unsigned block_barrier(BlockOp op, unsigned predicate);
  static void touch(const void* address, unsigned long bytes, bool is_store);
  static void misaligned(const void* address, unsigned long bytes, bool is_store);
  static void begin_iteration();
  static void trap(const char* why);

  void reset();
  int next_thread();
  void resume(int thread);
  void leave(State state);  // from a fiber to the scheduler
  [[noreturn]] void leave_with(CUresult result, std::string message);
  void release_group(int warp, unsigned mask);
  void resolve(int warp, unsigned group);
  bool release_block_barrier();
  std::optional<Fault> find_divergence() const;
  int take_stack();
  void finish(int thread);

  Api& api_;
  const Entry* entry_ = nullptr;
  void** parameters_ = nullptr;
  ByteCounter* bytes_ = nullptr;
  bool strict_ = false;
  Schedule schedule_ = Schedule::kForward;
  std::mt19937_64 random_;

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<FiberStack> stacks_;
  std::vector<int> free_stacks_;
  FiberContext scheduler_;
  int thread_count_ = 0;
  int done_count_ = 0;
  int at_block_barrier_ = 0;
  int running_ = -1;
  int cursor_ = 0;  // of the schedules that go round
  uint64_t switches_ = 0;
  std::optional<Fault> fault_;
};

}  // namespace mlcc_emulator
