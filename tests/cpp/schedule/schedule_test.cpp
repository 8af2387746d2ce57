#include "schedule/schedule.h"

#include <gtest/gtest.h>

namespace mlcc::schedule {
namespace {

int64_t no_symbols(std::string_view) { return 1000; }

AccessPattern access(std::vector<std::optional<SymExpr>> strides, bool is_store = false) {
  return {std::move(strides), 4, is_store};
}

TEST(Schedule, VectorsRunAlongTheContiguousAxis) {
  NestFacts facts;
  facts.axes = {{"d0", 64, false}, {"d1", 512, false}};
  facts.accesses = {access({512, 1}), access({1, 64}, true)};
  EXPECT_EQ(choose(facts, {512}, no_symbols).vector_axis, 0);  // the store counts double
  facts.accesses = {access({512, 1}), access({512, 1}, true)};
  const Schedule schedule = choose(facts, {512}, no_symbols);
  EXPECT_EQ(schedule.vector_axis, 1);
  EXPECT_EQ(schedule.width, 16);
  EXPECT_EQ(schedule.chunk, 0);
}

TEST(Schedule, LoadsAcrossTheVectorAxisAreTransposed) {
  NestFacts facts;
  facts.axes = {{"d0", 640, false}, {"d1", 512, false}};
  facts.accesses = {access({1, 640}), access({512, 1}, true)};
  const Schedule schedule = choose(facts, {512}, no_symbols);
  EXPECT_EQ(schedule.vector_axis, 1);
  EXPECT_EQ(schedule.tile_axis, 0);
  EXPECT_EQ(schedule.unroll, 1);
  EXPECT_EQ(choose(facts, {0}, no_symbols).tile_axis, -1);  // no vectors
  facts.ops_per_point = 1000;
  EXPECT_EQ(choose(facts, {512}, no_symbols).tile_axis, -1);  // code of 16 points of each vector
  facts.ops_per_point = 1;
  facts.axes[0].extent = 5;
  EXPECT_EQ(choose(facts, {512}, no_symbols).tile_axis, -1);
  facts.axes[0].extent = 640;
  facts.accesses[0] = access({0, 640});  // contiguous along no axis
  EXPECT_EQ(choose(facts, {512}, no_symbols).tile_axis, -1);
}

// Also where what is stored is half as wide, and small operands lie along the other axis.
TEST(Schedule, StoresOfShortElementsAreNotScattered) {
  NestFacts facts;
  facts.axes = {{"d0", 16384, false}, {"d1", 32, false}};
  facts.accesses = {access({32, 1}), access({0, 1}), access({0, 1}), access({1, 16384}, true)};
  facts.accesses.back().element_bytes = 2;
  const Schedule schedule = choose(facts, {512}, no_symbols);
  EXPECT_EQ(schedule.vector_axis, 0);
  EXPECT_EQ(schedule.tile_axis, 1);
}

// A depthwise convolution: nine weights, and as many pixels.
TEST(Schedule, PointsThatLoadTheSameAreComputedTogether) {
  NestFacts facts;
  facts.axes = {{"d0", 56, false}, {"d1", 56, false}, {"d2", 96, false}};
  for (int i = 0; i < 9; ++i) {
    facts.accesses.push_back(access({5568, 96, 1}));
    facts.accesses.push_back(access({0, 0, 1}));
  }
  facts.accesses.push_back(access({5376, 96, 1}, true));
  facts.ops_per_point = 18;
  const Schedule schedule = choose(facts, {512}, no_symbols);
  EXPECT_EQ(schedule.vector_axis, 2);
  EXPECT_EQ(schedule.tile_axis, 1);
  EXPECT_EQ(schedule.block, 8);
  EXPECT_EQ(choose(facts, {256}, no_symbols).block, 4);  // 16 registers
  facts.axes[1].extent = 14;
  EXPECT_EQ(choose(facts, {512}, no_symbols).block, 7);  // none is left over
  facts.axes[1].extent = SymExpr::symbol("s0");
  EXPECT_EQ(choose(facts, {512}, no_symbols).block, 8);
  facts.ops_per_point = 128;
  EXPECT_EQ(choose(facts, {512}, no_symbols).block, 4);
  facts.ops_per_point = 300;
  EXPECT_EQ(choose(facts, {512}, no_symbols).tile_axis, -1);
  facts.ops_per_point = 18;
  facts.accesses[1] = facts.accesses[3] = access({5568, 96, 1});  // few are shared
  EXPECT_EQ(choose(facts, {512}, no_symbols).tile_axis, -1);
}

// Windows of 3 fill no vector, although only along them every access is contiguous.
TEST(Schedule, VectorsRunAcrossWindows) {
  NestFacts facts;
  facts.axes = {{"d0", 64, false}, {"d1", 512, false}, {"d2", 3, true}};
  facts.accesses = {access({1024, 2, 1}), access({512, 1, 0}, true)};
  const Schedule schedule = choose(facts, {512}, no_symbols);
  EXPECT_EQ(schedule.vector_axis, 1);
  EXPECT_EQ(schedule.width, 16);
}

// Chains of functions run several vectors side by side, as far as their code stays short and there
// are so many.
TEST(Schedule, VectorsSideBySideHideLatency) {
  NestFacts facts;
  facts.axes = {{"d0", SymExpr::symbol("s0"), false}};
  facts.accesses = {access({1}), access({1}, true)};
  const auto vectors = [&](int64_t ops, Machine machine = {512}) {
    facts.ops_per_point = ops;
    return choose(facts, machine, no_symbols).unroll;
  };
  EXPECT_EQ(vectors(4), 2);
  EXPECT_EQ(vectors(40), 4);
  EXPECT_EQ(vectors(180), 4);
  EXPECT_EQ(vectors(360), 2);
  EXPECT_EQ(vectors(180, {256}), 2);
  EXPECT_EQ(vectors(5000), 3);
  facts.axes[0].extent = 40;
  EXPECT_EQ(vectors(180), 3);
  facts.axes[0].reduced = true;
  facts.axes[0].extent = 4000;
  EXPECT_EQ(vectors(4), 4);
  EXPECT_EQ(vectors(360), 2);
  facts.carried_values = 3;
  EXPECT_EQ(vectors(4), 2);
}

TEST(Schedule, OneLongAxisIsCutSoThatThreadsCanShareIt) {
  NestFacts facts;
  facts.axes = {{"d0", SymExpr::symbol("s0"), false}};
  facts.accesses = {access({1}), access({1}, true)};
  EXPECT_GT(choose(facts, {512}, no_symbols).chunk, 0);
  facts.axes[0].extent = 100;
  EXPECT_EQ(choose(facts, {512}, no_symbols).chunk, 0);
}

TEST(Schedule, RowsAreReducedAlongTheRowAndColumnsAcrossIt) {
  NestFacts facts;
  facts.axes = {{"d0", 300, false}, {"d1", 700, true}};
  facts.accesses = {access({700, 1}), access({1, 0}, true)};
  EXPECT_EQ(choose(facts, {512}, no_symbols).vector_axis, 1);
  facts.axes = {{"d1", 700, false}, {"d0", 300, true}};
  facts.accesses = {access({1, 700}), access({1, 0}, true)};
  const Schedule columns = choose(facts, {512}, no_symbols);
  EXPECT_EQ(columns.vector_axis, 0);
  EXPECT_EQ(columns.width, 16);
  EXPECT_EQ(columns.rows, 8);
  EXPECT_GE(columns.chunk, 64);
}

// Heads brought to the front: what is read decides, as far as it says anything.
TEST(Schedule, OuterAxesRunInTheOrderOfWhatIsRead) {
  NestFacts facts;
  facts.axes = {{"head", 12, false}, {"token", 500, false}, {"d", 64, false}};
  facts.accesses = {access({64, 768, 1}), access({32000, 64, 1}, true)};
  EXPECT_EQ(choose(facts, {512}, no_symbols).order, (std::vector<int>{1, 0}));
  facts.accesses = {access({0, 0, 1}), access({32000, 64, 1}, true)};
  EXPECT_TRUE(choose(facts, {512}, no_symbols).order.empty());
  facts.accesses = {access({64, 768, 1}), access({32000, 64, 1}), access({32000, 64, 1}, true)};
  EXPECT_TRUE(choose(facts, {512}, no_symbols).order.empty());
}

// Rows are scanned along themselves, columns side by side; what is strided both ways has no
// vectors.
TEST(Schedule, ScansRunAlongWhatIsContiguous) {
  NestFacts facts;
  facts.order = ReducedOrder::kInside;
  facts.axes = {{"d0", 300, false}, {"d1", 700, true}};
  facts.accesses = {access({700, 1}), access({700, 1}, true)};
  EXPECT_EQ(choose(facts, {512}, no_symbols).vector_axis, -1);
  facts.can_scan = true;
  EXPECT_EQ(choose(facts, {512}, no_symbols).vector_axis, 1);
  EXPECT_EQ(choose(facts, {512}, no_symbols).pieces, 1);
  facts.accesses = {access({1400, 2}), access({1400, 2}, true)};
  EXPECT_EQ(choose(facts, {512}, no_symbols).vector_axis, -1);
  facts.accesses = {access({1, 300}), access({1, 300}, true)};
  EXPECT_EQ(choose(facts, {512}, no_symbols).vector_axis, 0);
}

TEST(Schedule, WidthFollowsTheMachineAndTheWidestElement) {
  NestFacts facts;
  facts.axes = {{"d0", 4096, false}};
  facts.accesses = {access({1})};
  EXPECT_EQ(choose(facts, {256}, no_symbols).width, 8);
  EXPECT_EQ(choose(facts, {0}, no_symbols).width, 1);
  facts.widest_bytes = 8;
  EXPECT_EQ(choose(facts, {512}, no_symbols).width, 8);
}

// A whole row for one block, which is the larger for it.
TEST(Schedule, RowsThatLaterPassesWaitForAreNotCut) {
  NestFacts facts;
  facts.axes = {{"d0", 4, false}, {"d1", 40000, true}};
  facts.accesses = {access({40000, 1}), access({1, 0}, true)};
  for (const Machine& machine : {Machine{}, gpu_machine("sm_90")}) {
    facts.can_be_cut = true;
    const Schedule cut = choose(facts, machine, no_symbols);
    facts.can_be_cut = false;
    const Schedule whole = choose(facts, machine, no_symbols);
    EXPECT_EQ(whole.pieces, 1);
    EXPECT_GE(whole.group, cut.group);
  }
}

// For threads, and for a cache where what they take in is large, but no smaller than pays.
TEST(Schedule, PiecesOfColumns) {
  NestFacts facts;
  facts.can_be_cut = true;
  const auto pieces = [&](int64_t rows, int64_t bytes, int64_t cache) {
    facts.axes = {{"d0", rows, true}, {"d1", 512, false}};
    facts.accesses = {access({512, 1}), access({0, 1}, true)};
    facts.accesses[0].element_bytes = bytes;
    return choose(facts, {.vector_bits = 512, .second_level_bytes = cache}, no_symbols).pieces;
  };
  EXPECT_EQ(pieces(64, 4, 1 << 20), 1);
  EXPECT_EQ(pieces(640, 4, 1 << 20), 10);
  EXPECT_EQ(pieces(4096, 4, 1 << 20), 32);
  EXPECT_EQ(pieces(64 * 1024, 4, 1 << 20), 512);
  EXPECT_EQ(pieces(64 * 1024, 2, 1 << 20), 256);
  EXPECT_EQ(pieces(64 * 1024, 4, 4 << 20), 128);
}

TEST(Schedule, GpuSchedulesFollowTheMachine) {
  NestFacts facts;
  facts.can_be_cut = true;
  facts.axes = {{"d0", 4, false}, {"d1", 400000, true}};
  facts.accesses = {access({400000, 1}), access({1, 0}, true)};
  Machine machine = gpu_machine("sm_90");
  EXPECT_GT(choose(facts, machine, no_symbols).pieces, 1);
  machine.launch_ns = 1'000'000;
  EXPECT_EQ(choose(facts, machine, no_symbols).pieces, 1);
  EXPECT_EQ(choose(facts, machine, no_symbols).group, machine.threads_per_block);
  machine.threads_per_block = 512;
  EXPECT_EQ(choose(facts, machine, no_symbols).group, 512);
  facts.axes = {{"d0", 2000, false}, {"d1", 512, true}};
  facts.accesses = {access({512, 1}), access({1, 0}, true)};
  const int64_t few = choose(facts, machine, no_symbols).group;
  machine.threads_per_multiprocessor *= 2;  // more of them to keep busy
  EXPECT_GT(choose(facts, machine, no_symbols).group, few);
}

}  // namespace
}  // namespace mlcc::schedule
