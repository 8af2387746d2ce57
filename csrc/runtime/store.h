// The disk store: compiled things by kind and content key, shared by processes. No pickle: every
// entry is one self-describing file with a checksum.
//
// File (integers little-endian): magic "MLCCSTO\n", u32 format, u32 length of kind, u64 size of
// payload, key (u64 low, u64 high), checksum (u64 low, u64 high: xxh128 over all bytes but these
// sixteen), kind, payload.
//
// A file is written under a temporary name and renamed, so readers see all of it or nothing.
// Whatever does not parse is a logged miss and is deleted. The folder must belong to the user and
// be writable by nobody else, otherwise the store stays closed, with one warning. What the file
// system refuses (full, read only) is logged and otherwise ignored.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "support/hash.h"

namespace mlcc::runtime {

// One file's bytes. Kinds are short words of lower-case letters and '_'.
std::string encode_store_file(std::string_view kind, const Hash128& key, std::string_view payload);
// The payload; nothing, with a reason, if the bytes are not exactly a file of this kind and key.
std::optional<std::string> decode_store_file(std::string_view kind, const Hash128& key,
                                             std::string_view file, std::string* reason);

struct StoreInfo {
  bool open = false;
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t hits = 0;  // of this object
  int64_t misses = 0;
};

class Store {
 public:
  // Opens nothing yet. Entries stand in "<directory>/store"; `max_bytes` 0 turns the store off.
  Store(std::string directory, int64_t max_bytes);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  // Thread safe, also against other processes.
  std::optional<std::string> get(std::string_view kind, const Hash128& key);
  void put(std::string_view kind, const Hash128& key, std::string_view payload);
  StoreInfo info();
  void clear();  // deletes all entries

  const std::string& directory() const { return directory_; }
  void set_max_bytes(int64_t max_bytes);

 private:
  bool open_folder(bool create);
  bool check_folder(int folder);
  void refuse(const std::string& fault);
  void close_folder();
  bool write_file(const std::string& name, std::string_view bytes);
  void shrink(int64_t limit);

  std::mutex mutex_;
  std::string directory_;
  int64_t max_bytes_;
  int folder_ = -1;  // file descriptor; all names are relative to it
  bool refused_ = false;
  bool is_read_only_ = false;
  int64_t estimated_bytes_ = -1;  // what the folder holds; -1: not counted yet
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  uint64_t next_temporary_ = 0;
};

}  // namespace mlcc::runtime
