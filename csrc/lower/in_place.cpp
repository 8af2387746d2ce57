#include "lower/in_place.h"

#include <algorithm>
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

}  // namespace

bool is_safe_in_place(const fusion::Group& group, const LoweredKernel& lowered) {
  const graph::OpClass op_class = graph::op_info(group.nodes.front()->op()).op_class;
  if (!lowered.kernel.errors.empty() && op_class != graph::OpClass::kUpdate) return false;
  for (const loop::Buffer* buffer : lowered.kernel.buffers) {
    if (buffer->access != loop::Access::kInOut) continue;
    for (const Block& phase : lowered.kernel.phases)
      if (!is_safe(phase, *buffer)) return false;
  }
  return true;
}

}  // namespace mlcc::lower
