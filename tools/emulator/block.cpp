#include "block.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

namespace mlcc_emulator {
namespace {

// The one that runs; fibers reach it here.
BlockRunner* runner = nullptr;

const char* name_of(WarpOp op) {
  switch (op) {
  case WarpOp::kSync: return "__syncwarp";
  case WarpOp::kShuffle: return "a shuffle";
  case WarpOp::kBallot: return "a vote";
  case WarpOp::kGather: return "a gather";
  }
  return "?";
}

std::string format(const char* pattern, auto... arguments) {
  char text[400];
  std::snprintf(text, sizeof text, pattern, arguments...);
  return text;
}

unsigned bit_of(int lane) { return 1u << lane; }

}  // namespace

BlockRunner::BlockRunner(Api& api) : api_(api) {
  api_.warp_barrier = &warp_barrier;
  api_.block_barrier = &block_barrier;
  api_.touch = &touch;
  api_.misaligned = &misaligned;
  api_.begin_iteration = &begin_iteration;
  api_.trap = &trap;
  runner = this;
}

void BlockRunner::begin_launch(const Entry& entry, void** parameters, Index3 size,
                               Schedule schedule, uint64_t seed, ByteCounter* bytes, bool strict) {
  entry_ = &entry;
  parameters_ = parameters;
  schedule_ = schedule;
  bytes_ = bytes;
  strict_ = strict;
  random_.seed(seed);
  switches_ = 0;
  thread_count_ = static_cast<int>(size.x * size.y * size.z);
  fibers_.resize(thread_count_);
  warps_.resize((thread_count_ + kWarpSize - 1) / kWarpSize);
  for (int i = 0; i < thread_count_; ++i) {
    const auto t = static_cast<unsigned>(i);
    fibers_[i].index = {t % size.x, t / size.x % size.y, t / size.x / size.y};
    fibers_[i].lane = i % kWarpSize;
  }
}

void BlockRunner::reset() {
  for (Fiber& fiber : fibers_) fiber.state = State::kNew;
  for (size_t w = 0; w < warps_.size(); ++w) {
    const int lanes = thread_count_ - static_cast<int>(w) * kWarpSize;
    const unsigned exists = lanes >= kWarpSize ? ~0u : bit_of(lanes) - 1;
    warps_[w] = {exists, exists, 0, 0};
  }
  done_count_ = at_block_barrier_ = 0;
  cursor_ = schedule_ == Schedule::kReverse ? thread_count_ - 1 : 0;
  fault_.reset();
  if (bytes_) bytes_->begin_block();
}

std::optional<Fault> BlockRunner::run() {
  reset();
  for (;;) {
    const int thread = next_thread();
    if (thread >= 0) {
      resume(thread);
    } else if (!release_block_barrier()) {
      if (done_count_ < thread_count_) fault_ = find_divergence();
      break;
    }
    if (fault_) break;
  }
  if (fault_) abandon();
  return std::exchange(fault_, std::nullopt);
}

void BlockRunner::abandon() {
  running_ = -1;
  for (Fiber& fiber : fibers_)
    if (fiber.stack >= 0) free_stacks_.push_back(std::exchange(fiber.stack, -1));
}

// The scheduler's choice among the threads that can run, -1: none can.
int BlockRunner::next_thread() {
  const int warps = static_cast<int>(warps_.size());
  const bool upwards = schedule_ == Schedule::kForward || schedule_ == Schedule::kSkewFirst;
  if (schedule_ == Schedule::kRandom) {
    const int start = static_cast<int>(random_() % warps);
    for (int i = 0; i < warps; ++i) {
      const int w = (start + i) % warps;
      unsigned ready = warps_[w].ready;
      if (!ready) continue;
      for (int skip = static_cast<int>(random_() % std::popcount(ready)); skip > 0; --skip)
        ready &= ready - 1;
      return w * kWarpSize + std::countr_zero(ready);
    }
    return -1;
  }
  const bool round = schedule_ == Schedule::kForward || schedule_ == Schedule::kReverse;
  // Going round: first what is ahead of the cursor, then all.
  for (int pass = round ? 0 : 1; pass < 2; ++pass) {
    const int passed = upwards ? cursor_ : thread_count_ - 1 - cursor_;
    for (int i = pass == 0 ? passed / kWarpSize : 0; i < warps; ++i) {
      const int w = upwards ? i : warps - 1 - i;
      unsigned ready = warps_[w].ready;
      if (pass == 0) {
        const int ahead = upwards ? cursor_ - w * kWarpSize : w * kWarpSize + 31 - cursor_;
        if (ahead >= kWarpSize) continue;
        if (ahead > 0) ready &= upwards ? ~0u << ahead : ~0u >> ahead;
      }
      if (!ready) continue;
      const int lane = upwards ? std::countr_zero(ready) : 31 - std::countl_zero(ready);
      return w * kWarpSize + lane;
    }
  }
  return -1;
}

int BlockRunner::take_stack() {
  if (free_stacks_.empty()) {
    stacks_.emplace_back();
    return static_cast<int>(stacks_.size()) - 1;
  }
  const int stack = free_stacks_.back();
  free_stacks_.pop_back();
  return stack;
}

void BlockRunner::resume(int thread) {
  Fiber& fiber = fibers_[thread];
  if (fiber.state == State::kNew) {
    fiber.stack = take_stack();
    prepare_fiber(fiber.context, stacks_[fiber.stack], &enter_fiber);
  }
  warps_[thread / kWarpSize].ready &= ~bit_of(fiber.lane);
  cursor_ = thread + (schedule_ == Schedule::kReverse ? -1 : 1);
  running_ = thread;
  api_.current = &fiber;
  ++switches_;
  switch_fiber(scheduler_, fiber.context);
  running_ = -1;
  if (fiber.state == State::kDone) finish(thread);
}

void BlockRunner::finish(int thread) {
  Fiber& fiber = fibers_[thread];
  free_stacks_.push_back(std::exchange(fiber.stack, -1));
  ++done_count_;
  const int w = thread / kWarpSize;
  Warp& warp = warps_[w];
  warp.done |= bit_of(fiber.lane);
  // Lanes that waited for this one may go on.
  for (unsigned left = warp.waiting; left; left &= left - 1) {
    const unsigned mask = fibers_[w * kWarpSize + std::countr_zero(left)].request.mask;
    if (mask & bit_of(fiber.lane)) release_group(w, mask);
  }
}

void BlockRunner::enter_fiber() {
  runner->entry_->run(runner->parameters_);
  runner->leave(State::kDone);
  __builtin_unreachable();
}

void BlockRunner::leave(State state) {
  Fiber& fiber = fibers_[running_];
  fiber.state = state;
  switch_fiber(fiber.context, scheduler_);
}

void BlockRunner::leave_with(CUresult result, std::string message) {
  fault_ = {result, describe_thread() + ": " + std::move(message)};
  leave(State::kReady);
  __builtin_unreachable();
}

void BlockRunner::warp_barrier() {
  Fiber& fiber = runner->fibers_[runner->running_];
  const int w = runner->running_ / kWarpSize;
  const unsigned bit = bit_of(fiber.lane), mask = fiber.request.mask;
  if (!(mask & bit))
    runner->leave_with(CUDA_ERROR_LAUNCH_FAILED,
                       format("%s with mask 0x%08x, in which its own lane %d is not",
                              name_of(fiber.request.op), mask, fiber.lane));
  runner->warps_[w].waiting |= bit;
  runner->release_group(w, mask);
  if (runner->fault_ || (runner->warps_[w].waiting & bit)) {
    runner->leave(State::kAtWarpBarrier);
  } else {  // it was the last one: goes on at once
    runner->warps_[w].ready &= ~bit;
  }
}

// Lets the lanes of `mask` go on if all that have not exited wait with that mask.
void BlockRunner::release_group(int w, unsigned mask) {
  Warp& warp = warps_[w];
  const unsigned group = mask & warp.exists & ~warp.done;
  if ((warp.waiting & group) != group || group == 0) return;
  Fiber* lanes = &fibers_[w * kWarpSize];
  const WarpRequest& first = lanes[std::countr_zero(group)].request;
  for (unsigned left = group; left; left &= left - 1)
    if (lanes[std::countr_zero(left)].request.mask != mask) return;
  for (unsigned left = group; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const WarpRequest& other = lanes[lane].request;
    if (other.op == first.op && other.width == first.width && other.bytes == first.bytes) continue;
    fault_ = {CUDA_ERROR_LAUNCH_FAILED,
              format("warp barrier in divergent code: in warp %d with mask 0x%08x lane %d waits at "
                     "%s (%d bytes, width %d) and lane %d at %s (%d bytes, width %d)",
                     w, mask, std::countr_zero(group), name_of(first.op), first.bytes, first.width,
                     lane, name_of(other.op), other.bytes, other.width)};
    return;
  }
  resolve(w, group);
  warp.waiting &= ~group;
  warp.ready |= group;
}

// What passes between the lanes of a complete group.
void BlockRunner::resolve(int w, unsigned group) {
  Fiber* lanes = &fibers_[w * kWarpSize];
  unsigned votes = 0;
  for (unsigned left = group; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (lanes[lane].request.predicate) votes |= bit_of(lane);
  }
  const auto copy = [&](unsigned char* to, int source, size_t bytes) {
    if (group >> source & 1)
      std::memcpy(to, lanes[source].request.payload, bytes);
    else
      std::memset(to, kPoison, bytes);
  };
  for (unsigned left = group; left; left &= left - 1) {
    WarpRequest& request = lanes[std::countr_zero(left)].request;
    switch (request.op) {
    case WarpOp::kSync: break;
    case WarpOp::kShuffle: copy(request.gathered, request.source, request.bytes); break;
    case WarpOp::kBallot: request.predicate = votes; break;
    case WarpOp::kGather:
      for (int i = 0; i < kWarpSize; ++i)
        copy(request.gathered + i * request.bytes, i, request.bytes);
      break;
    }
  }
}

unsigned BlockRunner::block_barrier(BlockOp op, unsigned predicate) {
  Fiber& fiber = runner->fibers_[runner->running_];
  fiber.block_op = op;
  fiber.predicate = predicate;
  ++runner->at_block_barrier_;
  runner->leave(State::kAtBlockBarrier);
  return fiber.predicate;
}

bool BlockRunner::release_block_barrier() {
  if (at_block_barrier_ != thread_count_) return false;
  const BlockOp op = fibers_[0].block_op;
  unsigned count = 0;
  for (const Fiber& fiber : fibers_) {
    if (fiber.block_op != op) return false;
    count += fiber.predicate;
  }
  unsigned result = count;
  if (op == BlockOp::kOr) result = count > 0;
  if (op == BlockOp::kAnd) result = count == static_cast<unsigned>(thread_count_);
  for (Fiber& fiber : fibers_) {
    fiber.state = State::kReady;
    fiber.predicate = result;
  }
  for (Warp& warp : warps_) warp.ready = warp.exists;
  at_block_barrier_ = 0;
  cursor_ = schedule_ == Schedule::kReverse ? thread_count_ - 1 : 0;
  return true;
}

// Why no thread can go on although some have not ended.
std::optional<Fault> BlockRunner::find_divergence() const {
  int at_warp_barrier = 0, first = -1;
  for (int i = 0; i < thread_count_; ++i) {
    if (fibers_[i].state != State::kAtWarpBarrier) continue;
    if (first < 0) first = i;
    ++at_warp_barrier;
  }
  std::string message =
      format("barrier in divergent code: block (%u, %u, %u): of %d threads %d wait at a block "
             "barrier, %d at a warp barrier, %d have exited",
             api_.block.x, api_.block.y, api_.block.z, thread_count_, at_block_barrier_,
             at_warp_barrier, done_count_);
  if (first >= 0) {
    const Warp& warp = warps_[first / kWarpSize];
    const WarpRequest& request = fibers_[first].request;
    message += format("; thread %d waits at %s with mask 0x%08x while in its warp 0x%08x wait and "
                      "0x%08x have exited",
                      first, name_of(request.op), request.mask, warp.waiting, warp.done);
  } else if (at_block_barrier_ == thread_count_) {
    message += "; the barriers are of different kinds";
  }
  return Fault{CUDA_ERROR_LAUNCH_FAILED, message};
}

void BlockRunner::touch(const void* address, unsigned long bytes, bool is_store) {
  const bool inside =
      !runner->bytes_ || runner->bytes_->touch(runner->running_, address, bytes, is_store);
  if (inside || !runner->strict_) return;
  runner->leave_with(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      format("%s of %lu bytes at %p: ", is_store ? "store" : "load", bytes, address) +
          describe_address(address));
}

void BlockRunner::misaligned(const void* address, unsigned long bytes, bool is_store) {
  runner->leave_with(
      CUDA_ERROR_MISALIGNED_ADDRESS,
      format("misaligned %s of %lu bytes at %p", is_store ? "store" : "load", bytes, address));
}

void BlockRunner::begin_iteration() {
  if (runner->bytes_) runner->bytes_->begin_iteration(runner->running_);
}

void BlockRunner::trap(const char* why) { runner->leave_with(CUDA_ERROR_ASSERT, why); }

std::string BlockRunner::describe_thread() const {
  const Index3& thread = fibers_[running_].index;
  return format("block (%u, %u, %u), thread (%u, %u, %u)", api_.block.x, api_.block.y, api_.block.z,
                thread.x, thread.y, thread.z);
}

bool BlockRunner::overruns_stack(const void* address) const {
  return stacks_[fibers_[running_].stack].is_guard(address);
}

}  // namespace mlcc_emulator
