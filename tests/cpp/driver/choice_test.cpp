#include "driver/choice.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <variant>

#include "driver/session.h"
#include "driver/verdicts.h"
#include "graph/text.h"
#include "support/error.h"
#include "with_store.h"

namespace mlcc::driver {
namespace {

bool makes_calls(const runtime::Executable& executable) {
  for (const runtime::Step& step : executable.plan().steps)
    if (std::holds_alternative<runtime::ExternStep>(step)) return true;
  return false;
}

// Two rows and static weights, so small that the model doubts its guess, code.
std::string products(int count) {
  std::string inputs, body, outputs;
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(64 + i), at = std::to_string(i);
    inputs += ", %w" + at + ": f32[64, " + n + "] static";
    body += "  %" + at + ": f32[2, " + n + "] = extern \"aten.mm.default\"(%x, %w" + at + ")\n";
    outputs += (i > 0 ? ", %" : "%") + at;
  }
  return "graph @net(%x: f32[2, 64]" + inputs + ") {\n" + body + "  return " + outputs + "\n}\n";
}

class ChoiceTest : public WithStore {
 protected:
  void SetUp() override {
    WithStore::SetUp();
    set_llvm_library(MLCC_LLVM_LIBRARY);
    host_ = {1, [](int64_t n, int64_t, const auto& body) { body(0, n); }};
    // Nothing is computed, and no clock is asked.
    host_.prepare = [this](const std::shared_ptr<const runtime::Executable>& executable,
                           const auto&) -> std::function<void()> {
      ++prepared_;
      EXPECT_EQ(makes_calls(*executable), prepared_ % 2 == 0);  // code first
      return [this] { std::this_thread::sleep_for(std::chrono::milliseconds(run_milliseconds_)); };
    };
    host_.compare = [this](const auto&, const auto&, double) -> Result<runtime::TrialResult> {
      const double ratio = calls_are_slow_ ? 2 : 0.5;
      return runtime::TrialResult{ratio, 1, ratio, ratio, ratio};
    };
  }

  int64_t calls(const std::string& text, bool has_host = true) {
    return compile(graph::parse_graph(text), options_, has_host ? &host_ : nullptr)
        .stats.extern_calls;
  }

  Host host_;
  bool calls_are_slow_ = true;
  int prepared_ = 0, run_milliseconds_ = 0;
};

TEST_F(ChoiceTest, TakesWhatIsFaster) {
  EXPECT_EQ(calls(products(1)), 0);
  EXPECT_EQ(prepared_, 2);
  forget_verdicts();
  store(options_)->clear();
  calls_are_slow_ = false;
  EXPECT_EQ(calls(products(1)), 1);
  EXPECT_EQ(prepared_, 4);
}

TEST_F(ChoiceTest, AsksOnceForEachKindOfCall) {
  calls_are_slow_ = false;
  EXPECT_EQ(calls(products(1)), 1);
  calls_are_slow_ = true;
  EXPECT_EQ(calls(products(1)), 1);
  forget_verdicts();  // as in another process
  EXPECT_EQ(calls(products(1)), 1);
  EXPECT_EQ(prepared_, 2);
  host_.libraries = "of another version";
  EXPECT_EQ(calls(products(1)), 0);
  EXPECT_EQ(prepared_, 4);
}

TEST_F(ChoiceTest, GuessesWhereItMustNotMeasure) {
  calls_are_slow_ = false;
  EXPECT_EQ(calls(products(1), false), 0);
  options_.measure = false;
  EXPECT_EQ(calls(products(1)), 0);
  options_.prefer = "call";
  EXPECT_EQ(calls(products(1)), 1);
  options_.prefer = "code";
  options_.measure = true;
  EXPECT_EQ(calls(products(1)), 0);
  EXPECT_EQ(prepared_, 0);
  options_.prefer = "";
  host_.prepare = nullptr;
  EXPECT_EQ(calls(products(1)), 0);
  options_.prefer = "neither";
  EXPECT_THROW(calls(products(1)), Error);
}

TEST_F(ChoiceTest, GuessesWhereALibraryFails) {
  host_.prepare = [](const auto&, const auto&) -> std::function<void()> {
    return [] { throw std::bad_alloc(); };
  };
  EXPECT_EQ(calls(products(1)), 0);
}

// A guess is of this process alone.
TEST_F(ChoiceTest, MeasuresForATimeOnly) {
  calls_are_slow_ = false;
  run_milliseconds_ = 10;
  const int64_t found = calls(products(12));
  const int first = prepared_;
  EXPECT_LE(first, 2 * 3);  // 20 ms each, at least
  EXPECT_EQ(found, first / 2);
  EXPECT_EQ(calls(products(12)), found);
  EXPECT_EQ(prepared_, first);
  forget_verdicts();
  EXPECT_GT(calls(products(12)), found);  // of those in the store and as many more
}

}  // namespace
}  // namespace mlcc::driver
