#include "support/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace mlcc {
namespace {

TEST(Hash128, hex_prints_the_high_half_first) {
  const Hash128 hash{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  EXPECT_EQ(hash.hex(), "fedcba98765432100123456789abcdef");
  EXPECT_EQ(Hash128{}.hex(), std::string(32, '0'));
}

TEST(Hash128, is_the_same_in_every_process) {
  // Published test value of XXH3-128 for the empty input: a cache file written elsewhere must be
  // found.
  EXPECT_EQ(hash_bytes("").hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash128, both_overloads_agree) {
  const std::string text = "graph @f()";
  EXPECT_EQ(hash_bytes(text), hash_bytes(text.data(), text.size()));
}

TEST(Hash128, every_byte_counts) {
  std::set<Hash128> seen;
  for (size_t size = 0; size < 300; ++size) {
    std::string bytes(size, 'a');
    seen.insert(hash_bytes(bytes));
    if (bytes.empty()) continue;
    bytes[size / 2] = 'b';
    seen.insert(hash_bytes(bytes));
  }
  EXPECT_EQ(seen.size(), 599u);
}

TEST(Hash128, serves_as_key_of_unordered_containers) {
  std::unordered_set<Hash128> keys = {hash_bytes("a"), hash_bytes("b"), hash_bytes("a")};
  EXPECT_EQ(keys.size(), 2u);
}

TEST(FieldHasher, fields_do_not_run_into_each_other) {
  const auto hash = [](const std::vector<std::string>& fields) {
    FieldHasher hasher;
    for (const std::string& field : fields) hasher.add(std::string_view(field));
    return hasher.finish();
  };
  EXPECT_NE(hash({"ab", "c"}), hash({"a", "bc"}));
  EXPECT_NE(hash({"abc"}), hash({"abc", ""}));
  EXPECT_NE(hash({}), hash({""}));
  EXPECT_EQ(hash({"ab", "c"}), hash({"ab", "c"}));
}

TEST(FieldHasher, integers_are_fields) {
  EXPECT_NE(FieldHasher().add(int64_t{1}).add(int64_t{2}).finish(),
            FieldHasher().add(int64_t{2}).add(int64_t{1}).finish());
  EXPECT_NE(FieldHasher().add(int64_t{-1}).finish(), FieldHasher().add(int64_t{1}).finish());
}

}  // namespace
}  // namespace mlcc
