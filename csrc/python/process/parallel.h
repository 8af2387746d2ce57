// The threads that kernels run on: libtorch's own, so that mlcc and ATen share one pool and one
// thread count.
#pragma once

#include <cstdint>
#include <functional>

namespace mlcc::python {

// runtime::ParallelFor over libtorch's threads. On the calling thread alone where n <= grain,
// inside a parallel region, and on a thread that came through a fork of a process with worker
// threads (OpenMP's pool hangs there, for eager too).
void torch_parallel(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

// Whether ops of torch may be called on this thread that split their work: not on one of which
// torch_parallel speaks above.
bool may_call_in_parallel();

// Watches forks; called once when the module is loaded.
void install_fork_handlers();

}  // namespace mlcc::python
