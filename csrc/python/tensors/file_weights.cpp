#include "python/tensors/file_weights.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace mlcc::python {
namespace {

struct Files {
  std::mutex lock;
  // Weak, and so by address: a storage that is gone may have given its own to another.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
};

Files& files() {
  static auto* const all = new Files();
  return *all;
}

#ifdef __linux__
// Whole pages around a tensor's bytes. What lies beside it in them is the same file's.
struct Pages {
  uintptr_t begin = 0;
  size_t count = 0;
  size_t size = 0;
};

Pages pages_of(const at::Tensor& tensor) {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t first = begin / size * size;
  return {first, (begin + tensor.nbytes() - first + size - 1) / size, size};
}

// A word for each page, as the kernel's documentation of pagemap has them.
constexpr uint64_t kIsFile = uint64_t{1} << 61;
constexpr uint64_t kIsSwapped = uint64_t{1} << 62;
constexpr uint64_t kIsPresent = uint64_t{1} << 63;

// Whether all pages that are there are the file's. Those that were written are not, and would be
// lost.
bool are_unchanged(const Pages& pages) {
  // Not by a stream, whose buffer asks for parts of words.
  const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (map < 0) return false;
  std::vector<uint64_t> words(pages.count);
  const size_t bytes = words.size() * sizeof(uint64_t);
  const auto place = static_cast<off_t>(pages.begin / pages.size * sizeof(uint64_t));
  const ssize_t found = pread(map, words.data(), bytes, place);
  close(map);
  if (found != static_cast<ssize_t>(bytes)) return false;
  return std::all_of(words.begin(), words.end(), [](uint64_t word) {
    return (word & (kIsPresent | kIsSwapped)) == 0 || (word & kIsFile) != 0;
  });
}
#endif

}  // namespace

void mark_as_file(const at::Tensor& tensor) {
  Files& all = files();
  const std::lock_guard<std::mutex> guard(all.lock);
  std::erase_if(all.storages, [](const auto& one) { return one.second.expired(); });
  all.storages.emplace(tensor.storage().unsafeGetStorageImpl(),
                       tensor.storage().getWeakStorageImpl());
}

bool is_file(const at::Tensor& tensor) {
  Files& all = files();
  const std::lock_guard<std::mutex> guard(all.lock);
  const auto found = all.storages.find(tensor.storage().unsafeGetStorageImpl());
  return found != all.storages.end() && !found->second.expired();
}

void bind_file_weights(pybind11::module_& module) {
  module.def(
      "mark_as_file",
      [](const pybind11::object& tensor) { mark_as_file(THPVariable_Unpack(tensor.ptr())); },
      pybind11::arg("tensor"),
      "A tensor that is the bytes of a privately mapped file, written by ops of torch alone.");
}

WholeReading::WholeReading(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.numel() > 0 && tensor.is_contiguous() && is_file(tensor))
      of_files_.push_back(tensor);
}

WholeReading::~WholeReading() {
  if (of_files_.empty()) return;
#ifdef __linux__
  for (const at::Tensor& tensor : of_files_)
    if (const Pages pages = pages_of(tensor); are_unchanged(pages))
      (void)madvise(reinterpret_cast<void*>(pages.begin), pages.count * pages.size, MADV_DONTNEED);
#endif
#ifdef __GLIBC__
  malloc_trim(0);  // what was unpacked on the way; malloc would keep it for more of that size
#endif
}

}  // namespace mlcc::python
