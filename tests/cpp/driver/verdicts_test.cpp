#include "driver/verdicts.h"

#include <gtest/gtest.h>

#include <string>

#include "driver/session.h"
#include "with_store.h"

namespace mlcc::driver {
namespace {

class Verdicts : public WithStore {
 protected:
  Hash128 key(int64_t num_threads = 1) const {
    return verdict_key("graph @g() {\n}\n", {}, num_threads, options_);
  }
  // The verdict, if it is measured now.
  std::string verdict(const std::string& measured, int64_t num_threads = 1) {
    return verdict_of(key(num_threads), options_, [&] {
      ++measurements_;
      return Verdict{measured, "passes: 2 us, default 3 us\n"};
    });
  }

  int measurements_ = 0;
};

TEST_F(Verdicts, StayWhatTheyAreInAProcess) {
  options_.cache_size_mb = 0;
  EXPECT_EQ(verdict("passes"), "passes");
  EXPECT_EQ(verdict("default"), "passes");
  EXPECT_EQ(measurements_, 1);
  forget_verdicts();
  EXPECT_EQ(verdict("default"), "default");
  EXPECT_EQ(measurements_, 2);
}

TEST_F(Verdicts, AreThereForLaterProcesses) {
  EXPECT_EQ(verdict("passes"), "passes");
  forget_verdicts();
  EXPECT_EQ(verdict("default"), "passes");
  EXPECT_EQ(measurements_, 1);
  EXPECT_EQ(store(options_)->get("verdict", key()), "passes\npasses: 2 us, default 3 us\n");
}

TEST_F(Verdicts, OfAProcessAreNotStored) {
  EXPECT_EQ(verdict_of(key(), options_, [] { return Verdict{"call", "", false}; }), "call");
  EXPECT_EQ(verdict("code"), "call");
  forget_verdicts();
  EXPECT_EQ(verdict("code"), "code");
}

TEST_F(Verdicts, AreOfAMachineAndItsThreads) {
  EXPECT_EQ(verdict("passes"), "passes");
  EXPECT_EQ(verdict("default", 2), "default");
  Options other = options_;
  other.stream_mb = 3;
  EXPECT_NE(verdict_key("g", {}, 1, options_), verdict_key("g", {}, 1, other));
  Options of_threads;
  of_threads.num_threads = 64;  // as kernels are cut, not as they run
  EXPECT_NE(verdict_key("g", {}, 1, options_), verdict_key("g", {}, 1, of_threads));
  EXPECT_NE(verdict_key("g", {}, 1, options_),
            verdict_key("g", {.backend = "llvm", .cpu = "haswell"}, 1, options_));
  EXPECT_NE(verdict_key("g", {}, 1, options_), verdict_key("h", {}, 1, options_));
}

}  // namespace
}  // namespace mlcc::driver
