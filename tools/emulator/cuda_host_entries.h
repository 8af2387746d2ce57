// CUDA C++ on the host, continued: how a launch calls a __global__ function. Stands before every
// program's text; behind the text stand the program's entries and mlcc_emulator_program.
#pragma once

#include "cuda_host.h"

namespace mlcc_emulator {

template <auto kernel>
struct Call;

template <class... P, void (*kernel)(P...)>
struct Call<kernel> {
  static constexpr unsigned kBytes[sizeof...(P) + 1] = {sizeof(P)..., 0};

  template <unsigned... I>
  struct Indices {};
  template <unsigned count, unsigned... I>
  struct Count : Count<count - 1, count - 1, I...> {};
  template <unsigned... I>
  struct Count<0, I...> {
    using type = Indices<I...>;
  };

  template <unsigned... I>
  static void expand(void** parameters, Indices<I...>) {
    kernel(*static_cast<P*>(parameters[I])...);
  }
  static void run(void** parameters) { expand(parameters, typename Count<sizeof...(P)>::type()); }
};

template <auto kernel>
constexpr Entry entry_of(const char* name, unsigned max_threads = 0) {
  return {name, &Call<kernel>::run, Call<kernel>::kBytes,
          sizeof(Call<kernel>::kBytes) / sizeof(unsigned) - 1, max_threads};
}
// __launch_bounds__(threads, ...)
constexpr unsigned first_of(unsigned first, ...) { return first; }

}  // namespace mlcc_emulator

// Where the linker puts .bss, that is the shared variables.
extern "C" unsigned char __bss_start __attribute__((visibility("hidden")));
extern "C" unsigned char _end __attribute__((visibility("hidden")));
