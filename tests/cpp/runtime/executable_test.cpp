#include "runtime/executable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/arena_pool.h"
#include "runtime/host_kernel.h"
#include "support/error.h"

namespace mlcc::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const SymExpr kS0 = SymExpr::symbol("s0");
const SymExpr kU0 = SymExpr::symbol("u0");

// Dense one-dimensional tensors of f32 in plain vectors, and a log of what was asked for.
class FakeHost : public Host {
 public:
  explicit FakeHost(int num_slots)
      : tensors(static_cast<size_t>(num_slots)), sizes(tensors.size(), -1) {}

  void* data(Slot slot) override { return at(slot).data(); }
  int64_t tensor_size(Slot slot, int) override { return static_cast<int64_t>(at(slot).size()); }
  int64_t size(Slot slot) override { return sizes[static_cast<size_t>(slot)]; }
  void set_size(Slot slot, int64_t value) override { sizes[static_cast<size_t>(slot)] = value; }
  void allocate(Slot slot, DType, std::span<const int64_t> shape, std::span<const int64_t> strides,
                Device device) override {
    EXPECT_EQ(shape.size(), strides.size());
    at(slot).assign(static_cast<size_t>(shape.empty() ? 1 : shape[0]), 0.0f);
    const bool is_cpu = device.kind == DeviceKind::kCpu;
    log.push_back("allocate " + std::to_string(slot) + (is_cpu ? "" : " on " + device.str()));
  }
  char* take_arena(int64_t bytes) override { return arenas.take(bytes); }
  void give_back_arena(char* data) override { arenas.give_back(data); }
  void* workspace(int64_t bytes) override {
    log.push_back("workspace of " + std::to_string(bytes));
    workspaces.emplace_back(static_cast<size_t>(bytes));
    return workspaces.back().data();
  }
  void make_view(Slot slot, Slot base, std::span<const int64_t> shape,
                 std::span<const int64_t> strides, int64_t offset) override {
    log.push_back("view " + std::to_string(slot) + " of " + std::to_string(base) + ": " +
                  std::to_string(shape[0]) + " by " + std::to_string(strides[0]) + " from " +
                  std::to_string(offset));
  }
  void call_extern(const ExternStep& step, size_t step_index,
                   const std::function<int64_t(const SymExpr&)>& evaluate) override {
    std::string text = "call " + step.op + " at " + std::to_string(step_index);
    for (const Argument& argument : step.args)
      if (const auto* expr = std::get_if<SymExpr>(&argument.value))
        text += " " + std::to_string(evaluate(*expr));
    log.push_back(text);
    if (on_extern) on_extern(step);
  }
  void release(Slot slot) override {
    at(slot).clear();
    log.push_back("release " + std::to_string(slot));
  }
  [[noreturn]] void raise(const KernelError& error, const std::string& source) override {
    throw std::out_of_range(error.exception + ": " + error.text + " at " + source);
  }

  std::vector<float>& at(Slot slot) { return tensors[static_cast<size_t>(slot)]; }

  std::vector<std::vector<float>> tensors;
  std::vector<int64_t> sizes;
  std::vector<std::string> log;
  std::vector<std::vector<char>> workspaces;
  PooledArenas arenas;
  std::function<void(const ExternStep&)> on_extern;
};

void serial(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& body) { body(0, n); }

// out[i] = in[i] + 1
int64_t add_one(const KernelArgs* args, int64_t begin, int64_t end) {
  const auto* in = static_cast<const float*>(args->buffers[0]);
  auto* out = static_cast<float*>(args->buffers[1]);
  for (int64_t i = begin; i < end; ++i) out[i] = in[i] + 1;
  return 0;
}

// out[i] = in[i] * sizes[0]
int64_t scale(const KernelArgs* args, int64_t begin, int64_t end) {
  const auto* in = static_cast<const float*>(args->buffers[0]);
  auto* out = static_cast<float*>(args->buffers[1]);
  for (int64_t i = begin; i < end; ++i) out[i] = in[i] * static_cast<float>(args->sizes[0]);
  return 0;
}

// Error 7 where an element is negative, error 3 where it is 0.
int64_t check_positive(const KernelArgs* args, int64_t begin, int64_t end) {
  const auto* in = static_cast<const float*>(args->buffers[0]);
  for (int64_t i = begin; i < end; ++i) {
    if (in[i] < 0) return 7;
    if (in[i] == 0) return 3;
  }
  return 0;
}

KernelPtr kernel(std::vector<PhaseFunction> phases) {
  return std::make_shared<HostKernel>("k", std::move(phases));
}

TensorSpec vector_of(const SymExpr& size) { return {DType::kF32, {size}, {SymExpr(1)}}; }

LaunchStep launch(std::vector<Slot> buffers, std::vector<SymExpr> sizes, const SymExpr& extent,
                  const SymExpr& grain = SymExpr(1)) {
  LaunchStep step;
  step.label = "test";
  step.buffers = std::move(buffers);
  step.sizes = std::move(sizes);
  step.phases = {{extent, grain}};
  return step;
}

// x -> (x + 1) * s0 with the sum in the arena
ExecutablePlan two_kernels(const SymExpr& size) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(size), {}}};
  plan.num_slots = 3;
  if (!size.is_constant()) plan.steps.push_back(BindStep{*size.as_symbol(), 0, 0});
  plan.steps.push_back(AllocateStep{1, vector_of(size), true});
  plan.steps.push_back(launch({0, 1}, {}, size));
  plan.steps.push_back(ReleaseStep{{0}});
  plan.steps.push_back(AllocateStep{2, vector_of(size), false});
  plan.steps.push_back(launch({1, 2}, {size}, size));
  plan.steps.push_back(ReleaseStep{{1}});
  plan.outputs = {2};
  return plan;
}

TEST(Executable, RunsKernelsOverStaticSizes) {
  const Executable executable(two_kernels(SymExpr(3)), {kernel({add_one}), kernel({scale})});
  FakeHost host(3);
  host.at(0) = {1, 2, 3};
  executable.run(host, serial);
  EXPECT_THAT(host.at(2), ElementsAre(6, 9, 12));
  EXPECT_THAT(host.log, ElementsAre("release 0", "allocate 2"));
  EXPECT_EQ(executable.largest_arena_bytes(), 64);
}

TEST(Executable, RunsKernelsOverSymbolicSizes) {
  const Executable executable(two_kernels(kS0), {kernel({add_one}), kernel({scale})});
  for (int64_t n : {2, 5, 2, 100, 1, 5}) {
    FakeHost host(3);
    host.at(0).assign(static_cast<size_t>(n), 1.0f);
    executable.run(host, serial);
    EXPECT_EQ(host.at(2), std::vector<float>(static_cast<size_t>(n), 2.0f * static_cast<float>(n)));
  }
  EXPECT_EQ(executable.largest_arena_bytes(), 448);
}

TEST(Executable, AnotherDevicesArenaComesFromTheHost) {
  ExecutablePlan plan = two_kernels(kS0);
  plan.device = {DeviceKind::kCuda, 1};
  for (Step& step : plan.steps)
    if (auto* allocate = std::get_if<AllocateStep>(&step)) allocate->spec.device = plan.device;
  const Executable executable(std::move(plan), {kernel({add_one}), kernel({scale})});
  FakeHost host(3);
  host.at(0) = {1, 2, 3};
  executable.run(host, serial);
  EXPECT_THAT(host.at(2), ElementsAre(6, 9, 12));
  EXPECT_THAT(host.log, ElementsAre("workspace of 64", "release 0", "allocate 2 on cuda:1"));
  FakeHost empty(3);
  executable.run(empty, serial);
  EXPECT_THAT(empty.log, ElementsAre("release 0", "allocate 2 on cuda:1"));
}

TEST(Executable, TheArenaHoldsNothingOfAnotherDevice) {
  ExecutablePlan plan = two_kernels(kS0);
  plan.device = {DeviceKind::kCuda, 0};
  EXPECT_THROW(Executable(std::move(plan), {kernel({add_one}), kernel({scale})}), InternalError);
}

TEST(Executable, EmptyTensorsSkipTheirPhases) {
  const auto fail = [](const KernelArgs*, int64_t, int64_t) -> int64_t {
    ADD_FAILURE();
    return 0;
  };
  const Executable executable(two_kernels(kS0), {kernel({+fail}), kernel({+fail})});
  FakeHost host(3);
  executable.run(host, serial);
  EXPECT_THAT(host.at(2), IsEmpty());
}

TEST(Executable, ManyTuplesOfSizes) {
  const Executable executable(two_kernels(kS0), {kernel({add_one}), kernel({scale})});
  for (int round = 0; round < 3; ++round)
    for (int64_t n = 1; n < 100; ++n) {
      FakeHost host(3);
      host.at(0).assign(static_cast<size_t>(n), 0.0f);
      executable.run(host, serial);
      EXPECT_EQ(host.at(2), std::vector<float>(static_cast<size_t>(n), static_cast<float>(n)));
    }
}

TEST(Executable, ThreadsShareOneExecutable) {
  const Executable executable(two_kernels(kS0), {kernel({add_one}), kernel({scale})});
  const auto work = [&](int64_t seed) {
    for (int64_t i = 0; i < 500; ++i) {
      const int64_t n = 1 + (i * 7 + seed) % 60;
      FakeHost host(3);
      host.at(0).assign(static_cast<size_t>(n), static_cast<float>(seed));
      executable.run(host, serial);
      ASSERT_EQ(host.at(2),
                std::vector<float>(static_cast<size_t>(n), static_cast<float>((seed + 1) * n)));
    }
  };
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
}

TEST(Executable, PhasesRunInOrderWithTheirOwnRanges) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(SymExpr(4)), {}}};
  plan.num_slots = 2;
  plan.steps.push_back(AllocateStep{1, vector_of(SymExpr(4)), false});
  LaunchStep step = launch({0, 1}, {}, SymExpr(4));
  step.phases = {{SymExpr(4), SymExpr(1)}, {SymExpr(2), SymExpr(1)}};
  plan.steps.push_back(step);
  plan.outputs = {1};
  const auto negate = [](const KernelArgs* args, int64_t begin, int64_t end) -> int64_t {
    auto* out = static_cast<float*>(args->buffers[1]);
    for (int64_t i = begin; i < end; ++i) out[i] = -out[i];
    return 0;
  };
  const Executable executable(std::move(plan), {kernel({add_one, +negate})});
  FakeHost host(2);
  host.at(0) = {1, 2, 3, 4};
  executable.run(host, serial);
  EXPECT_THAT(host.at(1), ElementsAre(-2, -3, 4, 5));
}

TEST(Executable, AFailedCheckRaisesWhatThePlanSays) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(SymExpr(4)), {}}};
  plan.num_slots = 1;
  LaunchStep step = launch({0}, {}, SymExpr(4));
  step.errors = {{7, "IndexError", "negative"}, {3, "RuntimeError", "zero"}};
  step.source = "model.py:31";
  plan.steps.push_back(step);
  const Executable executable(std::move(plan), {kernel({check_positive})});
  FakeHost host(1);
  const auto message = [&] {
    try {
      executable.run(host, serial);
      return std::string("nothing");
    } catch (const std::out_of_range& error) {
      return std::string(error.what());
    }
  };
  host.at(0) = {1, 2, 3, 4};
  EXPECT_EQ(message(), "nothing");
  host.at(0) = {1, 2, 0, -1};
  EXPECT_EQ(message(), "RuntimeError: zero at model.py:31");
  host.at(0) = {-1, 2, 0, 4};
  EXPECT_EQ(message(), "IndexError: negative at model.py:31");
}

// A kernel of a device, whose checks fail when the test says so.
class DeviceKernel : public Kernel {
 public:
  DeviceKernel() : Kernel("d") {}
  int num_phases() const override { return 1; }
  CheckFailure run(const KernelArgs&, std::span<const int64_t>,
                   const LaunchContext& context) const override {
    launches.push_back(context.device);
    return {};
  }
  bool is_asynchronous() const override { return true; }
  std::optional<KernelError> poll(int32_t device) const override {
    if (device != 1) return std::nullopt;
    return std::exchange(failure, std::nullopt);
  }
  mutable std::vector<int32_t> launches;
  mutable std::optional<KernelError> failure;
};

TEST(Executable, TellsLateFailuresBeforeItDoesAnythingAndBehindExternCalls) {
  ExecutablePlan plan;
  plan.device = {DeviceKind::kCuda, 1};
  plan.inputs = {{false, vector_of(SymExpr(3)), {}}};
  plan.num_slots = 2;
  plan.steps.push_back(launch({0}, {}, SymExpr(3)));
  std::get<LaunchStep>(plan.steps[0]).device = plan.device;
  ExternStep call;
  call.op = "wait";
  plan.steps.emplace_back(call);
  plan.outputs = {0};
  const auto kernel = std::make_shared<DeviceKernel>();
  const Executable executable(std::move(plan), {kernel});
  const auto error_of_run = [&](FakeHost& host) -> std::string {
    try {
      executable.run(host, serial);
    } catch (const std::out_of_range& error) {
      return error.what();
    }
    return "none";
  };
  FakeHost host(2);
  EXPECT_EQ(error_of_run(host), "none");
  EXPECT_THAT(kernel->launches, ElementsAre(1));
  kernel->failure = KernelError{3, "IndexError", "far"};
  EXPECT_THAT(error_of_run(host), HasSubstr("IndexError: far"));
  EXPECT_EQ(kernel->launches.size(), 1u);  // nothing was done
  host.on_extern = [&](const ExternStep&) {
    kernel->failure = KernelError{3, "IndexError", "far"};
  };
  EXPECT_THAT(error_of_run(host), HasSubstr("IndexError: far"));
  EXPECT_EQ(kernel->launches.size(), 2u);
}

TEST(Executable, AnUnknownErrorCodeIsABug) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(SymExpr(1)), {}}};
  plan.num_slots = 1;
  plan.steps.push_back(launch({0}, {}, SymExpr(1)));
  const Executable executable(std::move(plan), {kernel({check_positive})});
  FakeHost host(1);
  host.at(0) = {-1};
  EXPECT_THROW(executable.run(host, serial), InternalError);
}

// item() gives u0; a buffer of the arena from before it is still used afterwards.
TEST(Executable, ASizeFoundInTheMiddleStartsANewSegment) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(kS0), {}}};
  plan.num_slots = 6;
  plan.steps.push_back(BindStep{"s0", 0, 0});
  plan.steps.push_back(AllocateStep{1, vector_of(kS0), true});
  plan.steps.push_back(launch({0, 1}, {}, kS0));
  ExternStep item;
  item.op = "aten.item";
  item.args = {Argument(ArgRef{0}), Argument(kS0 * SymExpr(3))};
  item.results = {2};
  item.expected = {std::nullopt};
  plan.steps.push_back(item);
  plan.steps.push_back(BindStep{"u0", 2, -1});
  plan.steps.push_back(AllocateStep{3, vector_of(kU0), true});
  plan.steps.push_back(launch({1, 3}, {kU0}, kU0));
  plan.steps.push_back(ReleaseStep{{1}});
  plan.steps.push_back(AllocateStep{4, vector_of(kU0), false});
  plan.steps.push_back(launch({3, 4}, {}, kU0));
  plan.steps.push_back(SizeStep{5, kU0 + kS0});
  plan.outputs = {4, 5};
  const Executable executable(std::move(plan),
                              {kernel({add_one}), kernel({scale}), kernel({add_one})});

  for (int64_t u : {1, 3, 0}) {
    FakeHost host(6);
    host.at(0) = {1, 2, 3, 4};
    host.on_extern = [&](const ExternStep& step) { host.set_size(step.results[0], u); };
    executable.run(host, serial);
    EXPECT_THAT(host.log, ::testing::Contains("call aten.item at 3 12"));
    std::vector<float> expected;
    for (int64_t i = 0; i < u; ++i) expected.push_back(static_cast<float>((i + 2) * u + 1));
    EXPECT_EQ(host.at(4), expected);
    EXPECT_EQ(host.size(5), u + 4);
  }
}

TEST(Executable, ViewsAndReleasesGoToTheHost) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(kS0), {}}, {true, {}, kU0}};
  plan.num_slots = 3;
  plan.steps.push_back(BindStep{"s0", 0, 0});
  plan.steps.push_back(BindStep{"u0", 1, -1});
  plan.steps.push_back(ViewStep{2, 0, {DType::kF32, {kU0}, {SymExpr(2)}}, kS0 - kU0});
  plan.steps.push_back(ReleaseStep{{0, 1}});
  plan.outputs = {2};
  const Executable executable(std::move(plan), {});
  FakeHost host(3);
  host.at(0).assign(10, 0.0f);
  host.sizes[1] = 4;
  executable.run(host, serial);
  EXPECT_THAT(host.log, ElementsAre("view 2 of 0: 4 by 2 from 6", "release 0", "release 1"));
}

TEST(Executable, ASymbolBoundTwiceMustAgree) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(kS0), {}}, {false, vector_of(kS0), {}}};
  plan.num_slots = 2;
  plan.steps.push_back(BindStep{"s0", 0, 0});
  plan.steps.push_back(BindStep{"s0", 1, 0});
  const Executable executable(std::move(plan), {});
  FakeHost host(2);
  host.at(0) = host.at(1) = {1, 2};
  executable.run(host, serial);
  host.at(1) = {1};
  EXPECT_THROW(executable.run(host, serial), Error);
}

std::string fault_of(ExecutablePlan plan, std::vector<KernelPtr> kernels = {}) {
  try {
    const Executable executable(std::move(plan), std::move(kernels));
  } catch (const InternalError& error) {
    return error.what();
  }
  return "none";
}

TEST(Executable, InconsistentPlansAreRefused) {
  ExecutablePlan plan;
  plan.num_slots = 2;
  plan.steps.push_back(AllocateStep{2, vector_of(SymExpr(1)), false});
  EXPECT_THAT(fault_of(plan), HasSubstr("slot 2 of 2"));

  plan.steps = {AllocateStep{1, vector_of(kS0), false}};
  EXPECT_THAT(fault_of(plan), HasSubstr("symbol s0 before it is bound"));

  plan.steps = {AllocateStep{1, vector_of(SymExpr(1)), true},
                ViewStep{0, 1, vector_of(SymExpr(1)), SymExpr(0)}};
  EXPECT_THAT(fault_of(plan), HasSubstr("only kernels may touch"));

  plan.steps = {launch({0}, {}, SymExpr(1))};
  EXPECT_THAT(fault_of(plan), HasSubstr("has no kernel"));
  EXPECT_THAT(fault_of(plan, {kernel({add_one, add_one})}),
              HasSubstr("plans 1 phases, its kernel has 2"));
  EXPECT_THAT(fault_of(plan, {kernel({add_one}), kernel({add_one})}),
              HasSubstr("2 kernels for 1 launches"));
}

// A chain of arena buffers keeps two alive at a time, whatever its length.
TEST(Executable, AChainReusesTheArena) {
  constexpr int kLength = 20;
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(kS0), {}}};
  plan.num_slots = kLength + 2;
  plan.steps.push_back(BindStep{"s0", 0, 0});
  std::vector<KernelPtr> kernels;
  for (int i = 1; i <= kLength + 1; ++i) {
    plan.steps.push_back(AllocateStep{i, vector_of(kS0), i <= kLength});
    plan.steps.push_back(launch({i - 1, i}, {}, kS0));
    plan.steps.push_back(ReleaseStep{{i - 1}});
    kernels.push_back(kernel({add_one}));
  }
  plan.outputs = {kLength + 1};
  const Executable executable(std::move(plan), std::move(kernels));
  FakeHost host(kLength + 2);
  host.at(0).assign(64, 0.0f);
  executable.run(host, serial);
  EXPECT_EQ(host.at(kLength + 1), std::vector<float>(64, kLength + 1));
  EXPECT_EQ(executable.largest_arena_bytes(), 2 * 64 * 4);
}

// Not a benchmark, but a bound that a map or a string in the hot path would break.
TEST(Executable, AStepCostsLittle) {
  constexpr int kLength = 100;
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(SymExpr(1)), {}}};
  plan.num_slots = kLength + 1;
  std::vector<KernelPtr> kernels;
  for (int i = 1; i <= kLength; ++i) {
    plan.steps.push_back(AllocateStep{i, vector_of(SymExpr(1)), true});
    plan.steps.push_back(launch({i - 1, i}, {SymExpr(1)}, SymExpr(1)));
    plan.steps.push_back(ReleaseStep{{i - 1}});
    kernels.push_back(kernel({add_one}));
  }
  const Executable executable(std::move(plan), std::move(kernels));
  FakeHost host(kLength + 1);
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    host.at(0) = {1};
    const auto start = std::chrono::steady_clock::now();
    executable.run(host, serial);
    const std::chrono::duration<double, std::nano> elapsed =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / (3 * kLength));
    host.log.clear();
  }
  RecordProperty("nanoseconds_per_step", std::to_string(best));
  EXPECT_LT(best, 2000) << "nanoseconds per step";
}

// Work that was handed out in one piece each.
std::vector<int64_t> handed_out;

void note_work(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  handed_out.push_back(n / grain);
  body(0, n);
}

// x -> x + 1, x * 2 at the same time
ExecutablePlan two_beside(const SymExpr& extent) {
  ExecutablePlan plan;
  plan.inputs = {{false, vector_of(4), {}}};
  plan.num_slots = 3;
  plan.steps.push_back(AllocateStep{1, vector_of(4), false});
  plan.steps.push_back(AllocateStep{2, vector_of(4), false});
  plan.steps.push_back(launch({0, 1}, {}, 4));
  LaunchStep second = launch({0, 2}, {2}, extent);
  second.beside = true;
  plan.steps.push_back(second);
  plan.outputs = {1, 2};
  return plan;
}

TEST(Executable, LaunchesOfAWaveShareAParallelRegion) {
  const Executable executable(two_beside(4), {kernel({add_one}), kernel({scale})});
  FakeHost host(3);
  host.at(0) = {1, 2, 3, 4};
  handed_out.clear();
  executable.run(host, note_work);
  EXPECT_THAT(handed_out, ElementsAre(8));
  EXPECT_THAT(host.at(1), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(host.at(2), ElementsAre(2, 4, 6, 8));
}

TEST(Executable, AFailureOfAWaveNamesItsLaunch) {
  ExecutablePlan plan = two_beside(4);
  std::get<LaunchStep>(plan.steps[3]).errors = {{7, "ValueError", "negative"}};
  std::get<LaunchStep>(plan.steps[3]).source = "model.py:5";
  const Executable executable(std::move(plan), {kernel({add_one}), kernel({check_positive})});
  FakeHost host(3);
  host.at(0) = {1, -2, 3, 4};
  try {
    executable.run(host, note_work);
    FAIL() << "no error";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "ValueError: negative at model.py:5");
  }
}

TEST(Executable, ALaunchBesideNoneIsRefused) {
  ExecutablePlan plan = two_beside(4);
  std::get<LaunchStep>(plan.steps[2]).beside = true;
  EXPECT_THROW(Executable(std::move(plan), {kernel({add_one}), kernel({scale})}), InternalError);
}

}  // namespace
}  // namespace mlcc::runtime
