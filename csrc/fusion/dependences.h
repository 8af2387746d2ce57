// Which units of a plan come before which: for the values they read, for the memory that calls
// write into, and for sizes that only a call tells.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "fusion/planning.h"
#include "fusion/units.h"
#include "graph/graph.h"
#include "graph/index_map.h"

namespace mlcc::fusion {

class Dependences {
 public:
  explicit Dependences(const Planning& planning) : planning_(planning) { find_input_symbols(); }

  const std::vector<UnitState>& units() const { return units_; }
  // Of the kernel of a group.
  int unit_of_group(int group) const { return group_units_[static_cast<size_t>(group)]; }
  // That makes the value; -1: none.
  int unit_of(const graph::Value* value) const;
  // The last call so far that writes into the value's memory; -1: none.
  int last_writer_of(const graph::Value* value) const;
  // The units whose sizes a node mentions, or what is folded into it does.
  std::set<int> definers_of(const graph::Node& node) const;
  // Whether unit `from` needs unit `target`, directly or not.
  bool depends_on(int from, int target) const { return fusion::depends_on(units_, from, target); }

  // The kernel of the next group, which begins with this node.
  void add_kernel(const graph::Node& first);
  // One more node of a kernel, which reads `leaves` and makes it compute so many ops an element.
  void add_node(int unit, const graph::Node& node, const std::vector<graph::Access>& leaves,
                int64_t ops);
  // A call. Calls keep data dependences; those with effects also their order, and writes come after
  // earlier reads.
  void add_call(const graph::Node& node);

 private:
  void find_input_symbols();
  int new_unit(const graph::Node* node, int group);
  void add_read(int unit, const graph::Value* value);
  void add_definitions(int unit, const graph::Node& node);
  void collect_definers(const graph::Node& node, std::set<const graph::Node*>& seen,
                        std::set<int>& units) const;

  const Planning& planning_;
  std::vector<UnitState> units_;
  std::vector<int> group_units_;
  std::unordered_map<const graph::Node*, int> unit_of_node_;
  std::unordered_map<const graph::Value*, int> last_writer_;
  std::unordered_map<const graph::Value*, std::set<int>> readers_since_write_;
  std::set<std::string> input_symbols_;
  std::unordered_map<std::string, int> definers_;  // of sizes that no input tells: units
  CallOrder call_order_;
};

}  // namespace mlcc::fusion
