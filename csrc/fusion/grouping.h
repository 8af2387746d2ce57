// How groups grow: which of them a node tries to join, in program order, and what becomes of it if
// it joins none.
#pragma once

#include <unordered_map>
#include <vector>

#include "fusion/dependences.h"
#include "fusion/inlining.h"
#include "fusion/joining.h"
#include "fusion/long_rows.h"
#include "fusion/memory.h"
#include "fusion/planning.h"
#include "fusion/position.h"
#include "graph/graph.h"

namespace mlcc::fusion {

class Grouping {
 public:
  Grouping(Planning& planning, const Writes& writes, Inlining& inlining, Dependences& dependences)
      : planning_(planning), plan_(planning.plan), writes_(writes), inlining_(inlining),
        dependences_(dependences), long_rows_(planning, inlining),
        rules_(planning, inlining, dependences, long_rows_) {}

  // Puts the next node of the program into a group or a unit of its own, if it is not folded.
  void place(graph::Node* node);
  // Tells what each group reads and what of it others read, when all nodes are placed.
  void finish();

 private:
  // Of those that make what a node reads, and of others that read it.
  struct Candidates {
    std::vector<int> producers, siblings;
  };

  Candidates candidate_groups(const graph::Node& node) const;
  std::vector<int> products_beside(const graph::Node& node);
  std::vector<int> attends_beside(const graph::Node& norm) const;
  bool joins_any(graph::Node* node, const std::vector<int>& groups);
  bool is_part_of_online(const graph::Node& node, const std::vector<int>& groups) const;
  void begin_group(graph::Node* node);
  void add_to_group(graph::Node* node, int group_index, Join join);
  void finish_group(Group& group) const;

  Planning& planning_;
  FusionPlan& plan_;
  const Writes& writes_;
  Inlining& inlining_;
  Dependences& dependences_;
  const LongRows long_rows_;
  const JoinRules rules_;
  std::vector<int> last_tiles_;  // kernels of products that read the same rows one after another
  std::unordered_map<const graph::Value*, std::vector<int>> readers_;  // groups
};

}  // namespace mlcc::fusion
