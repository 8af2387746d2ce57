#include "support/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace mlcc {
namespace {

using ::testing::ElementsAre;

class LoggingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_levels("");
    set_log_sink([this](LogChannel channel, LogLevel level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(
          detail::join(log_channel_name(channel), level == LogLevel::kDebug ? "+ " : " ", message));
    });
  }
  void TearDown() override {
    set_log_sink({});
    set_log_levels("");
  }

  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(LoggingTest, channels_have_names) {
  for (int i = 0; i < kNumLogChannels; ++i) {
    const auto channel = static_cast<LogChannel>(i);
    EXPECT_EQ(parse_log_channel(log_channel_name(channel)), channel);
  }
  EXPECT_EQ(parse_log_channel("fusion"), LogChannel::kFusion);
  EXPECT_EQ(parse_log_channel("perf"), LogChannel::kPerf);
  EXPECT_EQ(parse_log_channel("nothing"), std::nullopt);
}

TEST_F(LoggingTest, everything_is_off_at_first) {
  for (int i = 0; i < kNumLogChannels; ++i) EXPECT_FALSE(enabled(static_cast<LogChannel>(i)));
  log(LogChannel::kFusion, "not written");
  EXPECT_THAT(lines_, ElementsAre());
}

TEST_F(LoggingTest, levels_select_messages) {
  set_log_levels("fusion, +cache");
  EXPECT_EQ(log_level(LogChannel::kFusion), LogLevel::kInfo);
  EXPECT_EQ(log_level(LogChannel::kCache), LogLevel::kDebug);
  EXPECT_FALSE(enabled(LogChannel::kGraph));
  EXPECT_FALSE(enabled(LogChannel::kFusion, LogLevel::kOff));
  log(LogChannel::kFusion, "group ", 3);
  log_debug(LogChannel::kFusion, "hidden");
  log_debug(LogChannel::kCache, "key ", 'x');
  log(LogChannel::kGraph, "hidden");
  EXPECT_THAT(lines_, ElementsAre("fusion group 3", "cache+ key x"));
}

TEST_F(LoggingTest, a_list_replaces_the_one_before) {
  set_log_levels("all");
  EXPECT_TRUE(enabled(LogChannel::kPerf));
  set_log_levels("graph");
  EXPECT_FALSE(enabled(LogChannel::kPerf));
  EXPECT_TRUE(enabled(LogChannel::kGraph));
}

TEST_F(LoggingTest, an_unknown_name_changes_nothing) {
  set_log_levels("graph");
  EXPECT_THROW(set_log_levels("fusion,grahp"), Error);
  EXPECT_TRUE(enabled(LogChannel::kGraph));
  EXPECT_FALSE(enabled(LogChannel::kFusion));
}

TEST_F(LoggingTest, warnings_need_no_channel) {
  log_warning(LogChannel::kCache, "folder ", 1);
  EXPECT_THAT(lines_, ElementsAre("cache folder 1"));
}

struct CountsPrints {
  int* count;
  friend std::ostream& operator<<(std::ostream& stream, const CountsPrints& c) {
    ++*c.count;
    return stream << "printed";
  }
};

TEST_F(LoggingTest, parts_are_printed_only_if_enabled) {
  int count = 0;
  log(LogChannel::kKernels, CountsPrints{&count});
  EXPECT_EQ(count, 0);
  set_log_level(LogChannel::kKernels, LogLevel::kInfo);
  log(LogChannel::kKernels, CountsPrints{&count});
  EXPECT_EQ(count, 1);
}

TEST_F(LoggingTest, the_default_sink_writes_one_line_to_stderr) {
  set_log_level(LogChannel::kFallback, LogLevel::kInfo);
  set_log_sink({});
  ::testing::internal::CaptureStderr();
  log(LogChannel::kFallback, "sort: dtype bool");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "mlcc fallback: sort: dtype bool\n");
  ::testing::internal::CaptureStderr();
  log_warning(LogChannel::kCache, "folder is not used");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "mlcc cache: warning: folder is not used\n");
}

TEST_F(LoggingTest, a_sink_may_log_and_replace_itself) {
  set_log_levels("all");
  std::vector<std::string> seen;
  set_log_sink([&](LogChannel, LogLevel, std::string_view message) {
    seen.emplace_back(message);
    if (seen.size() == 1) log(LogChannel::kGraph, "inner");
    if (seen.size() == 2) set_log_sink({});
  });
  log(LogChannel::kGraph, "outer");
  EXPECT_THAT(seen, ElementsAre("outer", "inner"));
}

TEST_F(LoggingTest, threads_log_and_change_the_sink_at_once) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 500;
  set_log_levels("all");
  auto count = std::make_shared<std::atomic<int>>(0);
  const auto sink = [count](LogChannel, LogLevel, std::string_view) { ++*count; };
  set_log_sink(sink);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kMessages; ++i) {
        log(LogChannel::kPerf, "message ", i);
        if (i % 50 == 0) set_log_sink(sink);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*count, kThreads * kMessages);
}

}  // namespace
}  // namespace mlcc
