#include "runtime/block_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace mlcc::runtime {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The pool is the process's: each test starts with nothing idle and the default limit.
class BlockPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    pool_.set_idle_limit(512 * kMiB);
    pool_.trim();
  }

  BlockPool& pool_ = BlockPool::process();
};

TEST_F(BlockPoolTest, GivesWhatWasGivenBack) {
  const int64_t lent = pool_.lent_bytes();
  const Block block = pool_.take(5 * kMiB + 1, 5 * kMiB + 1);
  ASSERT_NE(block.data, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % (2 * kMiB), 0u);
  EXPECT_EQ(block.bytes, 6 * kMiB);
  std::memset(block.data, 1, static_cast<size_t>(block.bytes));
  EXPECT_EQ(pool_.lent_bytes(), lent + block.bytes);
  pool_.give_back(block.data);
  EXPECT_EQ(pool_.lent_bytes(), lent);
  EXPECT_EQ(pool_.idle_bytes(), block.bytes);
  const Block again = pool_.take(5 * kMiB, 6 * kMiB);
  EXPECT_EQ(again.data, block.data);
  EXPECT_EQ(pool_.idle_bytes(), 0);
  pool_.give_back(again.data);
}

TEST_F(BlockPoolTest, FillsHugePagesUpWhereThatIsAtMostAThirdMore) {
  const auto bytes_of = [&](int64_t bytes) {
    const Block block = pool_.take(bytes, bytes);
    pool_.give_back(block.data);
    pool_.trim();
    return block.bytes;
  };
  EXPECT_EQ(bytes_of(kMiB), kMiB);
  EXPECT_EQ(bytes_of(3 * kMiB / 2 - 4096), 3 * kMiB / 2 - 4096);
  EXPECT_EQ(bytes_of(3 * kMiB / 2), 2 * kMiB);
  EXPECT_EQ(bytes_of(5 * kMiB / 2 + 1), 5 * kMiB / 2 + 4096);
  EXPECT_EQ(bytes_of(3 * kMiB), 4 * kMiB);
}

TEST_F(BlockPoolTest, TakesTheTightestThatIsNotTooLarge) {
  const Block large = pool_.take(8 * kMiB, 8 * kMiB);
  const Block middle = pool_.take(4 * kMiB, 4 * kMiB);
  pool_.give_back(middle.data);
  pool_.give_back(large.data);
  const Block tight = pool_.take(3 * kMiB, 12 * kMiB);
  EXPECT_EQ(tight.data, middle.data);
  const Block fresh = pool_.take(3 * kMiB, 4 * kMiB);
  EXPECT_EQ(fresh.bytes, 4 * kMiB);
  pool_.give_back(tight.data);
  pool_.give_back(fresh.data);
}

TEST_F(BlockPoolTest, ShrinksABlockThatIsLent) {
  const Block block = pool_.take(int64_t{7} << 20, int64_t{7} << 20);
  ASSERT_EQ(block.bytes, int64_t{8} << 20);
  std::memset(block.data, 1, static_cast<size_t>(block.bytes));
  const int64_t before = pool_.lent_bytes();
  pool_.shrink(block.data, (int64_t{7} << 20) - 5);
  EXPECT_EQ(before - pool_.lent_bytes(), int64_t{1} << 20);
  EXPECT_EQ(block.data[(int64_t{7} << 20) - 1], 1);
  pool_.shrink(block.data, int64_t{9} << 20);  // no smaller than it is
  pool_.shrink(block.data + 1, 1);             // no block's
  EXPECT_EQ(before - pool_.lent_bytes(), int64_t{1} << 20);
  pool_.give_back(block.data);
  EXPECT_EQ(pool_.take(int64_t{7} << 20, int64_t{7} << 20).data, block.data);
  pool_.give_back(block.data);
}

// A program whose sizes change needs little more memory than without a pool.
TEST_F(BlockPoolTest, HoldsLittleMoreThanWasLentAtOnce) {
  const int64_t lent = pool_.lent_bytes();
  for (int64_t i = 0; i < 20; ++i) {
    const int64_t bytes = (2 + 3 * (i % 7)) * 16 * kMiB;
    const Block block = pool_.take(bytes, bytes);
    EXPECT_LE(pool_.lent_bytes() + pool_.idle_bytes(), lent + 320 * kMiB + BlockPool::kSlackBytes);
    pool_.give_back(block.data);
  }
}

// Nor does that grow as blocks go for their age.
TEST_F(BlockPoolTest, AgeDoesNotRaiseTheBound) {
  const int64_t lent = pool_.lent_bytes();
  const int64_t bound = lent + 100 * kMiB + BlockPool::kSlackBytes;
  std::vector<int64_t> sizes{100};
  for (const int64_t more : {46, 60, 36, 28, 22}) {
    sizes.push_back(more);
    pool_.give_back(pool_.take(2 * kMiB, 2 * kMiB).data);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(1300))
      for (const int64_t mib : sizes) {
        const Block block = pool_.take(mib * kMiB, mib * kMiB);
        ASSERT_LE(pool_.lent_bytes() + pool_.idle_bytes(), bound);
        pool_.give_back(block.data);
      }
  }
}

TEST_F(BlockPoolTest, PhasesOfOtherSizesTakeTheirBlocksAgain) {
  std::set<const char*> seen;
  for (int step = 0; step < 3; ++step) {
    const size_t before = seen.size();
    for (const int64_t mib : {8, 4, 2, 1, 16}) {
      const Block block = pool_.take(mib * kMiB, mib * kMiB);
      seen.insert(block.data);
      pool_.give_back(block.data);
    }
    if (step > 0) {
      EXPECT_EQ(seen.size(), before);
    }
  }
}

TEST_F(BlockPoolTest, KeepsNoMoreThanTheLimit) {
  std::vector<Block> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(pool_.take(2 * kMiB, 2 * kMiB));
  pool_.set_idle_limit(5 * kMiB);
  for (const Block block : blocks) pool_.give_back(block.data);
  EXPECT_EQ(pool_.idle_bytes(), 4 * kMiB);
  pool_.set_idle_limit(0);
  EXPECT_EQ(pool_.idle_bytes(), 0);
  pool_.give_back(pool_.take(2 * kMiB, 2 * kMiB).data);
  EXPECT_EQ(pool_.idle_bytes(), 0);
}

TEST_F(BlockPoolTest, KeepsABoundedNumber) {
  std::vector<Block> blocks;
  for (int i = 0; i < 300; ++i) blocks.push_back(pool_.take(kMiB, kMiB));
  for (const Block block : blocks) pool_.give_back(block.data);
  EXPECT_EQ(pool_.idle_bytes(), 256 * kMiB);
}

TEST_F(BlockPoolTest, GivesIdleBlocksBackByItself) {
  pool_.give_back(pool_.take(kMiB, kMiB).data);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(pool_.idle_bytes(), kMiB);
  for (int i = 0; i < 100 && pool_.idle_bytes() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(pool_.idle_bytes(), 0);
}

TEST_F(BlockPoolTest, SaysWhereThereIsNoMemory) {
  const int64_t lent = pool_.lent_bytes();
  constexpr int64_t kTooMuch = int64_t{1} << 60;
  EXPECT_EQ(pool_.take(kTooMuch, kTooMuch).data, nullptr);
  EXPECT_EQ(pool_.lent_bytes(), lent);
}

TEST_F(BlockPoolTest, ThreadsDoNotShareBlocks) {
  const int64_t lent = pool_.lent_bytes();
  const auto work = [this](char mark) {
    for (int i = 0; i < 200; ++i) {
      const int64_t bytes = kMiB * (1 + i % 3);
      const Block block = pool_.take(bytes, 2 * bytes);
      for (int64_t b = 0; b < bytes; b += 4096) block.data[b] = mark;
      for (int64_t b = 0; b < bytes; b += 4096) ASSERT_EQ(block.data[b], mark);
      pool_.give_back(block.data);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) threads.emplace_back(work, static_cast<char>('a' + t));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_.lent_bytes(), lent);
}

// A tensor that a static object holds is freed after main.
TEST_F(BlockPoolTest, TakesBlocksWhenTheProcessEnds) {
  struct Holder {
    const char* data;
    ~Holder() { BlockPool::process().give_back(data); }
  };
  static const Holder holder{pool_.take(kMiB, kMiB).data};
  EXPECT_NE(holder.data, nullptr);
}

// What is lent at a fork is the child's too; what is idle is not, and its blocks age there as well.
TEST_F(BlockPoolTest, AForkedChildHasItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no threads in a forked child";
#endif
  const Block lent = pool_.take(2 * kMiB, 2 * kMiB);
  lent.data[0] = 'x';
  pool_.give_back(pool_.take(4 * kMiB, 4 * kMiB).data);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool right = pool_.idle_bytes() == 0 && lent.data[0] == 'x';
    pool_.give_back(lent.data);
    right = right && pool_.idle_bytes() == 2 * kMiB;
    for (int i = 0; i < 100 && pool_.idle_bytes() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::_exit(right && pool_.idle_bytes() == 0 ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(lent.data[0], 'x');
  pool_.give_back(lent.data);
}

}  // namespace
}  // namespace mlcc::runtime
