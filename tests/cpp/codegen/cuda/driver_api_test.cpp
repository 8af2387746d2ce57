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

TEST(DriverApi, ANewThreadEntersThePrimaryContextOnce) {
  FakeLibrary library;
  const DriverApi& api = library.api();
  EXPECT_EQ(current_device(api, 0), 0);
  EXPECT_EQ(current_device(api, 1), 0);
  EXPECT_EQ(library.state().num_primary_contexts, 1);
}

TEST(DriverApi, ErrorsNameWhatWasDone) {
  FakeLibrary library;
  try {
    library.api().check(kDriverOutOfMemory, "kernel ", "k", ": loading");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "kernel k: loading: CUDA_ERROR_OUT_OF_MEMORY (as the test wants it)");
  }
}

}  // namespace
}  // namespace mlcc::codegen::cuda
