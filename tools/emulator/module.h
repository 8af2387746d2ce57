// Programs as the driver loads them: shared objects made by compile.h, opened from memory.
#pragma once

#include <memory>
#include <string>

#include "cuda_types.h"
#include "kernel_api.h"

namespace mlcc_emulator {

class Module {
 public:
  // `image` is what nvrtcGetCUBIN gave.
  static CUresult load(const void* image, int device_arch, Api& api, std::shared_ptr<Module>& out);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const Program& program() const { return *program_; }
  const Entry* find(const char* name) const;  // null: none of that name

 private:
  Module() = default;

  int file_ = -1;  // kept open: its number is the name under which dlopen knows the object
  void* object_ = nullptr;
  const Program* program_ = nullptr;
};

}  // namespace mlcc_emulator
