#include "support/older_systems.h"

#include <dlfcn.h>

#include <cmath>

namespace mlcc {

double hypot_of_system(double x, double y) {
  using Function = double (*)(double, double);
  static const auto function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, "hypot"));
  return function != nullptr ? function(x, y)
                             : static_cast<double>(std::hypot(static_cast<long double>(x),
                                                              static_cast<long double>(y)));
}

}  // namespace mlcc
