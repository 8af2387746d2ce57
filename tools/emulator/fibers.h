// Stacks of their own to run code on, and the switch between them.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace mlcc_emulator {

// 64 KiB over a page that cannot be touched: a kernel that overruns it faults.
class FiberStack {
 public:
  FiberStack();
  ~FiberStack();
  FiberStack(FiberStack&& other) noexcept : base_(other.base_) { other.base_ = nullptr; }
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  unsigned char* begin() const;  // above the guard page
  unsigned char* end() const;
  bool is_guard(const void* address) const;

 private:
  unsigned char* base_;
};

// Where a fiber, or the thread that runs fibers, stands while another runs.
struct FiberContext {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

// Afterwards a switch to `context` calls `entry`, which must not return.
void prepare_fiber(FiberContext& context, const FiberStack& stack, void (*entry)());

// Returns when something switches back to `from`.
void switch_fiber(FiberContext& from, FiberContext& to);

}  // namespace mlcc_emulator
