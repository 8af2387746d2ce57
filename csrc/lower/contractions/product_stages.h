// The products of a group that are computed one after the other, and which of the group's other
// nodes, its epilogue, can be computed behind which of them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "lower/axes/recording.h"
#include "lower/context.h"
#include "lower/element/evaluator.h"
#include "lower/group_nodes.h"

namespace mlcc::lower {

// Each product's stage ends with what needs its sums, and none of later ones.
struct Stages {
  size_t first, last;
};

class ProductStages {
 public:
  explicit ProductStages(const Context& context);

  // The contractions of the group, which differ in the right operand alone.
  const std::vector<const graph::Node*>& products() const { return products_; }
  const graph::Node& first() const { return *products_.front(); }
  int64_t count() const { return static_cast<int64_t>(products_.size()); }
  DType accumulator() const { return accumulator_; }
  // Products whose sums the epilogue of a later one is computed with.
  const std::vector<size_t>& kept() const { return kept_; }

  Stages all() const { return {0, products_.size() - 1}; }
  // The nodes of these stages, and those of earlier ones that they are computed from.
  std::set<const graph::Node*> nodes_of(const Stages& stages) const;  // membership only
  bool have_outputs(const Stages& stages) const;

  // Nodes of the group at the current point, where the contractions' results are `sums`.
  void emit_element(Evaluator& evaluator, const std::vector<loop::Expr>& sums, const Stages& stages,
                    loop::Block& block) const;

  // The epilogue of all stages, evaluated once at the axes; `ops` of an element.
  struct Recorded {
    Recording accesses;
    int64_t ops = 0;
  };
  Recorded record() const;

 private:
  struct Stage {
    std::set<const graph::Value*> behind;  // results of contractions that the node is computed from
    size_t last = 0;                       // number of the last one of them
  };
  void find_stages();
  void find_kept();

  const Context& context_;
  const std::vector<const graph::Node*> products_;
  const GroupNodes nodes_;
  const DType accumulator_;
  std::map<const graph::Node*, Stage> stages_;  // looked up only
  std::vector<size_t> kept_;
};

}  // namespace mlcc::lower
