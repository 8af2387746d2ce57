#include "codegen/cuda/driver_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_library.h"

namespace mlcc::codegen::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DriverApi, TellsWhyThereIsNone) {
  EXPECT_THAT(open_driver("/nonexistent/libcuda.so.1").reason(),
              AllOf(HasSubstr("no CUDA driver"), HasSubstr("/nonexistent/libcuda.so.1")));

  FakeLibrary old;
  old.state().version = 11080;
  EXPECT_THAT(open_driver(old.path()).reason(),
              HasSubstr("too old: it is for CUDA 11.8, expected 12.0 or newer"));

  const FakeLibrary incomplete(MLCC_FAKE_OLD_CUDA);
  EXPECT_THAT(open_driver(incomplete.path()).reason(), HasSubstr("it lacks cuLibraryLoadData"));

  FakeLibrary lonely;
  lonely.state().init_status = kDriverNoDevice;
  EXPECT_THAT(open_driver(lonely.path()).reason(), HasSubstr("no device is there"));

  FakeLibrary broken;
  broken.state().init_status = 999;
  EXPECT_THAT(open_driver(broken.path()).reason(),
              HasSubstr("cannot start: CUDA_ERROR_UNKNOWN (as the test wants it)"));
  broken.state().init_status = 0;
  EXPECT_TRUE(open_driver(broken.path()));  // only successes are kept
}

TEST(DriverApi, TellsWhatADeviceIs) {
  FakeLibrary library;
  library.state().num_devices = 2;
  const DeviceInfo device = query_device(library.api(), 1).value();
  EXPECT_EQ(device.str(), "Fake GPU, sm_90, 10 multiprocessors, 8 GiB");
  EXPECT_EQ(device.max_shared_bytes, 227 * 1024);
  EXPECT_EQ(query_device(library.api(), 2).reason(),
            "device cuda:2: this machine has 2 such devices");
  EXPECT_EQ(count_devices(library.api()), 2);
}

DeviceOrdinal device_of_this_thread(const DriverApi& api) {
  DeviceOrdinal device = -1;
  return api.ctx_get_device(&device) == kDriverSuccess ? device : -1;
}

TEST(DriverApi, ANewThreadEntersThePrimaryContextOnce) {
  FakeLibrary library;
  const DriverApi& api = library.api();
  for (int i = 0; i < 2; ++i) {
    const DeviceScope scope(api, 0);
    EXPECT_EQ(device_of_this_thread(api), 0);
  }
  EXPECT_EQ(device_of_this_thread(api), 0);
  EXPECT_EQ(library.state().num_primary_contexts, 1);
}

TEST(DriverApi, AScopeGoesBackToTheThreadsDevice) {
  FakeLibrary library;
  const DriverApi& api = library.api();
  const DeviceScope outer(api, 0);
  {
    const DeviceScope inner(api, 1);
    EXPECT_EQ(device_of_this_thread(api), 1);
  }
  EXPECT_EQ(device_of_this_thread(api), 0);
}

// The text of the Error that a check throws, "LoadError: " in front where it is one.
std::string text_of(const DriverApi& api, DriverStatus status, bool is_load) {
  try {
    is_load ? api.check_load(status, "kernel k") : api.check(status, "kernel k");
  } catch (const LoadError& error) {
    return std::string("LoadError: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(DriverApi, TellsFaultsFromWhatCannotBeLoaded) {
  FakeLibrary library;
  const DriverApi& api = library.api();
  EXPECT_THAT(text_of(api, kDriverOutOfMemory, true),
              AllOf(HasSubstr("LoadError: kernel k: CUDA_ERROR_OUT_OF_MEMORY"),
                    HasSubstr("free memory of the device")));
  EXPECT_THAT(text_of(api, 200, true), HasSubstr("LoadError: "));
  EXPECT_THAT(text_of(api, 719, false),
              AllOf(HasSubstr("kernel k: CUDA_ERROR_LAUNCH_FAILED"),
                    HasSubstr("CUDA_LAUNCH_BLOCKING=1"), HasSubstr("started again")));
  // Nothing else could run there: no LoadError. The first fault is told with every later one.
  EXPECT_THAT(text_of(api, 214, true),
              AllOf(HasSubstr("kernel k: CUDA_ERROR_ECC_UNCORRECTABLE"),
                    HasSubstr("failed before, at: kernel k: CUDA_ERROR_LAUNCH_FAILED"),
                    HasSubstr("the device is lost"), ::testing::Not(HasSubstr("LoadError"))));
}

TEST(DriverApi, ErrorsNameWhatWasDone) {
  FakeLibrary library;
  try {
    library.api().check(kDriverOutOfMemory, "kernel ", "k", ": loading");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "kernel k: loading: CUDA_ERROR_OUT_OF_MEMORY (as the test wants it); free memory "
                 "of the device, or give smaller batches");
  }
}

}  // namespace
}  // namespace mlcc::codegen::cuda
