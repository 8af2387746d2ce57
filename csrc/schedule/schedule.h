// What to do with a loop nest on a machine, as a small record that can be printed, stored, replayed
// and tuned.
//
// Lowering describes a nest by its axes and by how its memory accesses move along them (NestFacts);
// choose() decides the Schedule; lowering then builds the nest that the record asks for. Neither
// changes what is computed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/attention.h"
#include "schedule/contraction.h"
#include "schedule/machine.h"
#include "schedule/winograd.h"
#include "types/symbolic.h"

namespace mlcc::schedule {

struct Axis {
  std::string name;
  SymExpr extent;
  bool reduced = false;
};

// One load or store: the distance in elements between neighbours along each axis; nothing where it
// is not constant.
struct AccessPattern {
  std::vector<std::optional<SymExpr>> strides;
  int64_t element_bytes = 4;
  bool is_store = false;
};

// What the loops over the reduced axes are: free to be cut and reordered (reductions), in order
// inside the vector axis (scans), or in order around it (updates). Where they are in order the
// vector axis is a kept one, or that of a scan.
enum class ReducedOrder : uint8_t { kFree, kInside, kAround };

struct NestFacts {
  std::vector<Axis> axes;  // outermost first
  ReducedOrder order = ReducedOrder::kFree;
  std::vector<AccessPattern> accesses;
  int64_t ops_per_point = 1;   // simple ops (loop/cost.h)
  int64_t widest_bytes = 4;    // widest element type computed in
  bool draws = false;          // random numbers: each is a long chain of multiplications
  int64_t carried_values = 0;  // of the reductions
  bool can_be_cut = false;     // the reduced axes may be reduced in pieces
  bool can_scan = false;       // the last reduced axis may be the vector axis, as a scan
};

// Points of one op each that are worth a thread, to which handing work costs some microseconds.
constexpr int64_t kGrainPoints = 32768;

struct Schedule {
  int vector_axis = -1;  // index into axes; -1: scalar
  int64_t width = 1;     // lanes; on a GPU neighbours that a thread takes at a time
  int64_t unroll = 1;    // vectors per iteration; accumulators where the axis is reduced
  int64_t group = 0;     // GPU: threads that run one iteration of the parallel loop together
  int64_t chunk = 0;     // elements of the vector axis per parallel iteration; 0: all of it
  // Index into axes: loads that are contiguous along this axis are exchanged with the vector axis,
  // along which the rest is; -1: none. A GPU does so through a tile in shared memory, a CPU
  // transposes blocks of width x width elements in registers. Or, on a CPU: points that lie beside
  // each other along it share what they load.
  int tile_axis = -1;
  int64_t block = 1;       // CPU: elements of the tiled axis that are computed together
  std::vector<int> order;  // CPU: the other kept axes, outermost first; empty: as they are
  // CPU: rows of the reduced axes that are taken in at a time while loops over the vector axis run
  // inside those over rows; 0: they run around them.
  int64_t rows = 0;
  // CPU: rows of the reduced axes, or blocks of the tiled one, that memory is asked for before
  // their turn.
  int64_t ahead = 0;
  int64_t pieces = 1;        // parts of the reduced axes that are reduced apart, then combined
  int64_t grain_points = 1;  // least points of the domain that are worth a thread
  // Of a contraction, a transformed convolution, of attention, to which nothing else applies.
  std::optional<ContractionTiles> tiles;
  std::optional<WinogradTiles> winograd;
  std::optional<AttentionTiles> attention;
  std::string str() const;  // "vector=d1 width=16 unroll=4 chunk=0 grain=32768"
};

// `hint` gives a typical value for a size symbol.
Schedule choose(const NestFacts& facts, const Machine& machine,
                const std::function<int64_t(std::string_view)>& hint);

}  // namespace mlcc::schedule
