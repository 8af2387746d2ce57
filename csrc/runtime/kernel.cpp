#include "runtime/kernel.h"

namespace mlcc::runtime {

std::string fill_in(std::string_view text, const CheckDetails& details) {
  std::string filled(text);
  for (size_t i = 0; i < details.size(); ++i) {
    const std::string place = "{" + std::to_string(i) + "}";
    if (const size_t at = filled.find(place); at != std::string::npos)
      filled.replace(at, place.size(), std::to_string(details[i]));
  }
  return filled;
}

}  // namespace mlcc::runtime
