#include "python/process/parallel.h"

#include <ATen/Parallel.h>
#include <dirent.h>
#include <pthread.h>
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <atomic>

#include "support/error.h"

namespace mlcc::python {
namespace {

// Set in a forked child on the one thread that survived, if the parent had others: they may be
// OpenMP's workers, which this thread would wait for. Threads that the child starts are not
// concerned.
thread_local bool lost_its_workers = false;

std::atomic<bool> parent_has_threads{false};

bool process_has_other_threads() {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return true;
  int count = 0;
  while (const dirent* task = ::readdir(tasks))
    if (task->d_name[0] != '.') ++count;
  ::closedir(tasks);
  return count > 1;
}

void before_fork() { parent_has_threads = process_has_other_threads(); }

void in_child() {
  if (parent_has_threads) lost_its_workers = true;
}

void call_body(int64_t begin, int64_t end, void* body) {
  (*static_cast<const std::function<void(int64_t, int64_t)>*>(body))(begin, end);
}

}  // namespace

void install_fork_handlers() { ::pthread_atfork(before_fork, nullptr, in_child); }

bool may_call_in_parallel() { return !lost_its_workers && !at::in_parallel_region(); }

void torch_parallel(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (n <= grain || lost_its_workers || at::in_parallel_region() || at::get_num_threads() == 1) {
    body(0, n);
    return;
  }
  auto* context = const_cast<void*>(static_cast<const void*>(&body));
  const AOTITorchError error = torch_parallel_for(0, n, grain, call_body, context);
  MLCC_CHECK(error == 0, "torch_parallel_for failed with code ", error);
}

}  // namespace mlcc::python
