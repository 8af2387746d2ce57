#include "python/process/without_gil.h"

#include <Python.h>
#include <cxxabi.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>

#include "support/older_systems.h"

namespace mlcc::python {
namespace {

// Longer than compiling a graph takes; then the fork goes ahead.
constexpr std::chrono::seconds kForkWaitSeconds{10};

// Never destroyed: threads may compile while the process ends.
struct Compilations {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  bool forking = false;
};

Compilations& compilations() {
  static auto* const state = new Compilations;
  return *state;
}

// Compilations that this thread is in; a fork from inside of one must not wait for itself.
thread_local int own_compilations = 0;

void before_fork() {
  Compilations& state = compilations();
  std::unique_lock lock(state.mutex);
  state.forking = true;
  state.changed.wait_for(lock, kForkWaitSeconds, [&] { return state.running <= own_compilations; });
  lock.release();  // held over the fork, so that the child finds it in the hands of its only thread
}

void after_fork_in_parent() {
  Compilations& state = compilations();
  state.forking = false;
  state.changed.notify_all();
  state.mutex.unlock();
}

void after_fork_in_child() {
  Compilations& state = compilations();
  state.forking = false;
  state.running = own_compilations;
  state.mutex.unlock();
  new (&state.changed) std::condition_variable;  // others may have waited for it, who are not here
}

}  // namespace

WithoutGil::WithoutGil() : thread_state_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() {
  try {
    PyEval_RestoreThread(static_cast<PyThreadState*>(thread_state_));
  } catch (const abi::__forced_unwind&) {  // of pthread_exit
    for (;;) pause();
  }
}

ForkBarrier::ForkBarrier() {
  Compilations& state = compilations();
  std::unique_lock lock(state.mutex);
  if (own_compilations == 0) wait_until_ready(state.changed, lock, [&] { return !state.forking; });
  ++state.running;
  ++own_compilations;
}

ForkBarrier::~ForkBarrier() {
  Compilations& state = compilations();
  const std::scoped_lock lock(state.mutex);
  --state.running;
  --own_compilations;
  state.changed.notify_all();
}

void install_fork_barrier() {
  ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace mlcc::python
