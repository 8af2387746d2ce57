// Tests whose verdicts and store are their own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "driver/options.h"
#include "driver/verdicts.h"

namespace mlcc::driver {

class WithStore : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    options_.cache_dir = folder_.string();
    forget_verdicts();
  }
  void TearDown() override {
    forget_verdicts();
    std::filesystem::remove_all(folder_);
  }

  std::filesystem::path folder_;
  Options options_;
};

}  // namespace mlcc::driver
