// A file's bytes, and pieces of it as memory of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace mlcc::package {

// Memory that goes back to the system with its last holder.
using Memory = std::shared_ptr<const char>;

// The whole file, to be read. StatusError where it cannot be opened or mapped.
struct MappedFile {
  Memory memory;
  int64_t bytes = 0;
  int descriptor = -1;  // open as long as the memory is held; -1: there is no file
  std::string path;

  static MappedFile open(const std::string& path);
  // StatusError where the file has fewer bytes by now: to read those would end the process.
  void check_is_whole() const;
};

// Pages of a file that may be executed. `offset` is a multiple of the page. StatusError where the
// system does not allow it, as for files of folders that are mounted noexec.
Memory map_code(int descriptor, int64_t offset, int64_t bytes, const std::string& path);
// The same of bytes in memory, which are copied.
Memory copy_code(std::string_view bytes);

// Memory for weights, in huge pages where the system has any.
class WeightMemory {
 public:
  explicit WeightMemory(int64_t bytes);  // 0 too

  char* data() const { return data_; }
  Memory finished() const;  // which nobody writes any more

 private:
  Memory owner_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace mlcc::package
