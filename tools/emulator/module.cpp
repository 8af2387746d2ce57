#include "module.h"

#include <cstdio>
#include <cstring>

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

namespace mlcc_emulator {
namespace {

#if defined(__x86_64__)
constexpr int kMachine = EM_X86_64;
#else
constexpr int kMachine = EM_AARCH64;
#endif

// The bytes of an ELF file: linkers put the table of sections at its end. 0: not one of this
// machine.
size_t size_of_image(const void* image) {
  Elf64_Ehdr header;
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0) return 0;
  std::memcpy(&header, image, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachine) return 0;
  return header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
}

bool write_all(int file, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(file, at, size);
    if (written <= 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

// Code for sm_XY runs on devices of the same major version and no lower minor one.
bool runs_on(int arch, int device_arch) {
  return arch / 10 == device_arch / 10 && arch % 10 <= device_arch % 10;
}

}  // namespace

CUresult Module::load(const void* image, int device_arch, Api& api, std::shared_ptr<Module>& out) {
  const size_t size = size_of_image(image);
  if (size == 0) return CUDA_ERROR_INVALID_IMAGE;
  std::shared_ptr<Module> module(new Module);
  module->file_ = memfd_create("mlcc_emulator_program", MFD_CLOEXEC);
  if (module->file_ < 0 || !write_all(module->file_, image, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", module->file_);
  module->object_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!module->object_) return CUDA_ERROR_INVALID_IMAGE;
  using Describe = const Program*();
  auto* describe = reinterpret_cast<Describe*>(dlsym(module->object_, "mlcc_emulator_program"));
  if (!describe) return CUDA_ERROR_INVALID_IMAGE;
  module->program_ = describe();
  if (module->program_->api_version != kApiVersion) return CUDA_ERROR_INVALID_IMAGE;
  if (!runs_on(module->program_->arch, device_arch)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  module->program_->attach(&api);
  out = std::move(module);
  return CUDA_SUCCESS;
}

Module::~Module() {
  if (object_) dlclose(object_);
  if (file_ >= 0) close(file_);
}

const Entry* Module::find(const char* name) const {
  for (unsigned i = 0; i < program_->entry_count; ++i)
    if (std::strcmp(program_->entries[i].name, name) == 0) return &program_->entries[i];
  return nullptr;
}

}  // namespace mlcc_emulator
