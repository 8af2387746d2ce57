// Which nodes share a kernel.
//
// Every node is one of:
//   extern     called as it is
//   free       an index map or a constant: folded into whoever reads it
//   inlined    pointwise, evaluated by its reader: it has one reader, costs next to nothing, or
//              costs less than writing and reading it would (recompute.h)
//   grouped    belongs to exactly one group; a group becomes one kernel
//
// A group runs on one device. What it reads lies there, or is a single element on the CPU.
//
// A group iterates over one domain, a shape whose dimensions are axes "d0", "d1", ...; some axes
// may be reduced. Each node has a position: the index of its result that belongs to a point of the
// domain. Nodes of a group meet only at equal positions, so a kernel is a single pass over the
// domain per level of reductions (softmax: three levels).
//
// A contraction begins a group, over its result's dimensions and its reduced axes. Its operands lie
// in memory; what joins it is computed from the tiles of its result. Others that multiply the same
// rows may join it, whose tiles stand beside its own (products.h). So does attention begin a group,
// and the contraction that its scores are computed from is inlined.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fusion/order.h"
#include "graph/contraction.h"
#include "graph/graph.h"
#include "graph/index_map.h"

namespace mlcc::fusion {

struct Placement {
  std::vector<SymExpr>
      position;  // index of the result (of a reduction: of its result) over the domain's axes
  bool per_row = false;  // varies only over the axes that are not reduced
  // Of a pad: its operand is computed where it stands in the result, around which the kernel writes
  // a border besides.
  bool has_border = false;
};

// What makes up for a row value that a reduction's terms were computed with before it was final,
// see online.h: factors, or one kSpread alone.
enum class RepairKind : uint8_t { kScale, kSpread, kQuotient, kReciprocal };
// Whether terms have a factor 1 / s.
constexpr bool is_division(RepairKind kind) {
  return kind == RepairKind::kQuotient || kind == RepairKind::kReciprocal;
}
struct RepairStep {
  RepairKind kind;
  graph::Access row;             // the row value, where the terms read it
  const graph::Node* reduction;  // of the group, that it is made from
  graph::Access difference;      // kSpread: e - s, where the terms read it
  bool is_finite = false;        // kScale: 0 stands in the place of an infinite row value
};
using Repair = std::vector<RepairStep>;

struct Group {
  Device device;                    // where its results lie and its kernel runs
  std::vector<SymExpr> domain;      // extent of axis d<i>
  std::vector<bool> reduced;        // per axis
  std::vector<graph::Node*> nodes;  // program order
  std::unordered_map<const graph::Node*, Placement> placements;
  // Of reductions that may be taken in the pass that finds the row values they depend on.
  std::unordered_map<const graph::Node*, Repair> repairs;
  std::vector<graph::Value*>
      inputs;  // materialized values that the kernel reads, in order of first use
  std::vector<graph::Value*> outputs;  // values that others read, in program order
  // Outputs that take the memory of an input of the graph, see in_place.h.
  std::unordered_map<const graph::Value*, graph::Value*> in_place;
  SymExpr ideal_bytes;  // inputs once, outputs once

  bool has_reduction() const;
};

using graph::axis_name;  // "d0", ...
// A position in a domain of that many axes: each axis itself.
std::vector<SymExpr> axis_symbols(size_t rank);

// What a size is taken to be where profit, never legality, depends on it.
using SizeHint = std::function<int64_t(std::string_view)>;

// What rows (the reduced axes at one point of the others) cost a kernel that passes over them
// again.
struct RowLimits {
  // A row of so many bytes stays close between the passes of a kernel, however it lies.
  int64_t bytes = 64 * 1024;
  // The same of a row along the last axis, which a second-level cache or a whole block holds.
  int64_t block_bytes = 256 * 1024;
  // Rows along the last axis that keep the machine busy, if there are so many: longer ones are then
  // read again in each pass, which moves fewer bytes than writing what the passes share. Fewer rows
  // are cut into pieces instead, each pass in a kernel of its own.
  int64_t enough_rows = 16;
};

struct FusionOptions {
  // false: every node is a kernel of its own. What the reference interpreter runs.
  bool fuse = true;
  // Above this many nodes a group takes no more: bounds the compile time of one kernel.
  int64_t max_nodes = 48;
  // The same for the simple ops that all its nodes and those inlined into them take for an element,
  // since LLVM cannot be stopped (decision 0003).
  int64_t max_ops = 4096;
  // Of the machine behind a device; none: those of a CPU.
  std::function<RowLimits(const Device&)> row_limits;
  // Products of the same rows that a kernel computes, at most.
  int64_t max_products = 3;
  // About how many simple ops a pointwise node takes for an element; none: one each, and no value
  // is computed again to save memory traffic.
  std::function<int64_t(const graph::Node&)> ops_of;
  // Whether sums may be taken in the pass that finds the row values they depend on (online.h), and
  // values computed again to save memory traffic (recompute.h).
  bool online = true;
  bool recompute = true;
  // Kernels of the CPU that may run at the same time; none by default.
  WaveLimits waves;
};

// What the executable runs in one place: a group's kernel, or an extern node.
struct Unit {
  int group = -1;                     // index into FusionPlan::groups, or -1
  const graph::Node* node = nullptr;  // the extern node where group is -1
  bool beside = false;                // may run at the same time as the unit before it
  bool in_turns = false;              // that unit and this one walk over the same memory (order.h)
};

struct FusionPlan {
  std::vector<Group> groups;
  std::vector<Unit> order;  // an order that keeps data dependences and effects
  std::unordered_set<const graph::Node*> inlined;
  // Values that a kernel must write although their producer is free (an output of the graph, an
  // operand of an extern call that is no strided view of another value). They stand in groups as
  // nodes of their own.
  std::unordered_set<const graph::Node*> copied;
  std::unordered_map<const graph::Node*, int> group_of;  // grouped nodes
  // Of the graph's inputs that nodes read, packs of weights included, each as a whole; as expected.
  int64_t input_bytes = 0;
  // Values that lie in memory whoever reads them: outputs of the graph, operands of calls.
  std::unordered_set<const graph::Value*> required;
  // Calls that the group of this index makes needless, see in_place.h.
  std::unordered_map<const graph::Node*, int> replaced;
  std::vector<std::string> reasons;  // why nodes did not join a group, for the log
  // Values are computed again although that saves little of the memory traffic.
  bool saves_little = false;
};

FusionPlan plan_fusion(const graph::Graph& graph, const FusionOptions& options);

bool is_reduction(const graph::Node& node);
bool is_contraction(const graph::Node& node);

// Whether a kernel that computes the node checks places that it takes from memory.
bool may_fail(const graph::Node& node);
bool may_fail(const Group& group);  // of one of its nodes

// Whether readers compute the node's result for themselves.
bool is_folded(const FusionPlan& plan, const graph::Node& node);

// Creation ops and single index maps: they cost nothing and are folded into their readers.
bool is_free(const graph::Node& node);

}  // namespace mlcc::fusion
