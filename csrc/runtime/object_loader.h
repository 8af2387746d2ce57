// The only way to make compiled code callable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kernel.h"

namespace mlcc::runtime {

// The symbol of a kernel's phase in its object code.
std::string phase_symbol(std::string_view kernel, int64_t phase);

// A constant of an object, i64: the bytes of KernelArgs::scratch that the kernel uses. Only where
// it uses any.
std::string scratch_symbol(std::string_view kernel);

// Code of the same kernel for any arguments; compiles it if need be. Null where there is none.
using FindGeneralCode = std::function<KernelPtr()>;

struct KernelToLoad {
  std::string name;
  int num_phases = 0;
  std::string label = {};                  // what it computes, for messages
  std::vector<KernelError> errors = {};    // of its checks
  FindGeneralCode find_general = nullptr;  // for code that is right for usual arguments only
};

// What one compilation gave, loaded: the code of one or more kernels. Each of them keeps it alive.
class LoadedObject {
 public:
  LoadedObject() = default;
  LoadedObject(const LoadedObject&) = delete;
  LoadedObject& operator=(const LoadedObject&) = delete;
  virtual ~LoadedObject() = default;
  // Throws Error where the object does not define such a kernel. Thread safe.
  virtual KernelPtr kernel(const KernelToLoad& wanted) const = 0;
};

class ObjectLoader {
 public:
  virtual ~ObjectLoader() = default;
  // Throws Error where the bytes are not an object of this loader's kind. Thread safe.
  virtual std::shared_ptr<const LoadedObject> open(std::string bytes) const = 0;

  // The one kernel of an object.
  KernelPtr load(std::string_view bytes, const std::string& name, int num_phases) const;
};

}  // namespace mlcc::runtime
