// Makes object code callable in this process. The one module that holds LLVM's linker.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mlcc::codegen::cpu {

// One object in memory, with a symbol space of its own. Its code is unmapped with it.
class LoadedObject {
 public:
  virtual ~LoadedObject() = default;
  virtual const std::vector<void*>& addresses() const = 0;  // one per symbol asked for
};

// Links `object` and finds `symbols` in it. Throws Error where the bytes are no object of this
// machine, a symbol is missing, or the object refers to anything outside itself. Kernels are
// announced to gdb. Thread safe.
std::unique_ptr<LoadedObject> load_object(std::string_view object,
                                          const std::vector<std::string>& symbols);

}  // namespace mlcc::codegen::cpu
