// Units of a fusion plan while it is made, and which of them come before which.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "fusion/order.h"
#include "graph/graph.h"

namespace mlcc::fusion {

// A kernel or a call under construction.
struct UnitState {
  int group = -1;
  const graph::Node* node = nullptr;
  std::set<int> reads;      // units it depends on
  int first = 0, last = 0;  // program order of its first and last node
  int64_t ops = 0;          // of a kernel: simple ops that it takes for an element
  // Program order of the last call that waits for other processes among those it depends on; -1:
  // none. What else it depends on may be computed meanwhile.
  int waits_for = -1;
};

// Whether unit `from` needs unit `target`, directly or not.
bool depends_on(const std::vector<UnitState>& units, int from, int target);

// The order of calls with effects, which come one after the other. They keep it, but for work of a
// group of processes: that begins in one order in all processes, may go on beside draws of random
// numbers and work that begins later, and has been waited for before the next call with other
// effects, which may write what it reads.
class CallOrder {
 public:
  // The units that the next one, a call with these facts, comes after.
  std::set<int> add(int unit, const graph::ExternFacts& facts);

 private:
  int last_effect_ = -1;
  int last_act_ = -1;            // of effects that are more than draws
  int last_begun_ = -1;          // of work of a group
  std::vector<int> of_group_{};  // since last_act_
};

// When a call with these facts is to run.
Turn turn_of(const graph::ExternFacts& facts);

}  // namespace mlcc::fusion
