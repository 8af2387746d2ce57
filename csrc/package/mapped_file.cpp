#include "package/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "package/status.h"

namespace mlcc::package {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

[[noreturn]] void fail(const std::string& what) {
  throw StatusError(MLCC_INVALID_FILE, detail::join(what, ": ", std::strerror(errno)));
}

Memory mapped(void* memory, int64_t bytes) {
  return {static_cast<const char*>(memory), [bytes](const char* data) {
            ::munmap(const_cast<char*>(data), static_cast<size_t>(bytes));
          }};
}

char* map_anonymous(int64_t bytes) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MLCC_STATUS_CHECK(memory != MAP_FAILED, MLCC_OUT_OF_MEMORY, "no memory for ", bytes, " bytes");
  return static_cast<char*>(memory);
}

}  // namespace

MappedFile MappedFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path);
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  };
  const auto closer = std::make_shared<Closer>(descriptor);
  struct stat facts;
  if (::fstat(descriptor, &facts) != 0) fail(path);
  MLCC_STATUS_CHECK(S_ISREG(facts.st_mode) && facts.st_size > 0, MLCC_INVALID_FILE, path,
                    ": no file with contents");
  const int64_t bytes = facts.st_size;
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) fail(path);
  return {Memory(static_cast<const char*>(memory),
                 [bytes, closer](const char* data) {
                   ::munmap(const_cast<char*>(data), static_cast<size_t>(bytes));
                 }),
          bytes, descriptor, path};
}

void MappedFile::check_is_whole() const {
  struct stat facts;
  if (descriptor < 0 || ::fstat(descriptor, &facts) != 0) return;
  MLCC_STATUS_CHECK(facts.st_size >= bytes, MLCC_INVALID_FILE, path, ": found ", facts.st_size,
                    " bytes, expected ", bytes, ": the file shrank while it was in use");
}

Memory map_code(int descriptor, int64_t offset, int64_t bytes, const std::string& path) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_EXEC, MAP_PRIVATE,
                        descriptor, offset);
  if (memory == MAP_FAILED && (errno == EPERM || errno == EACCES))
    throw StatusError(MLCC_INVALID_FILE,
                      detail::join(path, ": the system forbids to run code of this file: ",
                                   std::strerror(errno), " (is its folder mounted noexec?)"));
  if (memory == MAP_FAILED) fail(detail::join(path, ": its code cannot be mapped"));
  return mapped(memory, bytes);
}

Memory copy_code(std::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  char* memory = map_anonymous(size);
  Memory owner = mapped(memory, size);
  std::memcpy(memory, bytes.data(), bytes.size());
  if (::mprotect(memory, bytes.size(), PROT_READ | PROT_EXEC) != 0)
    fail("memory for code cannot be made executable");
  __builtin___clear_cache(memory, memory + size);
  return owner;
}

WeightMemory::WeightMemory(int64_t bytes) : bytes_(bytes) {
  const int64_t room = bytes + kHugePage;
  char* memory = map_anonymous(room);
  owner_ = mapped(memory, room);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  data_ = memory + (kHugePage - static_cast<int64_t>(address % kHugePage)) % kHugePage;
  (void)::madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // else small pages do as well
}

Memory WeightMemory::finished() const {
  (void)::mprotect(data_, static_cast<size_t>(bytes_), PROT_READ);
  return {owner_, data_};
}

}  // namespace mlcc::package
