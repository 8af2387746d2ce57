// Numbers and texts as bytes, for files: written and read in the same order, nothing in between.
// Numbers take as many bytes as they need (seven bits each, the last one below 128).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mlcc {

class ByteWriter {
 public:
  void add_count(uint64_t value);
  void add_number(int64_t value);  // near 0, of any sign: few bytes
  void add_byte(uint8_t value) { bytes_ += static_cast<char>(value); }
  void add_text(std::string_view text);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Every function throws Error where the bytes end early or are no such thing.
class ByteReader {
 public:
  // `what` is named in errors.
  ByteReader(std::string_view bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  uint64_t count();
  int64_t number();
  uint8_t byte();
  std::string_view text();  // lies in the bytes that are read

  // A count of things that each take a byte at least: no more than there are bytes left, so that
  // what is read makes nobody allocate more.
  size_t length();
  int32_t index();    // a count that is an int32_t
  bool flag();        // 0 or 1
  void expect_end();  // nothing is left
  std::string_view rest() const { return bytes_.substr(place_); }

  [[noreturn]] void fail(std::string_view why) const;

 private:
  std::string_view bytes_;
  std::string_view what_;
  size_t place_ = 0;
};

}  // namespace mlcc
