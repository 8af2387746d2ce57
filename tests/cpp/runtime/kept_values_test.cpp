#include "runtime/kept_values.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace mlcc::runtime {
namespace {

class TestValue final : public KeptValue {
 public:
  TestValue(int64_t bytes, std::shared_ptr<int> source)
      : KeptValue(bytes), source_(std::move(source)) {}
  bool is_orphan() const override { return source_.expired(); }

 private:
  std::weak_ptr<int> source_;
};

class KeptValuesTest : public ::testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    store_.clear();
    store_.set_limit(-1);
  }

  KeptValuePtr put(uint64_t key, int64_t bytes) {
    auto value = std::make_shared<const TestValue>(bytes, source_);
    value->touch(store_.now());
    store_.put({key, 0}, value);
    return value;
  }
  bool has(uint64_t key) const { return store_.find({key, 0}) != nullptr; }

  KeptValues& store_ = KeptValues::process();
  std::shared_ptr<int> source_ = std::make_shared<int>(0);
};

TEST_F(KeptValuesTest, FindsWhatWasPut) {
  EXPECT_FALSE(has(1));
  const KeptValuePtr value = put(1, 100);
  EXPECT_EQ(store_.find({1, 0}), value);
  EXPECT_EQ(store_.info().bytes, 100);
  const KeptValuePtr other = put(1, 30);  // in its place
  EXPECT_EQ(store_.find({1, 0}), other);
  EXPECT_EQ(store_.info().bytes, 30);
  EXPECT_EQ(store_.info().entries, 1);
  store_.clear();
  EXPECT_FALSE(has(1));
  EXPECT_EQ(store_.info().bytes, 0);
  EXPECT_EQ(value->bytes(), 100);  // lives on
}

TEST_F(KeptValuesTest, Erases) {
  put(1, 100);
  put(2, 30);
  store_.erase({1, 0});
  store_.erase({3, 0});
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(2));
  EXPECT_EQ(store_.info().bytes, 30);
}

TEST_F(KeptValuesTest, TheLeastRecentlyUsedGoesFirst) {
  store_.set_limit(300);
  const KeptValuePtr first = put(1, 100);
  put(2, 100);
  put(3, 100);
  first->touch(store_.now());
  put(4, 100);
  EXPECT_TRUE(has(1));
  EXPECT_FALSE(has(2));
  EXPECT_TRUE(has(3));
  put(5, 301);  // larger than all may be together
  EXPECT_FALSE(has(5));
  EXPECT_TRUE(has(4));
  store_.set_limit(100);
  EXPECT_TRUE(has(4));
  EXPECT_EQ(store_.info().entries, 1);
}

TEST_F(KeptValuesTest, OrphansAreSwept) {
  put(1, 100);
  EXPECT_EQ(store_.sweep(), 0);
  const auto other = std::make_shared<int>(0);
  store_.put({2, 0}, std::make_shared<const TestValue>(50, other));
  source_.reset();
  EXPECT_EQ(store_.sweep(), 100);
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(2));
}

TEST_F(KeptValuesTest, CallsSweepNowAndThen) {
  put(1, 100);
  source_.reset();
  for (int call = 0; call < 200; ++call) store_.now();
  EXPECT_FALSE(has(1));
}

TEST_F(KeptValuesTest, ThreadsPutFindAndClear) {
  store_.set_limit(2000);
  std::atomic<int64_t> found{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread)
    threads.emplace_back([&, thread] {
      for (uint64_t round = 0; round < 500; ++round) {
        const uint64_t key = (round * 7 + static_cast<uint64_t>(thread)) % 40;
        if (const KeptValuePtr value = store_.find({key, 0})) {
          value->touch(store_.now());
          ++found;
        } else {
          store_.put({key, 0}, std::make_shared<const TestValue>(100, source_));
        }
        if (thread == 0 && round % 50 == 0) store_.clear();
        EXPECT_LE(store_.info().bytes, 2000);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace mlcc::runtime
