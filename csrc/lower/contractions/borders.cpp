#include "lower/contractions/borders.h"

#include <algorithm>
#include <vector>

#include "graph/index_map.h"

namespace mlcc::lower {

using graph::Node;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using Index = std::vector<SymExpr>;

namespace {

// Indices of a value, along each dimension.
struct Range {
  SymExpr begin, end;
};
using Region = std::vector<Range>;

size_t dim_of(const Node& pad) { return static_cast<size_t>(pad.attr<int64_t>("dim")); }

class BorderLowering {
 public:
  BorderLowering(const Context& context, Evaluator& evaluator, TileNest& nest, const Node& padded)
      : context_(context), evaluator_(evaluator), nest_(nest), value_(padded.result()) {
    const Node* pad = &padded;
    do {
      pads_.push_back(pad);
      pad = pad->operand(0)->producer();
    } while (pad->op() == graph::Op::kPad && !context.group.placements.contains(pad));
  }

  // Iterations go over the images of a batch.
  void lower() {
    const Index& shape = value_->type().shape;
    const bool is_batch =
        std::none_of(pads_.begin(), pads_.end(), [](const Node* pad) { return dim_of(*pad) == 0; });
    const SymExpr images = is_batch ? shape[0] : SymExpr(1);
    const SymExpr inner = product(pads_.back()->operand(0)->type().shape);
    const SymExpr elements =
        SymExpr::floordiv(product(shape) - inner, SymExpr::max(images, SymExpr(1)));
    nest_.add_range(images, elements, schedule::kGrainPoints,
                    [&](const SymExpr& image, Block& block) {
                      Region region;
                      for (const SymExpr& extent : shape) region.push_back({0, extent});
                      if (is_batch) region[0] = {image, image + 1};
                      for (const Node* pad : pads_) fill(*pad, region, block);
                    });
  }

 private:
  // What a pad adds to the region, which becomes what it was before.
  void fill(const Node& pad, Region& region, Block& block) {
    const size_t dim = dim_of(pad);
    const SymExpr begin = region[dim].begin + pad.attr<int64_t>("before");
    const Range inner = {begin, begin + pad.operand(0)->type().shape[dim]};
    Index at;
    append(block, around(pad, inner, region, at));
    region[dim] = inner;
  }

  // Loops over the region from dimension `at.size()` on, but for what lies within.
  Block around(const Node& pad, const Range& inner, const Region& region, Index& at) {
    const size_t dim = at.size();
    const bool is_last = dim + 1 == region.size(), is_padded = dim == dim_of(pad);
    const SymExpr length = inner.end - inner.begin;
    const SymExpr end = is_padded ? region[dim].end - length : region[dim].end;
    const loop::LoopMode mode = is_last && !is_padded ? vectors() : loop::LoopMode();
    return nest_.loop_over("i", region[dim].begin, end, mode, [&](SymExpr i, Block& block) {
      if (is_padded) {
        const Expr is_before = nest_.apply(ScalarOp::kLt, {nest_.expr(i), nest_.expr(inner.begin)});
        i = nest_.select(is_before, i, i + length, "at", block);
      }
      at.push_back(i);
      if (is_last)
        store(pad, at, block);
      else
        append(block, around(pad, inner, region, at));
      at.pop_back();
    });
  }

  loop::LoopMode vectors() const {
    const int64_t width = context_.machine.vector_bits / 8 / dtype_size(value_->type().dtype);
    return width > 1 ? loop::LoopMode{loop::LoopKind::kVector, width, 1, 1} : loop::LoopMode();
  }

  void store(const Node& pad, const Index& index, Block& block) {
    const SymExpr offset = graph::linearize(index, value_->type().dense_or_strides());
    const loop::Buffer* buffer = evaluator_.buffers().buffer_of(value_, loop::Access::kOut);
    block.push_back(
        loop::Store::make(context_.arena, buffer, {nest_.expr(offset)}, evaluator_.number(pad)));
  }

  const Context& context_;
  Evaluator& evaluator_;
  TileNest& nest_;
  graph::Value* value_;
  std::vector<const Node*> pads_;  // that it is made by, the last one first
};

}  // namespace

void fill_borders(const Context& context, Evaluator& evaluator, TileNest& nest) {
  for (const Node* node : context.group.nodes)
    if (context.group.placements.at(node).has_border)
      BorderLowering(context, evaluator, nest, *node).lower();
}

}  // namespace mlcc::lower
