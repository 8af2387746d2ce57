#include "schedule/schedule.h"

#include <algorithm>

#include "loop/cost.h"
#include "schedule/axis_choice.h"
#include "support/error.h"

namespace mlcc::schedule {
namespace {

// With fewer outer iterations than this the vector axis is cut into chunks, so that threads have
// something to share.
constexpr int64_t kEnoughParallel = 32;
// Points of a piece of a reduction: combining the pieces is then a small part of the work.
constexpr int64_t kPointsOfPiece = 32768;
// Elements of a chunk: 16 KB of f32 a stream, a few streams fit L1 and L2.
constexpr int64_t kChunk = 4096;
// Where the vector axis is kept and another one is reduced: rows that are taken in at a time, no
// more than a first-level cache has ways (rows often lie powers of two apart), each of them read
// over so many columns (4 KB of f32: whole pages, which is what memory is fast at).
constexpr int64_t kRowsAtATime = 8;
constexpr int64_t kColumns = 1024;
// Where they come from memory it is asked for them so many rows ahead: prefetchers stop at the end
// of a page, which is where a row ends or soon after.
constexpr int64_t kRowsAhead = 8;
// Columns at least: 256 bytes of f32 of each row are used at once.
constexpr int64_t kFewestColumns = 64;
constexpr int64_t kBytesOfElement = 4;  // of what is computed in, mostly
// Rows of at most so many elements (windows) are taken in while a few vectors of results stay in
// registers.
constexpr int64_t kShortRow = 64;
// The same of rows along one axis, which are far apart: what a prefetcher brings from beside them
// is gone again before its turn comes.
constexpr int64_t kShortColumn = 16;
// Ops of a point up to which it pays to transpose what it loads in registers: the code of a block
// is that of one vector `width` times.
constexpr int64_t kMostTransposedOps = 48;
// Ops of all points that are computed together since they share what they load.
constexpr int64_t kMostOpsBeside = 512;
// Rows that are read side by side, block after block, while they are transposed: 1 KB of f32 in
// each row that is written, which is what memory is fast at.
constexpr int64_t kTransposedRows = 256;
// Elements of each row that one thread updates, row after row: 512 bytes of f32 at a time.
constexpr int64_t kUpdatedColumns = 128;

// Ops of a point from which on the next one waits for it: chains of functions are bound by latency,
// and a core looks a few hundred instructions ahead.
constexpr int64_t kLongChain = 16;
// Of all vectors side by side, where a point is long to compile (loop::kManyOps). Vectors of 512
// bits have masks, which spare a loop for what is left over.
using loop::kManyOps;
constexpr int64_t kMostOpsSideBySide = 900;
constexpr int64_t kMostOpsWithoutMasks = 450;
// Two vectors, or three of more ops than these, are as fast as eager however long the chain is.
constexpr int64_t kVeryManyOps = 440;

// Vectors side by side: where more of them hide latency, and else; of sums there are more where few
// values are carried.
constexpr int64_t kManyVectors = 4, kFewVectors = 2, kFewCarriedValues = 2;
// The same at least, of points that are long to compile, and of those with very many ops.
constexpr int64_t kLeastVectors = 2, kLeastVectorsOfVeryManyOps = 3;
// Points beside each other that share what they load, with 512-bit vectors and with shorter ones.
constexpr int64_t kPointsOfWideVectors = 8, kPointsOfVectors = 4;
constexpr int64_t kBitsOfWideVectors = 512;
// Parts of a second-level cache: a quarter for what a piece of a reduction reads of an array, a
// half for columns that several passes go over.
constexpr int64_t kCachePartOfPiece = 4, kCachePartOfColumns = 2;

// Vectors side by side in a loop along an axis, to hide the latency of sums that they carry or of
// what they compute.
int64_t choose_unroll(const NestFacts& facts, const Axis& axis, int64_t width,
                      const Machine& machine, const Hint& hint) {
  const bool may_be_many =
      axis.reduced ? facts.carried_values <= kFewCarriedValues : facts.ops_per_point > kLongChain;
  int64_t vectors = may_be_many ? kManyVectors : kFewVectors;
  if (facts.ops_per_point < kManyOps) return vectors;
  const int64_t most =
      machine.vector_bits >= kBitsOfWideVectors ? kMostOpsSideBySide : kMostOpsWithoutMasks;
  const int64_t least =
      facts.ops_per_point > kVeryManyOps ? kLeastVectorsOfVeryManyOps : kLeastVectors;
  const int64_t needed = (axis.extent.evaluate(hint) + width - 1) / width;
  vectors = std::min({vectors, std::max(least, most / facts.ops_per_point), needed});
  return std::max<int64_t>(1, vectors);
}

// Elements of the vector axis that one parallel iteration takes; 0 where the axis is no longer than
// that anyway.
int64_t chunk_of(const NestFacts& facts, int vector_axis, int64_t elements) {
  const auto extent = facts.axes[static_cast<size_t>(vector_axis)].extent.as_constant();
  return extent && *extent <= elements ? 0 : elements;
}

int64_t widest_element_read(const NestFacts& facts) {
  int64_t bytes = 1;
  for (const AccessPattern& access : facts.accesses)
    if (!access.is_store) bytes = std::max(bytes, access.element_bytes);
  return bytes;
}

// Parts of the reduced axes, where the kept ones give threads too little to share: `columns` kept
// elements are one iteration. What a part takes in of an array is no more than a quarter of a
// second-level cache, where a kernel that takes turns with this one may find it. Not by the number
// of threads: any gives the same parts.
int64_t choose_pieces(const NestFacts& facts, int64_t columns, const Machine& machine,
                      const Hint& hint) {
  if (!facts.can_be_cut) return 1;
  int64_t kept = 1, reduced = 1;
  for (const Axis& axis : facts.axes)
    (axis.reduced ? reduced : kept) *= std::max<int64_t>(1, axis.extent.evaluate(hint));
  const int64_t iterations = (kept + columns - 1) / columns;
  if (iterations >= kEnoughParallel) return 1;
  const int64_t points = reduced * std::min(kept, columns);
  const int64_t read = points * widest_element_read(facts);
  const int64_t wanted =
      std::max(kEnoughParallel / iterations, kCachePartOfPiece * read / machine.second_level_bytes);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, points / kPointsOfPiece));
}

// Columns of one iteration. Several passes had better find the rows in half of a second-level
// cache; if that is too small anyway, long pieces of rows are better, as long as threads have
// something to share.
int64_t choose_columns(const NestFacts& facts, const Machine& machine, const Hint& hint) {
  if (facts.can_be_cut) return kColumns;
  int64_t kept = 1, reduced = 1;
  for (const Axis& axis : facts.axes)
    (axis.reduced ? reduced : kept) *= std::max<int64_t>(1, axis.extent.evaluate(hint));
  int64_t columns = machine.second_level_bytes / kCachePartOfColumns / kBytesOfElement / reduced;
  if (columns < kFewestColumns) columns = kept / machine.threads;
  return std::clamp<int64_t>(columns / kFewestColumns * kFewestColumns, kFewestColumns, kColumns);
}

// Whether one array alone is more than a second-level cache holds.
bool comes_from_memory(const NestFacts& facts, const Machine& machine, const Hint& hint) {
  int64_t points = 1;
  for (const Axis& axis : facts.axes) points *= std::max<int64_t>(1, axis.extent.evaluate(hint));
  return points * facts.widest_bytes > machine.second_level_bytes;
}

// Points whose sums fit the registers beside what they share, and of which few are left over.
int64_t points_beside(const NestFacts& facts, const Axis& axis, const Machine& machine) {
  const int64_t most = std::min<int64_t>(
      machine.vector_bits >= kBitsOfWideVectors ? kPointsOfWideVectors : kPointsOfVectors,
      kMostOpsBeside / facts.ops_per_point);
  const auto extent = axis.extent.as_constant();
  if (!extent) return most;
  if (*extent <= most) return *extent;
  int64_t best = most;
  for (int64_t points = most; points * 2 >= most; --points)
    if (*extent % points < *extent % best) best = points;
  return best;
}

bool has_short_rows(const NestFacts& facts) {
  int64_t row = 1, axes = 0;
  for (const Axis& axis : facts.axes) {
    if (!axis.reduced) continue;
    row *= std::min(axis.extent.as_constant().value_or(kShortRow + 1), kShortRow + 1);
    ++axes;
  }
  return row <= (axes == 1 ? kShortColumn : kShortRow);
}

}  // namespace

std::string Schedule::str() const {
  if (tiles) return tiles->str();
  if (winograd) return winograd->str();
  if (attention) return attention->str();
  std::string axes;
  for (const int axis : order) axes += (axes.empty() ? " order=" : ",") + std::to_string(axis);
  return detail::join("vector_axis=", vector_axis, " width=", width, " unroll=", unroll,
                      " chunk=", chunk, " grain=", grain_points, axes,
                      rows > 0 ? " rows=" + std::to_string(rows) : "",
                      ahead > 0 ? " ahead=" + std::to_string(ahead) : "",
                      tile_axis >= 0 ? " tile_axis=" + std::to_string(tile_axis) : "",
                      block > 1 ? " block=" + std::to_string(block) : "",
                      pieces > 1 ? " pieces=" + std::to_string(pieces) : "",
                      group ? " group=" + std::to_string(group) : "");
}

Schedule choose(const NestFacts& facts, const Machine& machine, const Hint& hint) {
  if (machine.is_gpu) return choose_for_gpu(facts, machine, hint);
  Schedule schedule;
  schedule.grain_points =
      std::max<int64_t>(1, kGrainPoints / std::max<int64_t>(1, facts.ops_per_point / 2));
  const int64_t lane_bytes = facts.widest_bytes >= 8 ? 8 : 4;
  const int64_t natural = std::max<int64_t>(1, machine.vector_bits / 8 / lane_bytes);
  const bool any_reduced = std::any_of(facts.axes.begin(), facts.axes.end(),
                                       [](const Axis& axis) { return axis.reduced; });
  const bool may_transpose = !any_reduced && facts.order != ReducedOrder::kAround && natural > 1 &&
                             facts.ops_per_point <= kMostTransposedOps;
  for (const bool transposes : {true, false}) {
    if (transposes && !may_transpose) continue;
    schedule.vector_axis = best_vector_axis(facts, transposes, hint);
    if (may_transpose && schedule.vector_axis >= 0)
      schedule.tile_axis = exchanged_axis(facts, schedule.vector_axis, natural, hint);
    if (schedule.tile_axis >= 0) break;
  }
  if (facts.order == ReducedOrder::kFree)
    schedule.order = order_of_outer_axes(facts, schedule.vector_axis, hint);
  if (schedule.vector_axis < 0) return schedule;
  schedule.width = natural;
  const bool vector_is_reduced = facts.axes[schedule.vector_axis].reduced;
  schedule.unroll = choose_unroll(facts, facts.axes[schedule.vector_axis], natural, machine, hint);
  if (vector_is_reduced) {
    schedule.pieces = choose_pieces(facts, 1, machine, hint);
    return schedule;
  }
  if (facts.order == ReducedOrder::kAround) {
    schedule.chunk = chunk_of(facts, schedule.vector_axis, kUpdatedColumns);
    return schedule;
  }
  if (any_reduced && has_short_rows(facts)) {
    schedule.unroll = 1;
  } else if (any_reduced) {
    const int64_t columns = choose_columns(facts, machine, hint);
    schedule.rows = kRowsAtATime;
    schedule.ahead = comes_from_memory(facts, machine, hint) ? kRowsAhead : 0;
    if (facts.ops_per_point < kManyOps) schedule.unroll = 1;
    schedule.chunk = chunk_of(facts, schedule.vector_axis, columns);
    schedule.pieces = choose_pieces(facts, columns, machine, hint);
    return schedule;
  }
  if (schedule.tile_axis >= 0) {
    schedule.block = natural;
    schedule.unroll = 1;
    schedule.ahead = comes_from_memory(facts, machine, hint) ? 1 : 0;
    schedule.chunk = chunk_of(facts, schedule.vector_axis, kTransposedRows);
    return schedule;
  }
  if (!any_reduced && natural > 1 && 2 * facts.ops_per_point <= kMostOpsBeside) {
    schedule.tile_axis = shared_axis(facts, schedule.vector_axis);
    if (schedule.tile_axis >= 0) {
      schedule.block =
          points_beside(facts, facts.axes[static_cast<size_t>(schedule.tile_axis)], machine);
      schedule.unroll = 1;
      return schedule;
    }
  }
  int64_t outer = 1;
  for (size_t axis = 0; axis < facts.axes.size(); ++axis)
    if (static_cast<int>(axis) != schedule.vector_axis)
      outer *= std::max<int64_t>(1, facts.axes[axis].extent.evaluate(hint));
  if (outer < kEnoughParallel) schedule.chunk = chunk_of(facts, schedule.vector_axis, kChunk);
  return schedule;
}

}  // namespace mlcc::schedule
