#include "package/status.h"

namespace mlcc::package {

void throw_status(mlcc_status status, std::initializer_list<detail::Part> text) {
  throw StatusError(status, detail::join_parts(text));
}

}  // namespace mlcc::package
