// The C++ library that is linked into libmlcc_llvm.so asks glibc 2.36 for random numbers; older
// systems have none of that name.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" std::uint32_t arc4random() {
  std::uint32_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}
