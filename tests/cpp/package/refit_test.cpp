#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "opened.h"
#include "package/context.h"
#include "package/mlcc_runtime.h"
#include "package/package.h"
#include "package/recipes.h"
#include "package_file.h"
#include "support/error.h"

namespace mlcc::package {
namespace {

using ::testing::HasSubstr;

const runtime::TensorSpec kOne{DType::kF32, {1}, {1}};

runtime::LaunchStep copy(runtime::Slot from, runtime::Slot to) {
  return {"", {}, "copy", {}, {from, to}, {0}, {{1, 1}}, {}, ""};
}

// Of no inputs: gives "packed", which a recipe copies from "w", and the weight "v" as it is.
PackageFile example() {
  PackageFile file;
  file.manifest = "{}";
  Contents& contents = file.contents;
  contents.plan.inputs = {{false, kOne, 0}, {false, kOne, 0}, {false, kOne, 0}};
  contents.inputs = {{InputKind::kUnused, "w", {}, 0, 0},
                     {InputKind::kWeight, "v", {}, 0, 4},
                     {InputKind::kWeight, "packed", {}, 64, 4}};
  contents.plan.num_slots = 4;
  contents.plan.steps = {runtime::AllocateStep{3, kOne, false}, copy(2, 3)};
  contents.plan.outputs = {3, 1};
  contents.outputs = {{"y", {}}, {"z", {}}};
  contents.entries = {{0}};
  static const std::array<float, 2> weights = {1, 2};
  file.weights.place({&weights[0], 4});
  file.weights.place({&weights[1], 4});
  file.code = {{kArchitecture, "a cpu", {}}, std::string(kCode)};

  Recipes& recipes = file.recipes.emplace();
  Contents& recipe = recipes.programs.emplace_back();
  recipe.plan.inputs = {{false, kOne, 0}};
  recipe.inputs = {{InputKind::kGiven, "source", {}, 0, 0}};
  recipe.plan.num_slots = 2;
  recipe.plan.steps = {runtime::AllocateStep{1, kOne, false}, copy(0, 1)};
  recipe.plan.outputs = {1};
  recipe.outputs = {{"packed", {}}};
  recipe.entries = {{0}};
  recipes.recipes = {{0, 2, {0}}};
  recipes.names = {{"w", 0}, {"v", 1}, {"v.tied", 1}, {"steps", WeightName::kUnread}};
  return file;
}

struct Value {
  explicit Value(float value) : data(value) {}
  mlcc_tensor tensor() { return {&data, MLCC_F32, 1, sizes.data(), nullptr}; }
  float data;
  std::array<int64_t, 1> sizes{1};
};

class RefitTest : public ::testing::Test {
 protected:
  RefitTest() : opened_(bytes_of(example())) {}

  std::array<float, 2> results(mlcc_context* context) const {
    Value y(0), z(0);
    std::array<mlcc_tensor, 2> outputs = {y.tensor(), z.tensor()};
    mlcc_error error;
    EXPECT_EQ(mlcc_run(context, nullptr, 0, outputs.data(), 2, &error), MLCC_OK) << error.text;
    return {y.data, z.data};
  }
  std::array<float, 2> results() const { return results(opened_.context); }

  mlcc_status refit(std::vector<mlcc_weight> weights) {
    return mlcc_package_refit(opened_.package, weights.data(), weights.size(), &opened_.error);
  }

  Opened opened_;
};

TEST_F(RefitTest, ExchangesWhatIsPackedAndWhatIsNot) {
  EXPECT_EQ(results(), (std::array<float, 2>{2, 1}));
  Value w(30), v(40);
  ASSERT_EQ(refit({{"w", w.tensor()}, {"v", v.tensor()}}), MLCC_OK) << opened_.error.text;
  w.data = v.data = 0;  // which the package has copied
  EXPECT_EQ(results(), (std::array<float, 2>{30, 40}));
  Value other(50);
  ASSERT_EQ(refit({{"v.tied", other.tensor()}}), MLCC_OK);
  EXPECT_EQ(results(), (std::array<float, 2>{30, 50}));
}

TEST_F(RefitTest, TellsWhatCanBeExchanged) {
  size_t count = 0;
  ASSERT_EQ(mlcc_package_num_weights(opened_.package, &count, &opened_.error), MLCC_OK);
  ASSERT_EQ(count, 3u);
  mlcc_tensor_info info{};
  ASSERT_EQ(mlcc_package_weight(opened_.package, 2, &info, &opened_.error), MLCC_OK);
  EXPECT_STREQ(info.name, "v.tied");
  EXPECT_EQ(info.dtype, MLCC_F32);
  ASSERT_EQ(info.rank, 1);
  EXPECT_EQ(info.sizes[0], 1);
  EXPECT_EQ(mlcc_package_weight(opened_.package, 3, &info, &opened_.error), MLCC_INVALID_ARGUMENT);
}

TEST_F(RefitTest, RefusesAllWhereOneIsWrong) {
  Value w(30), v(40), other(41);
  const auto refused = [&](mlcc_weight wrong, const std::string& text) {
    EXPECT_EQ(refit({{"w", w.tensor()}, wrong}), MLCC_INVALID_ARGUMENT);
    EXPECT_THAT(opened_.error.text, HasSubstr(text));
    EXPECT_EQ(results(), (std::array<float, 2>{2, 1}));
  };
  refused({"nobody", v.tensor()}, "weight nobody");
  refused({nullptr, v.tensor()}, "null");
  mlcc_tensor tensor = v.tensor();
  tensor.dtype = MLCC_F64;
  refused({"v", tensor}, "found dtype f64, expected f32");
  tensor = v.tensor();
  tensor.rank = 0;
  refused({"v", tensor}, "found 0 dimensions, expected [1]");
  v.sizes[0] = 2;
  refused({"v", v.tensor()}, "found sizes [2], expected [1]");
  v.sizes[0] = 1;
  tensor = v.tensor();
  tensor.data = nullptr;
  refused({"v", tensor}, "data is null");
  EXPECT_EQ(refit({{"v", v.tensor()}, {"v.tied", other.tensor()}}), MLCC_INVALID_ARGUMENT);
  EXPECT_THAT(opened_.error.text, HasSubstr("two names"));
  EXPECT_EQ(refit({{"steps", {}}}), MLCC_OK);
  EXPECT_EQ(results(), (std::array<float, 2>{2, 1}));
}

TEST_F(RefitTest, ACallSeesAllOfTheWeightsOrNone) {
  std::atomic<int> running{4};
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      mlcc_context* context = nullptr;
      mlcc_error error;
      EXPECT_EQ(mlcc_context_create(opened_.package, nullptr, &context, &error), MLCC_OK);
      for (int call = 0; call < 2000; ++call) {
        const std::array<float, 2> found = results(context);
        torn += found[0] != found[1] + 1;
      }
      mlcc_context_destroy(context);
      --running;
    });
  for (float step = 1; running > 0; step = step == 9 ? 1 : step + 1) {
    Value w(step + 1), v(step);
    EXPECT_EQ(refit({{"w", w.tensor()}, {"v", v.tensor()}}), MLCC_OK) << opened_.error.text;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
}

TEST(Refit, NeedsWhatIsPackedTogether) {
  PackageFile file = example();
  file.recipes->programs[0].plan.inputs.push_back({false, kOne, 0});
  file.recipes->programs[0].inputs.push_back({InputKind::kGiven, "other", {}, 0, 0});
  file.recipes->programs[0].plan.num_slots = 3;
  file.recipes->programs[0].plan.steps = {runtime::AllocateStep{2, kOne, false}, copy(0, 2)};
  file.recipes->programs[0].plan.outputs = {2};
  file.contents.plan.inputs.push_back({false, kOne, 0});
  file.contents.inputs.push_back({InputKind::kUnused, "u", {}, 0, 0});
  file.contents.plan.num_slots = 5;
  file.contents.plan.steps = {runtime::AllocateStep{4, kOne, false}, copy(2, 4)};
  file.contents.plan.outputs = {4, 1};
  file.recipes->recipes[0].sources = {0, 3};
  file.recipes->names.push_back({"u", 3});
  Opened opened(bytes_of(file));
  ASSERT_EQ(opened.status, MLCC_OK) << opened.error.text;
  Value w(30), u(1);
  std::vector<mlcc_weight> weights = {{"w", w.tensor()}};
  EXPECT_EQ(mlcc_package_refit(opened.package, weights.data(), 1, &opened.error),
            MLCC_INVALID_ARGUMENT);
  EXPECT_THAT(opened.error.text, HasSubstr("weight u"));
  weights.push_back({"u", u.tensor()});
  EXPECT_EQ(mlcc_package_refit(opened.package, weights.data(), 2, &opened.error), MLCC_OK)
      << opened.error.text;
}

TEST(Refit, IdleContextsHoldNoWeights) {
  const std::string bytes = bytes_of(example());
  const std::unique_ptr<void, decltype(&::free)> memory(
      ::aligned_alloc(4096, (bytes.size() / 4096 + 1) * 4096), &::free);
  std::memcpy(memory.get(), bytes.data(), bytes.size());
  const std::shared_ptr<Package> package =
      Package::open_memory({static_cast<const char*>(memory.get()), bytes.size()}, 0);
  Context context(package, {});
  const WeightsPtr weights = package->weights();
  const int64_t holders = weights.use_count();
  Value y(0), z(0);
  std::array<mlcc_tensor, 2> outputs = {y.tensor(), z.tensor()};
  context.run({}, outputs);
  EXPECT_EQ(weights.use_count(), holders);
  outputs[1] = {};  // which is told where it lies, among the weights
  context.run({}, outputs);
  EXPECT_EQ(weights.use_count(), holders + 1);
  EXPECT_EQ(*static_cast<const float*>(outputs[1].data), 1.0f);
}

TEST(Refit, IsRefusedWhereTheFileHasNoRecipes) {
  PackageFile file = example();
  file.recipes.reset();
  Opened opened(bytes_of(file));
  EXPECT_EQ(mlcc_package_refit(opened.package, nullptr, 0, &opened.error), MLCC_UNSUPPORTED);
  EXPECT_THAT(opened.error.text, HasSubstr("exported without"));
}

TEST(Recipes, RefusesWhatIsInconsistent) {
  const auto refused = [](const std::function<void(Recipes&)>& change, const std::string& text) {
    Recipes recipes = *example().recipes;
    change(recipes);
    try {
      decode_recipes(encode_recipes(recipes), 3, 64);
      ADD_FAILURE() << "not refused: " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  refused([](Recipes& r) { r.recipes[0].program = 1; }, "no program 1");
  refused([](Recipes& r) { r.recipes[0].input = 3; }, "no input 3");
  refused([](Recipes& r) { r.recipes[0].sources = {3}; }, "no input 3");
  refused([](Recipes& r) { r.recipes[0].sources = {0, 0}; }, "a program of 1 inputs");
  refused([](Recipes& r) { r.names[0].input = 3; }, "weight w is no input");
  refused([](Recipes& r) { r.programs[0].inputs[0].kind = InputKind::kUnused; }, "of its own");
}

TEST(Refit, RefusesRecipesOfOtherSizes) {
  PackageFile file = example();
  file.contents.plan.inputs[0].spec.dtype = DType::kI32;
  Opened opened(bytes_of(file));
  ASSERT_EQ(opened.status, MLCC_OK);
  EXPECT_EQ(mlcc_package_refit(opened.package, nullptr, 0, &opened.error), MLCC_INVALID_FILE);
}

}  // namespace
}  // namespace mlcc::package
