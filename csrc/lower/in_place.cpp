#include "lower/in_place.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "loop/mutator.h"

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::Stmt;

namespace {

bool stores_to(Stmt stmt, const loop::Buffer& buffer, const std::vector<Expr>& indices) {
  if (const auto* store = loop::as<loop::Store>(stmt))
    return store->buffer == &buffer && store->indices == indices;
  if (const auto* atomic = loop::as<loop::Atomic>(stmt))
    return atomic->buffer == &buffer && atomic->indices == indices;
  return false;
}

bool is_safe(const Block& block, const loop::Buffer& buffer) {
  for (size_t i = 0; i < block.size(); ++i) {
    bool found_all = true;
    loop::for_each_expr(loop::operands(block[i]), [&](Expr e) {
      const auto* load = loop::as<loop::Load>(e);
      if (load == nullptr || load->buffer != &buffer) return;
      found_all &= std::any_of(block.begin() + static_cast<ptrdiff_t>(i), block.end(),
                               [&](Stmt s) { return stores_to(s, buffer, load->indices); });
    });
    if (!found_all) return false;
    for (const Block* inner : loop::blocks(block[i]))
      if (!is_safe(*inner, buffer)) return false;
  }
  return true;
}

// Whether the kernel of a group computes a value from `memory`.
bool is_computed_from(const graph::Value* value, const graph::Value* memory,
                      const fusion::Group& group, std::unordered_set<const graph::Value*>& seen) {
  if (value == memory) return true;
  const auto& inputs = group.inputs;
  const bool is_read = std::find(inputs.begin(), inputs.end(), value) != inputs.end();
  if (is_read || value->producer() == nullptr || !seen.insert(value).second) return false;
  const auto operands = value->producer()->operands();
  return std::any_of(operands.begin(), operands.end(), [&](const graph::Value* operand) {
    return is_computed_from(operand, memory, group, seen);
  });
}

// Whether an update stores a base over memory that its source or its indices are read from later.
bool overwrites_source(const fusion::Group& group) {
  const graph::Node& update = *group.nodes.front();
  const auto memory = group.in_place.find(update.result());
  if (memory == group.in_place.end() || memory->second == update.operand(0)) return false;
  std::unordered_set<const graph::Value*> seen;
  for (size_t i = 1; i < update.operands().size(); ++i)
    if (is_computed_from(update.operand(i), memory->second, group, seen)) return true;
  return false;
}

}  // namespace

bool is_safe_in_place(const fusion::Group& group, const LoweredKernel& lowered) {
  const graph::OpClass op_class = graph::op_info(group.nodes.front()->op()).op_class;
  if (op_class == graph::OpClass::kContraction || op_class == graph::OpClass::kAttention)
    return false;  // tiles overlap
  if (!lowered.kernel.errors.empty() && op_class != graph::OpClass::kUpdate) return false;
  if (op_class == graph::OpClass::kUpdate && overwrites_source(group)) return false;
  for (const loop::Buffer* buffer : lowered.kernel.buffers) {
    if (buffer->access != loop::Access::kInOut) continue;
    for (const Block& phase : lowered.kernel.phases)
      if (!is_safe(phase, *buffer)) return false;
  }
  return true;
}

}  // namespace mlcc::lower
