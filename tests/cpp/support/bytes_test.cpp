#include "support/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/error.h"

namespace mlcc {
namespace {

const std::vector<int64_t> kNumbers = {0,
                                       1,
                                       -1,
                                       63,
                                       64,
                                       -65,
                                       12345,
                                       std::numeric_limits<int64_t>::max(),
                                       std::numeric_limits<int64_t>::min()};

TEST(Bytes, ReadsWhatWasWritten) {
  ByteWriter out;
  for (const int64_t number : kNumbers) out.add_number(number);
  out.add_count(std::numeric_limits<uint64_t>::max());
  out.add_text("text with \0 zero");
  out.add_byte(1);
  ByteReader in(out.bytes(), "test");
  for (const int64_t number : kNumbers) EXPECT_EQ(in.number(), number);
  EXPECT_EQ(in.count(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(in.text(), std::string("text with \0 zero"));
  EXPECT_TRUE(in.flag());
  in.expect_end();
}

TEST(Bytes, SmallNumbersTakeOneByte) {
  ByteWriter out;
  out.add_number(-64);
  out.add_number(63);
  EXPECT_EQ(out.bytes().size(), 2U);
}

TEST(Bytes, RefusesWhatEndsEarly) {
  ByteWriter out;
  out.add_text("abc");
  for (size_t size = 0; size < out.bytes().size(); ++size) {
    ByteReader in(std::string_view(out.bytes()).substr(0, size), "test");
    EXPECT_THROW((void)in.text(), Error) << size;
  }
}

TEST(Bytes, RefusesLengthsBeyondTheEnd) {
  ByteWriter out;
  out.add_count(uint64_t{1} << 40);
  ByteReader in(out.bytes(), "test");
  EXPECT_THROW((void)in.length(), Error);
}

TEST(Bytes, RefusesOtherNumbers) {
  const std::string endless(12, '\xff');
  EXPECT_THROW((void)ByteReader(endless, "test").count(), Error);
  EXPECT_THROW((void)ByteReader("\x02", "test").flag(), Error);
  EXPECT_THROW(ByteReader("\x02", "test").expect_end(), Error);
  ByteWriter large;
  large.add_count(uint64_t{1} << 31);
  EXPECT_THROW((void)ByteReader(large.bytes(), "test").index(), Error);
}

}  // namespace
}  // namespace mlcc
