// Which values lie in memory whatever their readers are, and which memory calls write into between
// two places of the program.
#pragma once

#include <unordered_map>
#include <vector>

#include "fusion/planning.h"
#include "graph/graph.h"

namespace mlcc::fusion {

// Memory that extern calls write into.
class Writes {
 public:
  explicit Writes(const Planning& planning);

  bool are_none() const { return writes_.empty(); }
  // Whether a call writes into the memory of this value.
  bool go_to(const graph::Value* value) const { return writes_.contains(value); }
  // Whether what `node` would read from memory is written between its place and that of a reader.
  bool change_before(const graph::Node& node, const std::vector<const graph::Node*>& readers) const;
  // Whether anything is written between two nodes.
  bool are_between(const graph::Node& node, const graph::Node& reader) const;

 private:
  bool is_written_between(const graph::Value* value, int begin, int end) const;

  const Planning& planning_;
  std::unordered_map<const graph::Value*, std::vector<int>> writes_;  // program orders, by base
};

// Marks the values that must lie in memory: outputs, operands of calls and contractions, rows of
// attention and what is indexed. Where a free node makes such a value it is copied, as are views
// that are read after their memory was written, and numbers that another device reads.
void find_values_in_memory(Planning& planning, const Writes& writes);

}  // namespace mlcc::fusion
