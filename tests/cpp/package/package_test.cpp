#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "opened.h"
#include "package/contents.h"
#include "package/format.h"
#include "package/layouts.h"
#include "package/mlcc_runtime.h"
#include "package/targets.h"
#include "package/thread_pool.h"
#include "package/writer.h"
#include "package_file.h"
#include "support/error.h"

namespace mlcc::package {
namespace {

using ::testing::HasSubstr;

const SymExpr kBatch = SymExpr::symbol("s0");

// out[batch, 2] whose first element is that of x[batch], by way of an arena; beside it a weight.
Contents example(const SymExpr& failure = 0) {
  Contents contents;
  const runtime::TensorSpec vector{DType::kF32, {kBatch}, {1}};
  const runtime::TensorSpec matrix{DType::kF32, {kBatch, 2}, {2, 1}};
  const runtime::TensorSpec weight{DType::kI64, {3}, {1}};
  contents.plan.inputs = {{false, vector, 0}, {false, weight, 0}};
  contents.inputs = {{InputKind::kGiven, "x", {"batch"}, 0, 0},
                     {InputKind::kWeight, "w", {}, 0, 24}};
  contents.plan.num_slots = 5;
  contents.plan.steps = {runtime::BindStep{"s0", 0, 0},
                         runtime::AllocateStep{2, matrix, true},
                         runtime::AllocateStep{3, matrix, false},
                         runtime::LaunchStep{"", {}, "copy", {}, {0, 2}, {0}, {{1, 1}}, {}, ""},
                         runtime::LaunchStep{"",
                                             {},
                                             "copy again",
                                             {},
                                             {2, 3},
                                             {failure},
                                             {{1, 1}},
                                             {{7, "IndexError", "index out of range"}},
                                             "model.py:3"},
                         runtime::ViewStep{4, 1, {DType::kI64, {2}, {1}}, 1},
                         runtime::ReleaseStep{{2}}};
  contents.plan.outputs = {3, 4};
  contents.outputs = {{"y", {"batch", "2"}}, {"tail", {}}};
  contents.symbols = {{"s0", "batch", 1, 8}};
  contents.entries = {{0}, {0}};
  return contents;
}

const std::array<int64_t, 3> kWeight = {10, 20, 30};

std::string bytes_of(const Contents& contents, const std::vector<std::string>& features = {}) {
  PackageFile file;
  file.manifest = "{}";
  file.contents = contents;
  file.code = {{kArchitecture, "a cpu", features}, std::string(kCode)};
  file.weights.place({kWeight.data(), 24});
  return bytes_of(file);
}

struct Vector {
  explicit Vector(int64_t count) : sizes{count}, data(static_cast<size_t>(count), 5.0f) {}
  mlcc_tensor tensor() { return {data.data(), MLCC_F32, 1, sizes.data(), nullptr}; }
  std::array<int64_t, 1> sizes;
  std::vector<float> data;
};

TEST(Package, Runs) {
  Opened opened(bytes_of(example()));
  ASSERT_EQ(opened.status, MLCC_OK) << opened.error.text;
  for (const int64_t batch : {3, 1, 8}) {
    Vector x(batch);
    std::vector<mlcc_tensor> outputs(2);
    ASSERT_EQ(opened.run({x.tensor()}, outputs), MLCC_OK) << opened.error.text;
    EXPECT_EQ(*static_cast<float*>(outputs[0].data), 5.0f);
    EXPECT_EQ(outputs[0].sizes[0], batch);
    EXPECT_EQ(outputs[1].rank, 1);
    EXPECT_EQ(static_cast<int64_t*>(outputs[1].data)[0], 20);
  }
}

TEST(Package, TellsWhatItTakesAndGives) {
  const Opened opened(bytes_of(example()));
  ASSERT_EQ(mlcc_package_num_inputs(opened.package), 1U);
  ASSERT_EQ(mlcc_package_num_outputs(opened.package), 2U);
  mlcc_tensor_info info;
  ASSERT_EQ(mlcc_package_input(opened.package, 0, &info), MLCC_OK);
  EXPECT_STREQ(info.name, "x");
  EXPECT_EQ(info.sizes[0], -1);
  EXPECT_STREQ(info.size_texts[0], "batch");
  ASSERT_EQ(mlcc_package_output(opened.package, 0, &info), MLCC_OK);
  EXPECT_EQ(info.sizes[1], 2);
  EXPECT_STREQ(info.size_texts[1], "2");
  EXPECT_EQ(mlcc_package_output(opened.package, 2, &info), MLCC_INVALID_ARGUMENT);
  size_t size = 0;
  const char* manifest = mlcc_package_manifest(opened.package, &size);
  EXPECT_EQ(std::string(manifest, size), "{}");
}

TEST(Package, InfersSizesAndArena) {
  Opened opened(bytes_of(example()));
  const std::array<int64_t, 1> sizes = {7};
  const mlcc_tensor x{nullptr, MLCC_F32, 1, sizes.data(), nullptr};
  std::array<mlcc_tensor, 2> outputs;
  ASSERT_EQ(mlcc_infer(opened.context, &x, 1, outputs.data(), 2, &opened.error), MLCC_OK);
  EXPECT_EQ(outputs[0].sizes[0], 7);
  EXPECT_EQ(outputs[0].strides[0], 2);
  EXPECT_EQ(outputs[0].data, nullptr);
  size_t bytes = 0;
  ASSERT_EQ(mlcc_package_arena_bytes(opened.package, &x, 1, &bytes, &opened.error), MLCC_OK);
  EXPECT_EQ(bytes, 64U);
}

TEST(Package, PutsResultsWhereTheCallerWants) {
  Opened opened(bytes_of(example()));
  Vector x(2);
  const std::array<int64_t, 2> sizes = {2, 2};
  const std::array<int64_t, 2> columns = {1, 2};
  std::array<float, 4> rows{}, turned{};
  std::array<int64_t, 2> tail{};
  std::vector<mlcc_tensor> outputs = {{rows.data(), MLCC_F32, 2, sizes.data(), nullptr},
                                      {tail.data(), MLCC_I64, 1, sizes.data(), nullptr}};
  ASSERT_EQ(opened.run({x.tensor()}, outputs), MLCC_OK) << opened.error.text;
  EXPECT_EQ(rows[0], 5.0f);
  EXPECT_EQ(tail, (std::array<int64_t, 2>{20, 30}));
  outputs[0] = {turned.data(), MLCC_F32, 2, sizes.data(), columns.data()};
  ASSERT_EQ(opened.run({x.tensor()}, outputs), MLCC_OK) << opened.error.text;
  EXPECT_EQ(turned[0], 5.0f);
  const std::array<int64_t, 2> overlapping = {1, 1};
  outputs[0].strides = overlapping.data();
  EXPECT_EQ(opened.run({x.tensor()}, outputs), MLCC_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(opened.error.text),
              HasSubstr("output y: elements overlap at strides [1, 1]"));
}

TEST(Package, UsesTheCallersMemory) {
  static int64_t lent;
  lent = 0;
  mlcc_context_options options{};
  options.allocator = {[](void*, size_t bytes, size_t alignment) {
                         ++lent;
                         return ::aligned_alloc(alignment, (bytes + 63) / 64 * 64);
                       },
                       [](void*, void* data, size_t) {
                         --lent;
                         ::free(data);
                       },
                       nullptr};
  alignas(64) std::array<char, 64> arena;
  options.arena = arena.data();
  options.arena_bytes = arena.size();
  options.parallel_for = [](void*, int64_t count, int64_t, void (*body)(void*, int64_t, int64_t),
                            void* data) { body(data, 0, count); };
  Opened opened(bytes_of(example()));
  mlcc_context* context = nullptr;
  ASSERT_EQ(mlcc_context_create(opened.package, &options, &context, &opened.error), MLCC_OK);
  std::array<mlcc_tensor, 2> outputs{};
  Vector x(8);
  mlcc_tensor input = x.tensor();
  ASSERT_EQ(mlcc_run(context, &input, 1, outputs.data(), 2, &opened.error), MLCC_OK)
      << opened.error.text;
  EXPECT_GT(lent, 0);
  mlcc_context_destroy(context);
  EXPECT_EQ(lent, 0);

  options.arena_bytes = 32;
  ASSERT_EQ(mlcc_context_create(opened.package, &options, &context, &opened.error), MLCC_OK);
  outputs = {};
  EXPECT_EQ(mlcc_run(context, &input, 1, outputs.data(), 2, &opened.error), MLCC_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(opened.error.text), HasSubstr("arena: found 32 bytes, expected 64"));
  mlcc_context_destroy(context);
  options.arena = arena.data() + 1;
  EXPECT_EQ(mlcc_context_create(opened.package, &options, &context, &opened.error),
            MLCC_INVALID_ARGUMENT);
}

TEST(Package, TellsOfFailedChecks) {
  Opened opened(bytes_of(example(SymExpr(7))));
  Vector x(2);
  std::vector<mlcc_tensor> outputs(2);
  EXPECT_EQ(opened.run({x.tensor()}, outputs), MLCC_CHECK_FAILED);
  EXPECT_STREQ(opened.error.text, "index out of range (model.py:3)");
}

TEST(Package, RefusesArguments) {
  Opened opened(bytes_of(example()));
  Vector x(2), nine(9);
  std::vector<mlcc_tensor> outputs(2);
  const auto refused = [&](std::vector<mlcc_tensor> inputs, const char* text) {
    EXPECT_EQ(opened.run(std::move(inputs), outputs), MLCC_INVALID_ARGUMENT);
    EXPECT_THAT(std::string(opened.error.text), HasSubstr(text));
  };
  refused({}, "found 0 inputs, expected 1");
  refused({nine.tensor()}, "size batch: found 9, expected 1 to 8");
  mlcc_tensor changed = x.tensor();
  changed.dtype = MLCC_F64;
  refused({changed}, "input x: found dtype f64, expected f32");
  changed = x.tensor();
  changed.rank = 2;
  refused({changed}, "input x: found 2 dimensions, expected [batch]");
  changed = x.tensor();
  changed.data = nullptr;
  refused({changed}, "input x: data is null");
  changed = x.tensor();
  changed.data = static_cast<char*>(changed.data) + 1;
  refused({changed}, "input x: data is not aligned to 4 bytes");
  changed = x.tensor();
  changed.sizes = nullptr;
  refused({changed}, "input x: sizes are null");
  const std::array<int64_t, 1> two = {2};
  changed = x.tensor();
  changed.strides = two.data();
  refused({changed}, "input x: found strides [2], expected [1]");
  outputs.resize(1);
  refused({x.tensor()}, "found 1 outputs, expected 2");
  EXPECT_EQ(mlcc_run(nullptr, nullptr, 0, nullptr, 0, nullptr), MLCC_INVALID_ARGUMENT);
  EXPECT_EQ(mlcc_package_open(nullptr, 0, nullptr, nullptr), MLCC_INVALID_ARGUMENT);
  EXPECT_EQ(mlcc_package_num_inputs(nullptr), 0U);
  mlcc_package_close(nullptr);
  mlcc_context_destroy(nullptr);
}

TEST(Package, ContextsOutliveIt) {
  auto opened = std::make_unique<Opened>(bytes_of(example()), MLCC_COPY_WEIGHTS);
  mlcc_package_close(opened->package);
  opened->package = nullptr;
  Vector x(2);
  std::vector<mlcc_tensor> outputs(2);
  EXPECT_EQ(opened->run({x.tensor()}, outputs), MLCC_OK);
}

TEST(Package, NamesWhatACpuLacks) {
  const Opened opened(bytes_of(example(), {"avx999"}));
  EXPECT_EQ(opened.status, MLCC_UNSUPPORTED);
  EXPECT_THAT(std::string(opened.error.text),
              HasSubstr("its code is for a cpu, and this machine has no avx999"));
  EXPECT_EQ(missing_here({"s390x", "z15", {}}), "s390x");
  EXPECT_EQ(missing_here({kArchitecture, "any", {}}), "");
}

TEST(Package, RefusesDamagedFiles) {
  const std::string bytes = bytes_of(example());
  for (size_t size = 0; size < bytes.size(); size += 13)
    EXPECT_NE(Opened(bytes.substr(0, size)).status, MLCC_OK) << size;
  for (size_t place = 0; place < sizeof(FileHeader) + 5 * sizeof(SectionEntry); ++place) {
    std::string changed = bytes;
    changed[place] = static_cast<char>(changed[place] ^ 0x10);
    const bool is_reserved = place >= 28 && place < 32;
    EXPECT_EQ(Opened(changed).status == MLCC_OK, is_reserved) << place;
  }
}

// Contents whose checksum is right but whose numbers are not: an error, or another program that
// stays inside of its memory. Not run, since code is what whoever writes packages says.
TEST(Contents, RefusesWhatIsInconsistent) {
  const std::string bytes = encode_contents(example());
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string changed = bytes;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int c = 0; c < changes; ++c)
      changed[random() % changed.size()] = static_cast<char>(random());
    try {
      (void)decode_contents(changed, static_cast<int64_t>(kCode.size()), 24);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Contents, ReadsWhatWasWritten) {
  const std::string bytes = encode_contents(example());
  EXPECT_EQ(encode_contents(decode_contents(bytes, 100, 24)), bytes);
  EXPECT_THROW((void)decode_contents(bytes, 0, 24), Error);    // kernels outside of the code
  EXPECT_THROW((void)decode_contents(bytes, 100, 16), Error);  // weights outside of theirs
  EXPECT_THROW((void)decode_contents(bytes + "x", 100, 24), Error);
}

TEST(ThreadPool, RunsEachIterationOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      for (int round = 0; round < 50; ++round)
        pool.parallel_for(count, 3, [&](int64_t begin, int64_t end) {
          EXPECT_TRUE(end - begin >= 3 || end == count);
          for (int64_t i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
        });
      for (const std::atomic<int>& of_one : runs) EXPECT_EQ(of_one, 50);
    }
  }
}

TEST(ThreadPool, SleepsAndWakes) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool.parallel_for(300, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 900);
}

TEST(Package, RunsOnThreadsOfItsOwn) {
  Opened opened(bytes_of(example()));
  mlcc_context_options options{};
  options.threads = 3;
  mlcc_context* context = nullptr;
  ASSERT_EQ(mlcc_context_create(opened.package, &options, &context, &opened.error), MLCC_OK);
  Vector x(4);
  const mlcc_tensor input = x.tensor();
  std::array<mlcc_tensor, 2> outputs{};
  EXPECT_EQ(mlcc_run(context, &input, 1, outputs.data(), 2, &opened.error), MLCC_OK);
  EXPECT_EQ(*static_cast<float*>(outputs[0].data), 5.0f);
  mlcc_context_destroy(context);
  options.threads = -1;
  EXPECT_EQ(mlcc_context_create(opened.package, &options, &context, &opened.error),
            MLCC_INVALID_ARGUMENT);
}

// Each thread has contexts of its own, which have threads too, and opens and closes others
// meanwhile.
TEST(Package, ThreadsShareIt) {
  constexpr int kThreads = 8;
  const std::string bytes = bytes_of(example());
  Opened opened(bytes);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      mlcc_context_options options{};
      options.threads = 1 + t % 2;
      for (int round = 0; round < 10; ++round) {
        mlcc_error error;
        mlcc_context* context = nullptr;
        const Opened other(bytes, MLCC_COPY_WEIGHTS);
        mlcc_package* package = round % 2 == 0 ? opened.package : other.package;
        wrong += mlcc_context_create(package, &options, &context, &error) != MLCC_OK;
        Vector x(1 + t);
        x.data.assign(x.data.size(), static_cast<float>(t));
        const mlcc_tensor input = x.tensor();
        for (int call = 0; call < 20; ++call) {
          std::array<mlcc_tensor, 2> outputs{};
          wrong += mlcc_run(context, &input, 1, outputs.data(), 2, &error) != MLCC_OK ||
                   *static_cast<float*>(outputs[0].data) != static_cast<float>(t) ||
                   outputs[0].sizes[0] != 1 + t;
        }
        mlcc_context_destroy(context);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Package, TellsOfAFileThatShrank) {
  const std::string bytes = bytes_of(example());
  const auto path = std::filesystem::path(::testing::TempDir()) /
                    ("package_test.shrinks." + std::to_string(::getpid()) + ".mlcc");
  for (const uint32_t flags : {uint32_t{0}, uint32_t{MLCC_COPY_WEIGHTS}}) {
    std::ofstream(path, std::ios::binary) << bytes;
    mlcc_error error{};
    mlcc_package* package = nullptr;
    mlcc_context* context = nullptr;
    ASSERT_EQ(mlcc_package_open(path.c_str(), flags, &package, &error), MLCC_OK) << error.text;
    ASSERT_EQ(mlcc_context_create(package, nullptr, &context, &error), MLCC_OK);
    Vector x(2);
    const mlcc_tensor input = x.tensor();
    std::array<mlcc_tensor, 2> outputs{};
    EXPECT_EQ(mlcc_run(context, &input, 1, outputs.data(), 2, &error), MLCC_OK);
    std::filesystem::resize_file(path, 100);
    EXPECT_EQ(mlcc_run(context, &input, 1, outputs.data(), 2, &error), MLCC_INVALID_FILE);
    EXPECT_THAT(std::string(error.text),
                HasSubstr("found 100 bytes, expected " + std::to_string(bytes.size())));
    std::filesystem::remove(path);
    mlcc_context_destroy(context);
    mlcc_package_close(package);
  }
}

TEST(StridedCopy, TurnsRowsIntoColumns) {
  const std::array<int32_t, 6> from = {1, 2, 3, 4, 5, 6};
  std::array<int32_t, 6> to{};
  const std::array<int64_t, 2> sizes = {2, 3}, rows = {3, 1}, columns = {1, 2};
  copy_strided(reinterpret_cast<char*>(to.data()), columns,
               reinterpret_cast<const char*>(from.data()), rows, sizes, 4);
  EXPECT_EQ(to, (std::array<int32_t, 6>{1, 4, 2, 5, 3, 6}));
}

}  // namespace
}  // namespace mlcc::package
