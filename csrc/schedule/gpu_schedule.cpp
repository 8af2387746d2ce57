// Starting heuristics for GPUs, after those of nvFuser's schedulers: 16-byte accesses, enough bytes
// under way, a row for as many threads as keep it in registers.
#include <algorithm>
#include <bit>

#include "schedule/axis_choice.h"

namespace mlcc::schedule {
namespace {

constexpr int64_t kAccessBytes = 16;      // of the narrowest stream that a thread reads
constexpr int64_t kMostAccessBytes = 32;  // of the widest one
constexpr int64_t kMostWidth = 8;
constexpr int64_t kWarp = 32;
// Of a block that handles a piece of a long axis.
constexpr int64_t kChunkThreads = 256;
constexpr int64_t kFewestChunkThreads = 64;
// Rounds of a thread over a row: that many 16-byte loads are under way, and stay in registers.
constexpr int64_t kRounds = 4;
constexpr int64_t kMostChunkRounds = 4;
// Blocks of each multiprocessor below which a smaller block spreads the work better.
constexpr int64_t kBlocksPerMultiprocessor = 2;
// Of a multiprocessor's threads, the part that rows should keep busy: a quarter.
constexpr int64_t kBusyPart = 4;

// Axes shorter than half a tile are not worth exchanging.
constexpr int64_t kShortestTiled = 16;
// Rows that a piece of a reduction over columns has at least.
constexpr int64_t kRowsOfPiece = 32;

int64_t busy_threads(const Machine& machine) {
  return machine.threads_per_multiprocessor / kBusyPart;
}

int64_t power_of_two_from(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, value))));
}

bool is_unit(const AccessPattern& access, int axis) {
  const auto& stride = access.strides[static_cast<size_t>(axis)];
  return stride && stride->equals_constant(1);
}

// Neighbours that a thread takes: 16 bytes of the narrowest stream, at most 32 of the widest.
int64_t choose_width(const NestFacts& facts, int axis) {
  int64_t narrowest = kAccessBytes, widest = 1;
  for (const AccessPattern& access : facts.accesses) {
    if (!is_unit(access, axis)) continue;
    narrowest = std::min(narrowest, access.element_bytes);
    widest = std::max(widest, access.element_bytes);
  }
  return std::clamp<int64_t>(std::min(kAccessBytes / narrowest, kMostAccessBytes / widest), 1,
                             kMostWidth);
}

// Bytes that one round of a thread loads along the axis.
int64_t loaded_bytes(const NestFacts& facts, int axis, int64_t width) {
  int64_t bytes = 0;
  for (const AccessPattern& access : facts.accesses)
    if (!access.is_store && is_unit(access, axis)) bytes += width * access.element_bytes;
  return std::max<int64_t>(bytes, 1);
}

// A long axis without reductions: blocks take chunks of it, small enough that all multiprocessors
// get some.
void choose_chunk(Schedule& schedule, const NestFacts& facts, const Machine& machine,
                  int64_t points) {
  const int64_t loaded = loaded_bytes(facts, schedule.vector_axis, schedule.width);
  schedule.unroll = std::clamp<int64_t>(
      (machine.bytes_in_flight_per_thread() + loaded - 1) / loaded, 1, kMostChunkRounds);
  schedule.group = kChunkThreads;
  const auto blocks = [&] { return points / (schedule.group * schedule.width * schedule.unroll); };
  const int64_t wanted = machine.multiprocessors * kBlocksPerMultiprocessor;
  while (schedule.unroll > 1 && blocks() < wanted) --schedule.unroll;
  while (schedule.group > kFewestChunkThreads && blocks() < wanted) schedule.group /= 2;
  schedule.chunk = schedule.group * schedule.width * schedule.unroll;
}

// Threads for a row of `length` elements, of which there are `rows`.
int64_t choose_row_group(int64_t length, int64_t rows, int64_t width, const Machine& machine) {
  int64_t group = power_of_two_from((length + width * kRounds - 1) / (width * kRounds));
  const int64_t enough = machine.multiprocessors * busy_threads(machine);
  while (group * width < length && rows * group < enough) group *= 2;
  // A warp exchanges without barriers: up to twice the rounds are worth it.
  if (group == 2 * kWarp && rows * kWarp >= enough) group = kWarp;
  return std::min(group, machine.threads_per_block);
}

// Parts of a reduction, at most `most`, so that `threads` for each keep the machine busy.
int64_t choose_pieces(const Machine& machine, int64_t threads, int64_t most, int64_t bytes) {
  const int64_t wanted = machine.multiprocessors * busy_threads(machine);
  // What one phase takes with the multiprocessors that `threads` keep busy must be worth a launch.
  const int64_t busy =
      std::clamp<int64_t>(threads / busy_threads(machine), 1, machine.multiprocessors);
  const int64_t ns = bytes * machine.multiprocessors / (machine.memory_gb_per_s * busy);
  if (ns < machine.launch_ns) return 1;
  const int64_t pieces = wanted / std::max<int64_t>(1, threads);
  return pieces < 2 || most < 2 ? 1 : std::min(pieces, most);
}

}  // namespace

Schedule choose_for_gpu(const NestFacts& facts, const Machine& machine, const Hint& hint) {
  Schedule schedule;
  schedule.group = 1;
  schedule.vector_axis = best_vector_axis(facts, false, hint);
  if (schedule.vector_axis < 0) return schedule;
  const auto axis = static_cast<size_t>(schedule.vector_axis);
  int64_t rows = 1, points = 1;
  bool any_reduced = false;
  for (size_t i = 0; i < facts.axes.size(); ++i) {
    const int64_t extent = std::max<int64_t>(1, facts.axes[i].extent.evaluate(hint));
    points *= extent;
    any_reduced |= facts.axes[i].reduced;
    if (i != axis && !facts.axes[i].reduced) rows *= extent;
  }
  const int64_t length = std::max<int64_t>(1, facts.axes[axis].extent.evaluate(hint));
  schedule.width = choose_width(facts, schedule.vector_axis);
  const int64_t reduced = points / (rows * (facts.axes[axis].reduced ? 1 : length));
  if (facts.axes[axis].reduced) {
    schedule.group = choose_row_group(length, rows, schedule.width, machine);
    // A whole block's threads have few registers each, and enough loads under way with fewer
    // rounds.
    schedule.unroll = schedule.group < machine.threads_per_block ? kRounds : kRounds / 2;
    const int64_t per_piece = kChunkThreads * schedule.width * kRounds;
    if (facts.can_be_cut)
      schedule.pieces = choose_pieces(machine, rows * kChunkThreads, reduced / per_piece,
                                      points * facts.widest_bytes);
    if (schedule.pieces > 1) schedule.group = kChunkThreads;
    return schedule;
  }
  if (any_reduced) {  // each thread reduces its columns
    if (facts.can_be_cut)
      schedule.pieces = choose_pieces(machine, rows * length / schedule.width,
                                      reduced / kRowsOfPiece, points * facts.widest_bytes);
    schedule.group =
        std::min(kWarp, power_of_two_from((length + schedule.width - 1) / schedule.width));
    schedule.chunk = schedule.group * schedule.width;
    return schedule;
  }
  schedule.tile_axis = exchanged_axis(facts, schedule.vector_axis, kShortestTiled, hint);
  if (schedule.tile_axis >= 0) {
    schedule.width = 1;
    schedule.group = kChunkThreads;
    return schedule;
  }
  if (length > kWarp * schedule.width * kRounds) {
    choose_chunk(schedule, facts, machine, points);
  } else {
    schedule.group = choose_row_group(length, rows, schedule.width, machine);
  }
  return schedule;
}

}  // namespace mlcc::schedule
