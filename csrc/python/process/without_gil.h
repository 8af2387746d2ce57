// Work of the core that lets other Python threads run, and how it stands to fork and to the
// interpreter's end.
#pragma once

namespace mlcc::python {

// Lets go of the interpreter's lock for its lifetime. A thread that would take the lock again while
// the interpreter ends stops where it is, until the process is gone: Python 3.11 ends such threads
// by unwinding their stacks, which destroys Python objects without the lock.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* thread_state_;
};

// A compilation, of which none is under way when the process forks: a child must not inherit locks
// of the compiler or of LLVM that threads hold which it does not have. A fork waits for
// compilations for at most kForkWaitSeconds, since one may wait for the interpreter's lock, which
// who forks holds.
class ForkBarrier {
 public:
  ForkBarrier();
  ~ForkBarrier();
  ForkBarrier(const ForkBarrier&) = delete;
  ForkBarrier& operator=(const ForkBarrier&) = delete;
};

// Called once, before the first compilation.
void install_fork_barrier();

}  // namespace mlcc::python
