#include "schedule/caches.h"

#include <gtest/gtest.h>

namespace mlcc::schedule {
namespace {

TEST(Caches, OfACpuByName) {
  EXPECT_EQ(caches_of("znver3", 256).second_level_bytes, 512 << 10);
  EXPECT_EQ(caches_of("znver3", 256).last_level_bytes, 32 << 20);
  EXPECT_EQ(caches_of("sapphirerapids+amx", 512).second_level_bytes, 2048 << 10);
}

TEST(Caches, OfAnyOtherByItsVectors) {
  EXPECT_EQ(caches_of("cannonlake", 512).second_level_bytes,
            caches_of("x86-64-v4", 512).second_level_bytes);
  EXPECT_EQ(caches_of("bdver4", 256).last_level_bytes,
            caches_of("x86-64-v3", 256).last_level_bytes);
  for (const int64_t bits : {0, 128, 256, 512})
    EXPECT_GT(caches_of("no such cpu", bits).second_level_bytes, 0);
}

TEST(Caches, OfThisMachine) { EXPECT_GT(host_caches().second_level_bytes, 0); }

}  // namespace
}  // namespace mlcc::schedule
