#include "runtime/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/logging.h"

namespace mlcc::runtime {
namespace {

constexpr std::string_view kMagic = "MLCCSTO\n";
constexpr uint32_t kFormat = 1;
constexpr const char* kFolder = "store";
constexpr std::string_view kTemporaryPrefix = "tmp-";
// A temporary file this old (seconds) belongs to a writer that died.
constexpr time_t kTemporaryLifetime = 3600;
// Of its limit that a store keeps when it grew beyond, in quarters: so that it seldom shrinks.
constexpr int64_t kQuartersKept = 3;

// An entry larger than this (bytes) is not ours.
constexpr int64_t kMaxFileBytes = int64_t{1} << 32;
constexpr size_t kChecksumOffset = 8 + 4 + 4 + 8 + 16;
constexpr size_t kHeaderBytes = kChecksumOffset + 16;

// Closes a file descriptor at the end of its scope.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

template <typename T>
void append_integer(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

template <typename T>
T read_integer(std::string_view bytes, size_t offset) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  return value;
}

Hash128 read_hash(std::string_view bytes, size_t offset) {
  return {read_integer<uint64_t>(bytes, offset), read_integer<uint64_t>(bytes, offset + 8)};
}

void append_hash(std::string& bytes, const Hash128& hash) {
  append_integer(bytes, hash.low);
  append_integer(bytes, hash.high);
}

Hash128 checksum(std::string_view file) {
  return FieldHasher().add(file.substr(0, kChecksumOffset)).add(file.substr(kHeaderBytes)).finish();
}

std::string entry_name(std::string_view kind, const Hash128& key) {
  return std::string(kind) + "-" + key.hex();
}

bool is_temporary(std::string_view name) { return name.starts_with(kTemporaryPrefix); }

// Whether a file may be good that cannot be opened now.
bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == EINTR || error == EIO;
}

std::string errno_text() { return std::strerror(errno); }

// All of a regular file of ours; nothing if it is something else or cannot be read.
std::optional<std::string> read_all(int descriptor) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (status.st_uid != ::geteuid() || status.st_size > kMaxFileBytes) return std::nullopt;
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(descriptor, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    done += static_cast<size_t>(count);
  }
  return bytes;
}

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

// The folder and its missing parents, for the user alone.
void make_folders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1))
    ::mkdir(path.substr(0, slash).c_str(), 0700);
  ::mkdir(path.c_str(), 0700);
}

struct FolderEntry {
  std::string name;
  int64_t bytes;
  timespec used;
};

bool is_older(const FolderEntry& a, const FolderEntry& b) {
  if (a.used.tv_sec != b.used.tv_sec) return a.used.tv_sec < b.used.tv_sec;
  if (a.used.tv_nsec != b.used.tv_nsec) return a.used.tv_nsec < b.used.tv_nsec;
  return a.name < b.name;
}

// The regular files of a folder.
std::vector<FolderEntry> list_folder(int folder) {
  std::vector<FolderEntry> entries;
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return entries;
  DIR* stream = ::fdopendir(own);
  if (stream == nullptr) {
    ::close(own);
    return entries;
  }
  while (const dirent* item = ::readdir(stream)) {
    struct stat status{};
    if (::fstatat(folder, item->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(status.st_mode)) entries.push_back({item->d_name, status.st_size, status.st_mtim});
  }
  ::closedir(stream);
  return entries;
}

}  // namespace

std::string encode_store_file(std::string_view kind, const Hash128& key, std::string_view payload) {
  std::string file;
  file.reserve(kHeaderBytes + kind.size() + payload.size());
  file.append(kMagic);
  append_integer(file, kFormat);
  append_integer(file, static_cast<uint32_t>(kind.size()));
  append_integer(file, static_cast<uint64_t>(payload.size()));
  append_hash(file, key);
  append_hash(file, {});
  file.append(kind).append(payload);
  std::string sum;
  append_hash(sum, checksum(file));
  file.replace(kChecksumOffset, sum.size(), sum);
  return file;
}

std::optional<std::string> decode_store_file(std::string_view kind, const Hash128& key,
                                             std::string_view file, std::string* reason) {
  const auto bad = [&](std::string_view why) {
    *reason = why;
    return std::nullopt;
  };
  if (file.size() < kHeaderBytes) return bad("shorter than its header");
  if (file.substr(0, kMagic.size()) != kMagic) return bad("no file of the store");
  if (read_integer<uint32_t>(file, 8) != kFormat) return bad("another format version");
  const uint64_t kind_bytes = read_integer<uint32_t>(file, 12);
  const uint64_t payload_bytes = read_integer<uint64_t>(file, 16);
  const uint64_t rest = file.size() - kHeaderBytes;
  if (kind_bytes > rest || payload_bytes != rest - kind_bytes) return bad("sizes do not add up");
  if (read_hash(file, kChecksumOffset) != checksum(file)) return bad("wrong checksum");
  if (file.substr(kHeaderBytes, kind_bytes) != kind) return bad("another kind");
  if (read_hash(file, 24) != key) return bad("another key");
  return std::string(file.substr(kHeaderBytes + kind_bytes));
}

Store::Store(std::string directory, int64_t max_bytes)
    : directory_(std::move(directory)), max_bytes_(max_bytes) {}

Store::~Store() { close_folder(); }

void Store::close_folder() {
  if (folder_ >= 0) ::close(folder_);
  folder_ = -1;
  estimated_bytes_ = -1;
}

bool Store::check_folder(int folder) {
  struct stat status{};
  std::string fault;
  if (::fstat(folder, &status) != 0) {
    fault = errno_text();
  } else if (status.st_uid != ::geteuid()) {
    fault = detail::join("it belongs to user ", status.st_uid, ", not to user ", ::geteuid());
  } else if ((status.st_mode & 022) != 0) {
    fault = "others than its owner may write into it";
  } else {
    return true;
  }
  refuse(fault);
  return false;
}

// From now on the store stays closed; told once.
void Store::refuse(const std::string& fault) {
  refused_ = true;
  log_warning(LogChannel::kCache, "disk store ", directory_, " is not used: ", fault);
}

// Opens the folder unless it is open. `create`: makes it where it is missing.
bool Store::open_folder(bool create) {
  if (folder_ >= 0) return true;
  if (refused_ || max_bytes_ <= 0 || directory_.empty()) return false;
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  if (create) make_folders(directory_);
  const File outer(::open(directory_.c_str(), kFlags));
  if (!outer && errno == ENOENT && !create) return false;
  if (!outer) {
    refuse(errno_text());
    return false;
  }
  if (!check_folder(outer.get())) return false;
  const bool is_refused = create && ::mkdirat(outer.get(), kFolder, 0700) != 0 && errno != EEXIST;
  if (is_refused) {
    refuse(errno_text());
    return false;
  }
  const int inner = ::openat(outer.get(), kFolder, kFlags | O_NOFOLLOW);
  if (inner < 0) {
    if (errno != ENOENT) refuse(errno_text());
    return false;
  }
  folder_ = inner;
  if (check_folder(inner)) return true;
  close_folder();
  return false;
}

std::optional<std::string> Store::get(std::string_view kind, const Hash128& key) {
  const std::lock_guard lock(mutex_);
  if (!open_folder(false)) return std::nullopt;
  const std::string name = entry_name(kind, key);
  const File file(::openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  const int error = file ? 0 : errno;
  ++misses_;
  if (error == ENOENT) return std::nullopt;
  if (is_shortage(error)) {
    log(LogChannel::kCache, "disk store entry ", name, " is not read: ", std::strerror(error));
    return std::nullopt;
  }
  std::string reason = "not a readable file of this user";
  const std::optional<std::string> bytes = file ? read_all(file.get()) : std::nullopt;
  std::optional<std::string> payload;
  if (bytes) payload = decode_store_file(kind, key, *bytes, &reason);
  if (!payload) {
    log(LogChannel::kCache, "disk store entry ", name, " is dropped: ", reason);
    ::unlinkat(folder_, name.c_str(), 0);
    return std::nullopt;
  }
  ::futimens(file.get(), nullptr);  // the time of last use decides what goes first
  --misses_;
  ++hits_;
  return payload;
}

void Store::put(std::string_view kind, const Hash128& key, std::string_view payload) {
  const std::lock_guard lock(mutex_);
  const std::string file = encode_store_file(kind, key, payload);
  const auto bytes = static_cast<int64_t>(file.size());
  if (bytes > max_bytes_ || is_read_only_ || !open_folder(true)) return;
  const std::string name = entry_name(kind, key);
  if (!write_file(name, file)) {
    // Someone may have deleted the folder under us.
    close_folder();
    if (!open_folder(true)) return;
    if (!write_file(name, file)) {
      is_read_only_ = errno == EACCES || errno == EPERM || errno == EROFS;
      if (is_read_only_)
        log_warning(LogChannel::kCache, "disk store ", directory_, " is only read: ", errno_text());
      else
        log(LogChannel::kCache, "disk store entry ", name, " is not written: ", errno_text());
      return;
    }
  }
  if (estimated_bytes_ < 0) {
    shrink(max_bytes_);
  } else {
    estimated_bytes_ += bytes;
    if (estimated_bytes_ > max_bytes_) shrink(max_bytes_);
  }
}

bool Store::write_file(const std::string& name, std::string_view bytes) {
  std::string temporary;
  int descriptor = -1;
  do {
    temporary = detail::join(kTemporaryPrefix, ::getpid(), "-", next_temporary_++);
    descriptor =
        ::openat(folder_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  } while (descriptor < 0 && errno == EEXIST);
  if (descriptor < 0) return false;
  // Not synchronized: what a power cut leaves half written fails its checksum.
  const bool written = write_all(descriptor, bytes);
  const bool closed = ::close(descriptor) == 0;
  if (written && closed && ::renameat(folder_, temporary.c_str(), folder_, name.c_str()) == 0)
    return true;
  const int error = errno;
  ::unlinkat(folder_, temporary.c_str(), 0);
  errno = error;
  return false;
}

// Deletes the least recently used entries down to three quarters of `limit` if there are more bytes
// than that.
void Store::shrink(int64_t limit) {
  std::vector<FolderEntry> entries = list_folder(folder_);
  const time_t now = ::time(nullptr);
  std::erase_if(entries, [&](const FolderEntry& entry) {
    if (!is_temporary(entry.name)) return false;
    if (entry.used.tv_sec + kTemporaryLifetime < now) ::unlinkat(folder_, entry.name.c_str(), 0);
    return true;
  });
  int64_t sum = 0;
  for (const FolderEntry& entry : entries) sum += entry.bytes;
  if (sum > limit) {
    std::sort(entries.begin(), entries.end(), is_older);
    size_t deleted = 0;
    for (; deleted < entries.size() && sum > limit / 4 * kQuartersKept; ++deleted) {
      ::unlinkat(folder_, entries[deleted].name.c_str(), 0);
      sum -= entries[deleted].bytes;
    }
    log(LogChannel::kCache, "disk store ", directory_, ": ", deleted,
        " least recently used entries deleted");
  }
  estimated_bytes_ = sum;
}

StoreInfo Store::info() {
  const std::lock_guard lock(mutex_);
  StoreInfo info;
  info.open = open_folder(false);
  info.hits = hits_;
  info.misses = misses_;
  if (!info.open) return info;
  for (const FolderEntry& entry : list_folder(folder_)) {
    if (is_temporary(entry.name)) continue;
    ++info.entries;
    info.bytes += entry.bytes;
  }
  return info;
}

void Store::clear() {
  const std::lock_guard lock(mutex_);
  if (!open_folder(false)) return;
  for (const FolderEntry& entry : list_folder(folder_)) ::unlinkat(folder_, entry.name.c_str(), 0);
  estimated_bytes_ = 0;
}

void Store::set_max_bytes(int64_t max_bytes) {
  const std::lock_guard lock(mutex_);
  max_bytes_ = max_bytes;
  if (max_bytes_ <= 0) close_folder();
}

}  // namespace mlcc::runtime
