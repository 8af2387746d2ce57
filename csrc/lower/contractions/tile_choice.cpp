#include "lower/contractions/tile_choice.h"

#include <algorithm>
#include <vector>

#include "graph/contraction.h"

namespace mlcc::lower {

using graph::Node;
using graph::Value;

namespace {

// See ContractionFacts.
int64_t written_bytes(const ContractionNest& nest) {
  const TileRoles& roles = nest.roles();
  if (!roles.columns().extent.is_constant() || !extent_of(roles.depth()).is_constant()) return 0;
  const auto bytes = [](const Value* output) { return dtype_size(output->type().dtype); };
  const std::vector<Value*>& outputs = nest.context().group.outputs;
  const int64_t first = bytes(outputs.front());
  const bool are_alike = std::all_of(outputs.begin(), outputs.end(),
                                     [&](const Value* each) { return bytes(each) == first; });
  return are_alike ? first : 0;
}

// Whether the result is an image, with rows and columns of pixels that are multiplied alike.
bool has_pixels(const Node& product, const TileRoles& roles) {
  const auto& shape = product.result()->type().shape;
  const std::vector<bool> own = graph::axes_of_operand(product, roles.vector());
  int64_t dims = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (!own[axis] && !shape[axis].equals_constant(1)) ++dims;
  return shape.size() > 3 && dims > 1;
}

}  // namespace

bool is_in_tile_registers(const Context& context, const ProductStages& stages,
                          const TileRoles& roles) {
  const DType lhs = stages.first().operand(0)->type().dtype;
  const DType rhs = stages.first().operand(1)->type().dtype;
  const auto& depth = roles.depth();
  return schedule::is_in_tile_registers(context.machine, lhs, rhs) && roles.is_packed() &&
         !roles.has_groups() && depth.size() >= 2 &&
         depth.back()->extent.equals_constant(schedule::dot_terms(context.machine, lhs, rhs));
}

schedule::ContractionTiles choose_tiles(const ContractionNest& nest) {
  const Context& context = nest.context();
  const TileRoles& roles = nest.roles();
  const auto expected = [&](const SymExpr& size) {
    return std::max<int64_t>(1, context.expected(size));
  };
  schedule::ContractionFacts facts;
  const SymExpr rows = nest.rows_of_image();
  facts.expected_rows = expected(rows);
  facts.rows = rows.is_constant() ? facts.expected_rows : 0;
  facts.columns = expected(roles.columns().extent);
  facts.depth = expected(extent_of(roles.depth()));
  facts.images = expected(extent_of(roles.shared_outer()));
  facts.others = expected(extent_of(roles.separate_outer()));
  const graph::TensorType& broadcast = roles.operand(roles.broadcast()).base->type();
  facts.row_bytes = dtype_size(broadcast.dtype);
  facts.written_bytes = written_bytes(nest);
  facts.has_image = roles.has_joined_rows();
  facts.are_pixels = facts.images > 1 || has_pixels(nest.stages().first(), roles);
  facts.accumulator = nest.accumulator();
  facts.vectors = roles.vectors();
  facts.products = nest.stages().count();
  facts.kept_products = static_cast<int64_t>(nest.stages().kept().size());
  facts.reads_pieces_of_rows = !roles.is_packed() && roles.depth().size() == 1 &&
                               roles.column_step().equals_constant(1) &&
                               roles.shared_outer().empty();
  if (roles.is_computed())
    facts.computed_bytes = dtype_size(roles.operand(roles.vector()).base->type().dtype);
  if (roles.has_groups())
    facts.group_terms =
        expected(nest.stages().first().attr<std::vector<SymExpr>>("reduced").back());
  facts.is_in_tile_registers = is_in_tile_registers(context, nest.stages(), roles);
  facts.has_far_panels =
      roles.is_packed() && context.plan.input_bytes > context.machine.second_level_bytes;
  // Windows have terms in common.
  facts.row_terms = std::min(facts.depth, context.expected(product(broadcast.shape)) /
                                              (facts.expected_rows * facts.images * facts.others));
  return schedule::choose_tiles(facts, context.machine);
}

}  // namespace mlcc::lower
