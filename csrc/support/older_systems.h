// What a library that is linked on a new system needs to load on older ones too: glibc 2.34 and the
// C++ library of GCC 11. What they lack has a symbol version of its own; tools/check_wheel.py looks
// for such.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace mlcc {

// sqrt(x^2 + y^2) without overflow, by the C library that is there.
double hypot_of_system(double x, double y);

// Waits until `ready()` holds, which is asked with the lock held: std::condition_variable::wait.
template <typename Ready>
void wait_until_ready(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                      Ready ready) {
  while (!ready()) changed.wait_for(lock, std::chrono::hours(1));
}

}  // namespace mlcc
