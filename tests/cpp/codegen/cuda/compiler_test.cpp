#include "codegen/cuda/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "codegen/cuda/emitter.h"
#include "fake_library.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view kAdd = R"(
extern "C" __global__ void NAME_p0(const float* x, float* y, long long extent) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < extent; i += gridDim.x * blockDim.x)
    y[i] = x[i] + 1.0f;
}
)";

CudaSource source_of(const std::string& name) {
  CudaSource source{std::string(kAdd), {}};
  source.text.replace(source.text.find("NAME"), 4, name);
  source.info.phases = {{.function = name + "_p0", .threads = 128, .group = 1}};
  return source;
}

class Nvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    nvrtc_ = find_nvrtc(&reason);
    if (nvrtc_ == nullptr) GTEST_SKIP() << reason;
  }
  const NvrtcApi* nvrtc_ = nullptr;
};

TEST_F(Nvrtc, CompilesSeveralKernelsAsOneProgram) {
  for (const std::string arch : {"sm_80", "sm_90", "sm_100"}) {
    std::vector<CudaSource> sources = {source_of("a"), source_of("b"), source_of("c")};
    const Architecture architecture = choose_architecture(arch, *nvrtc_).value();
    EXPECT_EQ(architecture.name, arch);
    const Program program = compile_sources(sources, architecture, *nvrtc_, true);
    EXPECT_THAT(program.code, StartsWith("\x7f"
                                         "ELF"));
    EXPECT_THAT(program.ptx, AllOf(HasSubstr("a_p0"), HasSubstr("c_p0")));
    for (const CudaSource& source : sources) {
      EXPECT_GT(source.info.phases[0].registers, 0);
      EXPECT_EQ(source.info.phases[0].spilled_bytes, 0);
      EXPECT_EQ(source.info.phases[0].local_bytes, 0);
      EXPECT_EQ(source.info.phases[0].static_shared_bytes, 0);
    }
  }
}

TEST_F(Nvrtc, GivesPtxForDevicesThatItDoesNotKnow) {
  NvrtcApi older = *nvrtc_;
  older.archs = {80, 90};
  const Architecture newer = choose_architecture("sm_103", older).value();
  EXPECT_EQ(newer.name, "compute_90");
  EXPECT_TRUE(newer.is_ptx);
  older.version_number = 13010;
  older.version_text = "13.1";
  EXPECT_TRUE(choose_architecture("sm_103", older, 13010));
  EXPECT_TRUE(choose_architecture("sm_90", older, 13000));  // machine code needs no such care
  EXPECT_THAT(choose_architecture("sm_103", older, 13000).reason(),
              HasSubstr("NVRTC 13.1 has PTX for it only, newer than a driver of CUDA 13.0 reads"));
  const Program program = compile_program(source_of("a").text, newer, *nvrtc_);
  EXPECT_THAT(program.code, HasSubstr(".target sm_90"));
  EXPECT_THAT(choose_architecture("sm_75", older).reason(), HasSubstr("kernels need sm_80"));
  EXPECT_THAT(choose_architecture("hopper", older).reason(), HasSubstr("expected a name like"));
}

// The static arrays of reductions count: a row takes what they leave of a block's shared memory.
TEST_F(Nvrtc, ReductionsAndRowsFitSharedMemoryTogether) {
  constexpr int64_t kColumns = 8192;
  std::string text = "kernel @k(%x: in f32[4, 8192], %y: out f32[4, 8192]) {\n"
                     "  for %i in 0..4 parallel group(256) {\n";
  std::string sum = "0.0";
  for (int i = 0; i < 40; ++i) {
    const std::string n = std::to_string(i);
    text += "    reduce %j" + n + " in 0..8192 vector(1) (%s" + n +
            ": f32 = 0.0) {\n      yield %s" + n + " + %x[%i, %j" + n + "] * " + n +
            ".5\n    } combine (%a" + n + ", %b" + n + ") {\n      yield %a" + n + " + %b" + n +
            "\n    } -> %t" + n + "\n";
    sum = "(" + sum + " + %t" + n + ")";
  }
  text +=
      "    for %k in 0..8192 vector(1) { store %y[%i, %k] = %x[%i, %k] * " + sum + " }\n  }\n}\n";
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, text);
  const Architecture architecture = choose_architecture("sm_90", *nvrtc_).value();
  // With 40 arrays of 32 bytes, padded to 16, beside the row.
  for (const int64_t most : {kColumns * 4 + 40 * 32, kColumns * 4 + 40 * 32 - 16}) {
    CudaSource source = emit_kernel(kernel, "k", {.max_shared_bytes = most}).value();
    compile_sources({&source, 1}, architecture, *nvrtc_);
    const PhaseInfo& phase = source.info.phases[0];
    EXPECT_EQ(phase.static_shared_bytes, 40 * 32);
    EXPECT_EQ(phase.shared_bytes > 0, most >= kColumns * 4 + 40 * 32);
    EXPECT_LE(phase.shared_bytes + phase.static_shared_bytes, most);
  }
}

// 1024 threads leave each 64 registers. By itself ptxas plans with 32, so that two blocks fit, and
// spills 4 bytes.
TEST_F(Nvrtc, AFunctionThatSpillsGetsTheRegistersOfItsBlock) {
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, R"(
kernel @k(%b0: in f32[16384], %b1: in f32[16384], %b2: in f32[16384], %b3: out f32[1]) {
  for %0 in 0..1 parallel group(1024) {
    reduce %1 in 0..16384 vector(4) unroll(4) (%2: f32 = 0.0) {
      yield %2 + exp(%b0[%1]) + exp(%b1[%1]) + exp(%b2[%1])
    } combine (%3, %4) {
      yield %3 + %4
    } -> %5
    store %b3[0] = %5
  }
}
)");
  std::vector<CudaSource> sources = {emit_kernel(kernel, "k", {}).value()};
  compile_sources(sources, choose_architecture("sm_90", *nvrtc_).value(), *nvrtc_, false);
  EXPECT_EQ(sources[0].info.phases[0].spilled_bytes, 0);
  EXPECT_GT(sources[0].info.phases[0].registers, 32);
}

TEST(EmitKernel, RowsStayInRegistersIfTheMachineHasThem) {
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, R"(
kernel @k(%x: in f32[4, 16384], %y: out f32[4, 16384]) {
  for %i in 0..4 parallel group(512) {
    reduce %j in 0..16384 vector(4) (%s: f32 = 0.0) {
      yield %s + %x[%i, %j]
    } combine (%a, %b) {
      yield %a + %b
    } -> %t
    for %k in 0..16384 vector(4) { store %y[%i, %k] = %x[%i, %k] - %t }
  }
}
)");
  EmitOptions options{.max_shared_bytes = 100 * 1024};
  EXPECT_EQ(emit_kernel(kernel, "k", options)->info.phases[0].shared_bytes, 0);
  options.registers_per_multiprocessor /= 4;
  EXPECT_EQ(emit_kernel(kernel, "k", options)->info.phases[0].shared_bytes, 16384 * 4);
}

TEST(ProgramOptions, HoldOnlyWhatTheNvrtcKnows) {
  NvrtcApi nvrtc{};
  nvrtc.version_number = 12030;
  EXPECT_THAT(program_options(nvrtc), Not(Contains("--minimal")));
  nvrtc.version_number = 12040;
  EXPECT_THAT(program_options(nvrtc), IsSupersetOf({"--fmad=false", "--minimal"}));
}

TEST_F(Nvrtc, AProgramThatDoesNotCompileIsABugWithLogAndText) {
  const Architecture architecture = choose_architecture("sm_90", *nvrtc_).value();
  try {
    compile_program("__global__ void f() { unknown(); }", architecture, *nvrtc_);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("compiling for sm_90"), HasSubstr("is undefined"),
                                    HasSubstr("while compiling\n__global__ void f()")));
  }
}

TEST_F(Nvrtc, CompilesOnSeveralThreads) {
  const Architecture architecture = choose_architecture("sm_90", *nvrtc_).value();
  std::vector<std::thread> threads;
  std::vector<std::string> codes(4);
  for (size_t t = 0; t < codes.size(); ++t)
    threads.emplace_back(
        [&, t] { codes[t] = compile_program(source_of("a").text, architecture, *nvrtc_).code; });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& code : codes) EXPECT_EQ(code, codes[0]);
}

TEST(NvrtcApi, TellsWhatWasTried) {
  EXPECT_THAT(open_nvrtc({"/nonexistent/libnvrtc.so.13", {}}).reason(),
              AllOf(HasSubstr("no NVRTC"), HasSubstr("/nonexistent/libnvrtc.so.13")));
  EXPECT_THAT(open_nvrtc({"libm.so.6", {}}).reason(), HasSubstr("lacks nvrtcGetErrorString"));
}

TEST(NvrtcApi, IsNotNewerThanTheDriver) {
  FakeLibrary fake;
  EXPECT_THAT(open_nvrtc({fake.path(), {}, 12080}).reason(),
              AllOf(HasSubstr("NVRTC 13.0"), HasSubstr("a driver of CUDA 12.8 cannot load"),
                    HasSubstr("update the driver")));
  EXPECT_TRUE(open_nvrtc({fake.path(), {}, 13000}));

  // Of two in a folder the one that the driver can load.
  FakeLibrary older;
  older.state().nvrtc_major = 12;
  const std::filesystem::path folder = std::filesystem::path(older.path()).parent_path();
  std::filesystem::create_symlink(older.path(), folder / "libnvrtc.so.12");
  std::filesystem::create_symlink(fake.path(), folder / "libnvrtc.so.13");
  const Result<const NvrtcApi*> found = open_nvrtc({"", {folder.string()}, 12080});
  ASSERT_TRUE(found) << found.reason();
  EXPECT_EQ((*found)->version_text, "12.0");
}

TEST(PtxasLog, IsReadAsFarAsItIsUnderstood) {
  const FunctionReports reports = parse_ptxas_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'sm' for 'sm_90'\n"
      "ptxas info    : Function properties for sm\n"
      "ptxas         .     96 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]\n"
      "ptxas info    : Function properties for other\n"
      "    something new\n"
      "ptxas info    : Used many registers\n");
  const FunctionReport& sm = reports.at("sm");
  EXPECT_EQ(sm.registers, 10);
  EXPECT_EQ(sm.local_bytes, 96);
  EXPECT_EQ(sm.spilled_bytes, 20);
  EXPECT_EQ(sm.static_shared_bytes, 256);
  EXPECT_EQ(reports.at("other").registers, -1);
  EXPECT_EQ(reports.at("other").local_bytes, -1);
  EXPECT_TRUE(parse_ptxas_log("").empty());
}

}  // namespace
}  // namespace mlcc::codegen::cuda
