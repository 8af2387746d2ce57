// Where the tables of exceptions of a loaded library are, as libgcc asks for them. glibc has this
// function since 2.35, and other C libraries not at all; without one of our own, the runtime would
// ask for such a new glibc.
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

#ifdef DLFO_STRUCT_HAS_EH_DBASE  // so says a glibc that has it, with which libgcc was built to ask
                                 // for it

namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* found;
};

bool contains(const dl_phdr_info& object, const ElfW(Phdr) & segment, std::uintptr_t address) {
  const std::uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
  return segment.p_type == PT_LOAD && address >= begin && address - begin < segment.p_memsz;
}

int look_at(dl_phdr_info* object, std::size_t /*size*/, void* data) {
  auto& search = *static_cast<Search*>(data);
  bool inside = false;
  const ElfW(Phdr)* tables = nullptr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    inside = inside || contains(*object, segment, search.address);
    if (segment.p_type == PT_GNU_EH_FRAME) {
      tables = &segment;
    }
  }
  if (!inside || tables == nullptr) {
    return 0;
  }
  search.found->dlfo_eh_frame = reinterpret_cast<void*>(object->dlpi_addr + tables->p_vaddr);
  return 1;
}

}  // namespace

// Called by code that is linked after this file was optimized with the others.
extern "C" [[gnu::used]] int _dl_find_object(void* address, dl_find_object* found) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), found};
  return dl_iterate_phdr(&look_at, &search) != 0 ? 0 : -1;
}

#endif
