// The C++ library that is linked into libmlcc_llvm.so asks glibc 2.36 for random numbers; older
// systems have none of that name.
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

extern "C" std::uint32_t arc4random() {
  std::uint32_t number = 0;
  ssize_t got = -1;
  do got = ::getrandom(&number, sizeof number, 0);
  while (got < 0 && errno == EINTR);
  if (got != sizeof number) std::abort();
  return number;
}
