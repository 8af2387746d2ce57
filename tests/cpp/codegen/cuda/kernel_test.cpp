#include "codegen/cuda/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "codegen/cuda/loader.h"
#include "codegen/cuda/module.h"
#include "fake_library.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::codegen::cuda {
namespace {

using runtime::CheckFailure;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Two buffers of f32, one of them by value; one size; one phase of a thread per iteration.
ModuleKernel simple() {
  ModuleKernel kernel{.name = "k", .sizes = {"s0"}, .info = {}};
  kernel.info.phases = {{.function = "k_p0", .threads = 128, .group = 1}};
  kernel.info.alignment = {16, 1};
  kernel.info.value_bytes = {0, 4};
  return kernel;
}

class CudaKernelTest : public ::testing::Test {
 protected:
  std::shared_ptr<const runtime::LoadedObject> open(const ModuleKernel& kernel) {
    const Module module{
        .arch = "sm_90", .nvrtc = "13.0", .options = "", .kernels = {kernel}, .code = "code"};
    return make_loader(library_.api(), query_device(library_.api(), 0).value())
        ->open(encode_module(module));
  }
  runtime::KernelPtr load(const ModuleKernel& kernel, runtime::FindGeneralCode general = nullptr) {
    return open(kernel)->kernel({.name = "k",
                                 .num_phases = static_cast<int>(kernel.info.phases.size()),
                                 .label = "add, relu",
                                 .errors = {{9, "IndexError", "{0} is not below {1}"}},
                                 .find_general = std::move(general)});
  }

  CheckFailure run(const runtime::Kernel& kernel, int64_t extent, int64_t size = 8) {
    buffers_ = {address_, &value_};
    sizes_ = {size};
    std::vector<int64_t> ranges;
    for (int i = 0; i < kernel.num_phases(); ++i) ranges.insert(ranges.end(), {extent, 1});
    return kernel.run({buffers_.data(), sizes_.data()}, ranges, {none_, stream_, device_});
  }

  // What a thread of the device does, after the call.
  static void fail_late(const FakeLaunch& launch, int64_t code) {
    auto* record = reinterpret_cast<FaultRecord*>(launch.parameters[4]);
    record->details[0] = 5;
    record->details[1] = 7;
    record->code = code;
    *reinterpret_cast<int64_t*>(record->pending) = 1;
  }

  std::string error_of_run(const runtime::Kernel& kernel, int64_t extent = 1) {
    try {
      run(kernel, extent);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  const FakeLaunch& last() { return state_.launches[state_.num_launches - 1]; }

  FakeLibrary library_;
  FakeDriver& state_ = library_.state();
  const runtime::ParallelFor none_;
  void* stream_ = &library_;
  void* address_ = reinterpret_cast<void*>(0x7000);
  int64_t value_ = 42;
  int32_t device_ = 0;
  std::vector<void*> buffers_;
  std::vector<int64_t> sizes_;
};

TEST_F(CudaKernelTest, HandsOverItsParameters) {
  ModuleKernel kernel = simple();
  kernel.info.has_checks = true;
  state_.num_parameters = 5;
  const auto loaded = load(kernel);
  EXPECT_EQ(run(*loaded, 1000, 77).code, 0);
  ASSERT_EQ(state_.num_launches, 1);
  EXPECT_STREQ(last().function, "k_p0");
  EXPECT_EQ(last().stream, stream_);
  EXPECT_EQ(last().block, 128u);
  EXPECT_EQ(last().parameters[0], 0x7000);
  EXPECT_EQ(last().parameters[1], 42);  // by value
  EXPECT_EQ(last().parameters[2], 77);
  EXPECT_EQ(last().parameters[3], 1000);
  EXPECT_NE(last().parameters[4], 0);
}

TEST_F(CudaKernelTest, SizesItsGridByWorkAndDevice) {
  ModuleKernel kernel = simple();
  const auto thread_each = load(kernel);
  run(*thread_each, 1);
  EXPECT_EQ(last().grid, 1u);
  run(*thread_each, 129);
  EXPECT_EQ(last().grid, 2u);
  run(*thread_each, int64_t{1} << 40);
  EXPECT_EQ(last().grid, 10u * 2 * 4);  // multiprocessors, blocks on each, waves
  run(*thread_each, 0);
  run(*thread_each, -5);
  EXPECT_EQ(state_.num_launches, 3);

  kernel.info.phases[0].group = 32;
  const auto warp_each = load(kernel);
  run(*warp_each, 9);
  EXPECT_EQ(last().grid, 3u);

  kernel.info.phases[0].group = 128;
  const auto block_each = load(kernel);
  run(*block_each, 9);
  EXPECT_EQ(last().grid, 9u);
}

TEST_F(CudaKernelTest, RunsItsPhasesInOrder) {
  ModuleKernel kernel = simple();
  kernel.info.phases.push_back(
      {.function = "k_p1", .threads = 64, .group = 64, .shared_bytes = 100 * 1024});
  const auto loaded = load(kernel);
  EXPECT_EQ(state_.shared_attribute, 100 * 1024);  // asked for when it is loaded
  run(*loaded, 3);
  ASSERT_EQ(state_.num_launches, 2);
  EXPECT_STREQ(state_.launches[0].function, "k_p0");
  EXPECT_STREQ(state_.launches[1].function, "k_p1");
  EXPECT_EQ(state_.launches[1].shared_bytes, 100u * 1024);
}

TEST_F(CudaKernelTest, AsksTheDriverNothingAtALaunch) {
  const auto loaded = load(simple());
  const int32_t before = state_.num_occupancy_calls;
  for (int i = 0; i < 10; ++i) run(*loaded, 100);
  EXPECT_EQ(state_.num_occupancy_calls, before);
  EXPECT_EQ(state_.num_loads, 1);
  EXPECT_EQ(state_.num_primary_contexts, 1);
}

TEST_F(CudaKernelTest, TakesTheGeneralCodeWhereItMust) {
  ModuleKernel kernel = simple();
  kernel.info.divisible = {{SymExpr::parse("s0*2"), 16}};
  kernel.info.below_2_30 = {SymExpr::parse("s0*64")};
  ModuleKernel general = simple();
  general.info.phases[0].function = "k_general";
  general.info.alignment = {1, 1};
  int compiled = 0;
  const auto loaded = load(kernel, [&] {
    ++compiled;
    return load(general);
  });
  run(*loaded, 10, 8);
  EXPECT_STREQ(last().function, "k_p0");
  EXPECT_EQ(compiled, 0);
  run(*loaded, 10, 9);
  EXPECT_STREQ(last().function, "k_general");
  run(*loaded, 10, 1 << 24);
  EXPECT_STREQ(last().function, "k_general");
  run(*loaded, 10, (1 << 24) - 8);
  EXPECT_STREQ(last().function, "k_p0");
  address_ = reinterpret_cast<void*>(0x7008);
  run(*loaded, 10, 8);
  EXPECT_STREQ(last().function, "k_general");
  EXPECT_EQ(compiled, 1);
}

TEST_F(CudaKernelTest, NegativeAndHugeSizesTakeTheGeneralCode) {
  ModuleKernel kernel = simple();
  kernel.info.nonnegative = {0};
  ModuleKernel general = simple();
  general.info.phases[0].function = "k_general";
  const auto negative = load(kernel, [&] { return load(general); });
  run(*negative, 10, -1);
  EXPECT_STREQ(last().function, "k_general");
  run(*negative, 10, 0);
  EXPECT_STREQ(last().function, "k_p0");

  kernel.info.below_2_30 = {SymExpr::parse("s0*s0*s0")};
  const auto huge = load(kernel, [&] { return load(general); });
  run(*huge, 10, int64_t{1} << 40);  // 64 bits do not hold the product
  EXPECT_STREQ(last().function, "k_general");
}

TEST_F(CudaKernelTest, AsksForSharedMemoryWhereItsStaticPartIsUnknown) {
  ModuleKernel kernel = simple();
  kernel.info.phases[0].shared_bytes = 40 * 1024;
  kernel.info.phases[0].static_shared_bytes = 0;
  load(kernel);
  EXPECT_EQ(state_.shared_attribute, -1);
  kernel.info.phases[0].static_shared_bytes = -1;  // PTX
  load(kernel);
  EXPECT_EQ(state_.shared_attribute, 40 * 1024);
}

TEST_F(CudaKernelTest, LoadsNothingDuringACapture) {
  ModuleKernel kernel = simple();
  ModuleKernel general = simple();
  general.info.alignment = {1, 1};
  const auto loaded = load(kernel, [&] { return load(general); });
  state_.is_capturing = 1;
  EXPECT_EQ(error_of_run(*loaded), "none");
  address_ = reinterpret_cast<void*>(0x7004);
  EXPECT_THAT(error_of_run(*loaded),
              AllOf(HasSubstr("k (add, relu)"), HasSubstr("run the same call once before")));
  state_.is_capturing = 0;
  EXPECT_EQ(error_of_run(*loaded), "none");
  state_.is_capturing = 1;
  EXPECT_EQ(error_of_run(*loaded), "none");
}

TEST_F(CudaKernelTest, PreparesAnotherDeviceAtItsFirstLaunch) {
  state_.num_devices = 2;
  const auto loaded = load(simple());
  const int32_t before = state_.num_occupancy_calls;
  device_ = 1;
  state_.is_capturing = 1;
  EXPECT_THAT(error_of_run(*loaded), HasSubstr("not used on this device yet"));
  state_.is_capturing = 0;
  run(*loaded, 1);
  run(*loaded, 1);
  EXPECT_EQ(state_.num_occupancy_calls, before + 1);
  EXPECT_EQ(last().device, 1);
  DeviceOrdinal current = -1;
  EXPECT_EQ(library_.api().ctx_get_device(&current), kDriverSuccess);
  EXPECT_EQ(current, 0);  // as before the launch
}

TEST_F(CudaKernelTest, EachDeviceHasFailuresOfItsOwn) {
  state_.num_devices = 2;
  ModuleKernel kernel = simple();
  kernel.info.has_checks = true;
  state_.num_parameters = 5;
  const auto loaded = load(kernel);
  run(*loaded, 1);
  const FakeLaunch first = last();
  device_ = 1;
  run(*loaded, 1);
  EXPECT_NE(first.parameters[4], last().parameters[4]);
  fail_late(last(), 9);
  EXPECT_FALSE(loaded->poll(0));
  device_ = 0;
  EXPECT_EQ(run(*loaded, 1).code, 0);
  EXPECT_TRUE(loaded->poll(1));
}

TEST_F(CudaKernelTest, TellsAFailedCheckOnce) {
  ModuleKernel kernel = simple();
  kernel.info.has_checks = true;
  state_.num_parameters = 5;
  const auto loaded = load(kernel);
  const auto other = load(kernel);
  state_.failing_launch_code = 3;
  const CheckFailure failure = run(*loaded, 1);
  EXPECT_EQ(failure.code, 3);
  EXPECT_THAT(failure.details, ::testing::ElementsAre(5, 7));
  state_.failing_launch_code = 0;
  EXPECT_EQ(run(*other, 1).code, 0);
  EXPECT_EQ(run(*loaded, 1).code, 0);

  // Found late, as on a device: after the next launch, which takes place, or when asked.
  auto* record = reinterpret_cast<FaultRecord*>(last().parameters[4]);
  record->code = -1;  // its thread is still writing
  EXPECT_EQ(run(*loaded, 1).code, 0);
  record->code = 9;
  const int32_t launches = state_.num_launches;
  EXPECT_EQ(run(*loaded, 1).code, 9);
  EXPECT_EQ(state_.num_launches, launches + 1);
  EXPECT_EQ(run(*loaded, 1).code, 0);
  record->code = 4;
  EXPECT_EQ(loaded->take_failure().code, 4);
  EXPECT_EQ(loaded->take_failure().code, 0);
}

TEST_F(CudaKernelTest, AnyKernelTellsTheFailuresOfAll) {
  ModuleKernel kernel = simple();
  const auto plain = load(kernel);
  kernel.info.has_checks = true;
  state_.num_parameters = 5;
  const auto one = load(kernel), other = load(kernel);
  run(*one, 1);
  const FakeLaunch of_one = last();
  run(*other, 1);
  EXPECT_FALSE(plain->poll(0));
  fail_late(last(), 9);
  fail_late(of_one, 9);
  for (int i = 0; i < 2; ++i) {
    const std::optional<runtime::KernelError> error = plain->poll(0);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->exception, "IndexError");
    EXPECT_THAT(error->text, AllOf(HasSubstr("5 is not below 7\n"), HasSubstr("k (add, relu)")));
  }
  EXPECT_FALSE(plain->poll(0));
  EXPECT_EQ(run(*one, 1).code, 0);
}

TEST_F(CudaKernelTest, ErrorsNameTheKernel) {
  const auto loaded = load(simple());
  state_.launch_status = 719;
  EXPECT_THAT(error_of_run(*loaded),
              AllOf(HasSubstr("kernel k (add, relu): launching phase 0 on 1 blocks of 128 threads"),
                    HasSubstr("CUDA_ERROR_LAUNCH_FAILED")));
  state_.launch_status = 0;
  state_.context_status = 719;  // found later
  EXPECT_THAT(error_of_run(*loaded), AllOf(HasSubstr("kernel k (add, relu): device cuda:0: asking"),
                                           HasSubstr("CUDA_ERROR_LAUNCH_FAILED")));
  state_.context_status = 0;
  state_.load_status = kDriverOutOfMemory;
  try {
    load(simple());
    FAIL();
  } catch (const LoadError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("loading code for sm_90 of the kernels k"),
                                    HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
  }
  state_.load_status = 0;
  state_.blocks_per_multiprocessor = 0;
  EXPECT_THROW(load(simple()), LoadError);
}

TEST_F(CudaKernelTest, AModuleThatIsNoneIsAnError) {
  const auto loader = make_loader(library_.api(), query_device(library_.api(), 0).value());
  EXPECT_THROW(loader->open("not a module"), Error);
  const auto object = open(simple());
  EXPECT_THROW(object->kernel({.name = "other", .num_phases = 1}), Error);
  EXPECT_THROW(object->kernel({.name = "k", .num_phases = 2}), Error);
}

using CudaKernelDeathTest = CudaKernelTest;

TEST_F(CudaKernelDeathTest, WarnsOfFailuresThatNobodyAskedFor) {
  const auto launch_and_exit = [&] {
    ModuleKernel kernel = simple();
    kernel.info.has_checks = true;
    state_.num_parameters = 5;
    const auto loaded = load(kernel);
    run(*loaded, 1);
    reinterpret_cast<FaultRecord*>(last().parameters[4])->code = 6;
    std::exit(0);
  };
  EXPECT_EXIT(launch_and_exit(), ::testing::ExitedWithCode(0), "add, relu.*its check 6 failed");
}

}  // namespace
}  // namespace mlcc::codegen::cuda
