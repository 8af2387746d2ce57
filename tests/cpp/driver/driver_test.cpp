#include "driver/driver.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "driver/kernel_plan.h"
#include "driver/session.h"
#include "driver/verdicts.h"
#include "graph/text.h"
#include "runtime/arena_pool.h"
#include "runtime/executable.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

namespace fs = std::filesystem;

// Dense tensors of f32 with one dimension.
class VectorHost : public runtime::Host {
 public:
  explicit VectorHost(int num_slots) : tensors_(static_cast<size_t>(num_slots)) {}
  std::vector<float>& at(runtime::Slot slot) { return tensors_[static_cast<size_t>(slot)]; }

  void* data(runtime::Slot slot) override { return at(slot).data(); }
  int64_t tensor_size(runtime::Slot slot, int) override {
    return static_cast<int64_t>(at(slot).size());
  }
  void allocate(runtime::Slot slot, DType, std::span<const int64_t> shape, std::span<const int64_t>,
                Device) override {
    at(slot).resize(static_cast<size_t>(shape[0]));
  }
  void release(runtime::Slot slot) override { at(slot).clear(); }

  int64_t size(runtime::Slot) override { MLCC_UNREACHABLE("a size"); }
  void set_size(runtime::Slot, int64_t) override { MLCC_UNREACHABLE("a size"); }
  char* take_arena(int64_t bytes) override { return arenas_.take(bytes); }
  void give_back_arena(char* data) override { arenas_.give_back(data); }
  void* workspace(int64_t) override { MLCC_UNREACHABLE("a workspace of the host"); }
  void make_view(runtime::Slot, runtime::Slot, std::span<const int64_t>, std::span<const int64_t>,
                 int64_t) override {
    MLCC_UNREACHABLE("a view");
  }
  void call_extern(const runtime::ExternStep& step, size_t,
                   const std::function<int64_t(const SymExpr&)>&) override {
    MLCC_UNREACHABLE("a call of ", step.op);
  }
  [[noreturn]] void raise(const runtime::KernelError& error, const std::string&) override {
    throw Error(error.text);
  }

 private:
  std::vector<std::vector<float>> tensors_;
  runtime::PooledArenas arenas_;
};

// x doubled `times` times.
std::string doubling(int times) {
  std::string text = "graph @doubling(%x: f32[s0]) symbols(s0 in 2..) {\n";
  for (int i = 0; i < times; ++i) {
    const std::string operand = i == 0 ? "%x" : "%" + std::to_string(i - 1);
    text += "  %" + std::to_string(i) + ": f32[s0] = add " + operand + ", " + operand + "\n";
  }
  return text + "  return %" + std::to_string(times - 1) + "\n}\n";
}

class Driver : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef MLCC_LLVM_LIBRARY
    GTEST_SKIP() << "this build has no code generator for CPUs";
#else
    std::string pattern = fs::temp_directory_path() / "mlcc-driver-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    options_.cache_dir = pattern;
    options_.strict = true;
    set_llvm_library(MLCC_LLVM_LIBRARY);
#endif
  }
  void TearDown() override {
    kernel_cache().clear();
    if (!options_.cache_dir.empty()) fs::remove_all(options_.cache_dir);
  }

  Compilation compile_doubling(int times) const {
    return compile(graph::parse_graph(doubling(times)), options_);
  }

  static void expect_doubles(const runtime::Executable& executable, int times, size_t size) {
    VectorHost host(executable.plan().num_slots);
    host.at(0).assign(size, 1.0F);
    executable.run(host, nullptr);
    EXPECT_EQ(host.at(executable.plan().outputs[0]),
              std::vector<float>(size, std::ldexp(1.0F, times)));
  }

  Options options_;
};

TEST_F(Driver, CompilesOnceThenFindsInMemoryAndOnDisk) {
  EXPECT_EQ(compile_doubling(3).stats.compiled, 1);
  EXPECT_EQ(compile_doubling(3).stats.memory_hits, 1);
  kernel_cache().clear();
  const Compilation found = compile_doubling(3);
  EXPECT_EQ(found.stats.disk_hits, 1);
  expect_doubles(*found.executable, 3, 100);
}

TEST_F(Driver, ExecutablesOutliveClearedCaches) {
  const Compilation made = compile_doubling(2);
  kernel_cache().clear();
  store(options_)->clear();
  EXPECT_EQ(kernel_cache().info().entries, 0);
  expect_doubles(*made.executable, 2, 7);
}

// The same graphs and different ones; what others clear meanwhile is compiled or loaded again.
TEST_F(Driver, ThreadsCompileLookUpRunAndClearAtOnce) {
  const Compilation shared = compile_doubling(6);
  const auto work = [&](int thread) {
    for (int round = 0; round < 6; ++round) {
      const int times = 1 + (thread + round) % 5;
      const Compilation made = compile_doubling(times);
      for (const size_t size : {size_t{2}, size_t{33}, size_t{1000}}) {
        expect_doubles(*made.executable, times, size);
        expect_doubles(*shared.executable, 6, size);
      }
      if (thread % 4 == 0) kernel_cache().clear();
      if (thread % 8 == 1) store(options_)->clear();
      EXPECT_GE(kernel_cache().info().entries, 0);
      EXPECT_GE(store(options_)->info().entries, 0);
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 16; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
}

// Few long rows of exponentials below their largest, in one pass or in two.
constexpr const char* kLongRows = R"(graph @rows(%x: f32[4, 4000000]) {
  %0: f32[4, 1] = max %x {dims = [1], keepdim = true}
  %1: f32[4, 4000000] = sub %x, %0
  %2: f32[4, 4000000] = exp %1
  %3: f32[4] = sum %2 {dims = [1], keepdim = false}
  return %3
})";

TEST_F(Driver, DoubtsOnePassOverLongRows) {
  const auto graph = graph::parse_graph(kLongRows);
  const KernelPlan plan = plan_kernels(*graph, options_, Way::kDefault);
  EXPECT_EQ(plan.kernels.size(), 1U);
  EXPECT_EQ(doubtful_ways(plan, options_), std::vector<Way>{Way::kPasses});
  const KernelPlan passes = plan_kernels(*graph, options_, Way::kPasses);
  EXPECT_EQ(passes.kernels.size(), 2U);
  EXPECT_TRUE(doubtful_ways(passes, options_).empty());
  EXPECT_TRUE(doubtful_ways(plan_kernels(*graph::parse_graph(doubling(2)), options_, Way::kDefault),
                            options_)
                  .empty());
}

TEST_F(Driver, TakesTheWayThatAVerdictTells) {
  const auto kernels = [&](const std::string& word, bool measures) {
    forget_verdicts();
    const Host threads{3, [](int64_t n, int64_t, const auto& body) { body(0, n); }};
    const auto graph = graph::parse_graph(kLongRows);
    const Hash128 key =
        verdict_key(graph::print(*graph), cpu_backend(options_).backend->target(), 3, options_);
    store(options_)->put("verdict", key, word + "\n");
    const Compilation made =
        compile(graph::parse_graph(kLongRows), options_, measures ? &threads : nullptr);
    return made.stats.kernels;
  };
  EXPECT_EQ(kernels("passes", true), 2);
  EXPECT_EQ(kernels("default", true), 1);
  EXPECT_EQ(kernels("unheard of", true), 1);
  EXPECT_EQ(kernels("passes", false), 1);
  options_.measure = false;
  EXPECT_EQ(kernels("passes", true), 1);
}

// Both are run, whichever it is that wins.
TEST_F(Driver, KeepsWhatItHasMeasured) {
  forget_verdicts();
  std::string text = kLongRows;
  for (size_t at = text.find("4000000"); at != std::string::npos; at = text.find("4000000"))
    text.replace(at, 7, "400000");
  const Host threads{2, [](int64_t n, int64_t, const auto& body) { body(0, n); }};
  const auto graph = graph::parse_graph(text);
  (void)compile(graph::parse_graph(text), options_, &threads);
  const Hash128 key =
      verdict_key(graph::print(*graph), cpu_backend(options_).backend->target(), 2, options_);
  const std::optional<std::string> entry = store(options_)->get("verdict", key);
  ASSERT_TRUE(entry);
  EXPECT_NE(entry->find("passes: "), std::string::npos) << *entry;
  EXPECT_NE(entry->find("ratio "), std::string::npos) << *entry;
}

TEST_F(Driver, KeptValuesAreTheLastInputs) {
  const Compilation made = compile(graph::parse_graph(R"(
    graph @scaled(%x: f32[s0], %a: f32[4] static, %b: f32[4] static) symbols(s0 in 2..) {
      %0: f32[4] = exp %a
      %1: f32[] = sum %0 {dims = [0], keepdim = false}
      %2: f32[4] = exp %b
      %3: f32[] = sum %2 {dims = [0], keepdim = false}
      %4: f32[s0] = mul %x, %1
      %5: f32[s0] = add %4, %3
      return %5
    })"),
                                   options_);
  const runtime::ExecutablePlan& plan = made.executable->plan();
  ASSERT_EQ(plan.kept.size(), 2U);
  EXPECT_EQ(made.executable->num_given_inputs(), 3U);
  EXPECT_EQ(plan.kept[0].slot, 3);
  EXPECT_EQ(plan.kept[0].sources, std::vector<runtime::Slot>{1});
  EXPECT_EQ(plan.kept[1].sources, std::vector<runtime::Slot>{2});
  EXPECT_EQ(plan.kept[0].recipe, plan.kept[1].recipe);
  EXPECT_EQ(plan.kept[0].executable, plan.kept[1].executable);
  EXPECT_EQ(made.stats.kept, 2);
  EXPECT_NE(made.graph_text.find("static"), std::string::npos);
  options_.pack_weights = false;
  EXPECT_TRUE(
      compile(graph::parse_graph(made.graph_text), options_).executable->plan().kept.empty());
}

TEST_F(Driver, StolenWeightsHaveAWayBack) {
  const auto kept = [&](const std::string& computation) {
    return compile(graph::parse_graph(
                       "graph @g(%x: f32[s0, 4], %w: f32[8, 4] static) symbols(s0 in 2..) {\n" +
                       computation + R"(
      %2: f32[s0, 8] = extern "aten.mm.default"(%x, %1)
      return %2
    })"),
                   options_)
        .executable->plan()
        .kept;
  };
  const std::string copied = R"(%0: f32[4, 8] = permute %w {dims = [1, 0]}
                                %1: f32[4, 8] = copy %0)";
  ASSERT_EQ(kept(copied).size(), 1U);
  EXPECT_EQ(kept(copied)[0].inverse, nullptr);
  options_.weights = "steal";
  ASSERT_NE(kept(copied)[0].inverse, nullptr);
  EXPECT_EQ(kept(copied)[0].inverse->num_given_inputs(), 1U);
  const auto computed = kept(R"(%0: f32[4, 8] = permute %w {dims = [1, 0]}
                                %1: f32[4, 8] = exp %0)");
  ASSERT_EQ(computed.size(), 1U);
  EXPECT_EQ(computed[0].inverse, nullptr);
}

}  // namespace
}  // namespace mlcc::driver
