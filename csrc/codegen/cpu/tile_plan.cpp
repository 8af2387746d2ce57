#include "codegen/cpu/tile_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace mlcc::codegen::cpu {
namespace {

// Sums under way at once for each cycle that one takes to be ready for the next addition: at most
// two begin in a cycle, and what is loaded comes late now and then.
constexpr int64_t kSumsOfCycle = 3;
// Sets of sums, where registers have room for them: with half as many terms in one sum after the
// other, results are about as exact as a library's.
constexpr int64_t kLeastSets = 2;
// Groups beyond these save no loads of A worth the code.
constexpr int64_t kMostGroups = 8;
// Of a step of depth, in tenths of a multiply-add: one, or a load where there are more of these;
// and a load beside it, which is not free even where it hides behind multiplications.
constexpr int64_t kCostOfProduct = 10, kCostOfHiddenLoad = 1;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t most_rows(int64_t groups, const RegisterNeeds& needs) {
  const int64_t left = needs.registers - needs.of_step(groups);
  return std::max<int64_t>(left / groups, groups == 1 ? 1 : 0);
}

std::vector<ColumnBlocks> cut_columns_by(int64_t columns, int64_t block) {
  std::vector<ColumnBlocks> blocks;
  if (columns >= block) blocks.push_back({0, columns / block, block, {}});
  if (const int64_t rest = columns % block; rest != 0)
    blocks.push_back({columns - rest, 1, rest, {}});
  return blocks;
}

// Of one step of depth, in the units of kCostOfProduct. A cycle begins as many loads as
// multiplications at best. 0: it does not fit.
int64_t cost_of(int64_t rows, const std::vector<ColumnBlocks>& columns,
                const RegisterNeeds& needs) {
  int64_t cost = 0;
  for (const ColumnBlocks& block : columns) {
    const auto groups = static_cast<int64_t>(block.groups.size());
    if (most_rows(groups, needs) == 0) return 0;
    for (const RowBlocks& part : cut_rows(rows, groups, needs)) {
      const int64_t products = part.rows * groups, loads = part.rows + groups;
      cost += block.count * part.count *
              (kCostOfProduct * std::max(products, loads) + kCostOfHiddenLoad * loads);
    }
  }
  return cost;
}

}  // namespace

std::vector<ColumnGroup> group_columns(int64_t columns, int64_t lanes) {
  std::vector<ColumnGroup> groups;
  auto width = static_cast<unsigned>(lanes);
  for (unsigned first = 0; first < columns; first += groups.back().width) {
    while (width > columns - first) width /= 2;
    groups.push_back({first, width});
  }
  return groups;
}

bool fits_registers(int64_t groups, const RegisterNeeds& needs) {
  return most_rows(groups, needs) > 0;
}

std::vector<ColumnBlocks> cut_columns(int64_t rows, int64_t columns, int64_t lanes,
                                      const RegisterNeeds& needs) {
  std::vector<ColumnBlocks> best;
  int64_t least = 0;
  for (int64_t groups = 1; groups <= kMostGroups; ++groups) {
    std::vector<ColumnBlocks> blocks = cut_columns_by(columns, groups * lanes);
    for (ColumnBlocks& block : blocks) block.groups = group_columns(block.columns, lanes);
    const int64_t cost = cost_of(rows, blocks, needs);
    if (cost == 0 || (!best.empty() && cost >= least)) continue;
    least = cost;
    best = std::move(blocks);
  }
  if (!best.empty()) return best;
  // Too many short groups: one at a time.
  int64_t first = 0;
  for (const ColumnGroup& group : group_columns(columns, lanes)) {
    if (!best.empty() && best.back().columns == group.width) {
      ++best.back().count;
    } else {
      best.push_back({first, 1, group.width, {{0, group.width}}});
    }
    first += group.width;
  }
  return best;
}

std::vector<RowBlocks> cut_rows(int64_t rows, int64_t groups, const RegisterNeeds& needs) {
  const int64_t blocks = divide_up(rows, most_rows(groups, needs));
  const int64_t block = divide_up(rows, blocks);
  std::vector<RowBlocks> parts = {{0, rows / block, block}};
  if (const int64_t rest = rows % block; rest != 0) parts.push_back({rows - rest, 1, rest});
  return parts;
}

int64_t count_sets(int64_t rows, int64_t groups, int64_t latency, const RegisterNeeds& needs) {
  const int64_t sums = rows * groups;
  const auto wanted =
      static_cast<uint64_t>(std::max(kLeastSets, divide_up(kSumsOfCycle * latency, sums)));
  const int64_t left = needs.registers - needs.of_step(groups);
  const auto fitting = static_cast<uint64_t>(std::max<int64_t>(left / sums, 1));
  return static_cast<int64_t>(std::min(std::bit_ceil(wanted), std::bit_floor(fitting)));
}

}  // namespace mlcc::codegen::cpu
