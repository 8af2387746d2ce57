#include "lower/contractions/product_stages.h"

#include <algorithm>
#include <utility>

#include "graph/contraction.h"
#include "loop/cost.h"
#include "lower/kernel_buffers.h"

namespace mlcc::lower {

using graph::Node;
using graph::Value;
using loop::Block;
using loop::Expr;
using loop::Variable;
using Index = std::vector<SymExpr>;

namespace {

std::vector<const Node*> products_of(const fusion::Group& group) {
  std::vector<const Node*> products;
  for (const Node* node : group.nodes)
    if (fusion::is_contraction(*node)) products.push_back(node);
  return products;
}

DType accumulator_of(const Node& product) {
  if (product.op() == graph::Op::kContractGroups) return product.result()->type().dtype;
  return *graph::accumulator_dtype(product.operand(0)->type().dtype,
                                   product.operand(1)->type().dtype);
}

}  // namespace

ProductStages::ProductStages(const Context& context)
    : context_(context), products_(products_of(context.group)), nodes_(context.plan, context.group),
      accumulator_(accumulator_of(*context.group.nodes.front())) {
  find_stages();
  find_kept();
}

void ProductStages::find_stages() {
  for (const Node* node : context_.group.nodes) {
    Stage stage;
    if (fusion::is_contraction(*node)) stage.behind.insert(node->result());
    for (const Value* source : nodes_.sources_of(*node)) {
      const Stage& of_source = stages_.at(source->producer());
      stage.behind.insert(of_source.behind.begin(), of_source.behind.end());
    }
    for (size_t i = 0; i < products_.size(); ++i)
      if (stage.behind.contains(products_[i]->result())) stage.last = i;
    stages_[node] = std::move(stage);
  }
}

void ProductStages::find_kept() {
  for (size_t i = 0; i < products_.size(); ++i)
    if (std::any_of(stages_.begin(), stages_.end(), [&](const auto& entry) {
          return entry.second.last > i && entry.second.behind.contains(products_[i]->result());
        }))
      kept_.push_back(i);
}

std::set<const Node*> ProductStages::nodes_of(const Stages& stages) const {
  std::set<const Node*> needed;
  const std::vector<Node*>& nodes = context_.group.nodes;
  for (auto place = nodes.rbegin(); place != nodes.rend(); ++place) {
    const Node* node = *place;
    const size_t stage = stages_.at(node).last;
    if (stage >= stages.first && stage <= stages.last) needed.insert(node);
    if (!needed.contains(node)) continue;
    for (const Value* source : nodes_.sources_of(*node)) needed.insert(source->producer());
  }
  return needed;
}

bool ProductStages::have_outputs(const Stages& stages) const {
  const std::vector<Value*>& outputs = context_.group.outputs;
  return std::any_of(outputs.begin(), outputs.end(), [&](const Value* output) {
    const size_t stage = stages_.at(output->producer()).last;
    return stage >= stages.first && stage <= stages.last;
  });
}

void ProductStages::emit_element(Evaluator& evaluator, const std::vector<Expr>& sums,
                                 const Stages& stages, Block& block) const {
  evaluator.push(&block);
  const std::set<const Node*> needed = nodes_of(stages);
  size_t product = 0;
  for (const Node* node : context_.group.nodes) {
    const Expr sum = fusion::is_contraction(*node) ? sums[product++] : nullptr;
    if (!needed.contains(node)) continue;
    const Index& position = nodes_.position(*node);
    const Expr element = sum != nullptr ? sum : evaluator.evaluate_node(*node, position);
    evaluator.define_row(node->result(), element);
    if (nodes_.is_output(node->result()) && stages_.at(node).last >= stages.first)
      evaluator.store(node->result(), position, element);
  }
  evaluator.pop();
}

ProductStages::Recorded ProductStages::record() const {
  std::vector<Expr> sums;
  for (const Node* product : products_)
    sums.push_back(Variable::make(context_.arena, product->result()->type().dtype,
                                  context_.arena.fresh_name("sum")));
  Recorded recorded;
  const auto emit = [&](Evaluator& recorder, Block& block) {
    emit_element(recorder, sums, all(), block);
    recorded.ops = loop::ops_of(block);
  };
  recorded.accesses = lower::record(context_, context_.group.domain, emit);
  return recorded;
}

}  // namespace mlcc::lower
