#include "codegen/cpu/function_emitter.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

// Columns that are taken together: vectors of full width, then halves for what is left.
struct ColumnGroup {
  unsigned first;
  unsigned width;
};

std::vector<ColumnGroup> group_columns(unsigned columns, unsigned width) {
  std::vector<ColumnGroup> groups;
  for (unsigned first = 0; first < columns; first += groups.back().width) {
    while (width > columns - first) width /= 2;
    groups.push_back({first, width});
  }
  return groups;
}

// Tiles with more accumulators than this are done by plain loops: their code would be slow to
// compile.
constexpr size_t kMostAccumulators = 64;

}  // namespace

FunctionEmitter::Tile FunctionEmitter::tile_of(const loop::TileRef& ref) {
  const Place& place = places_.at(ref.buffer);
  const Address origin = address_of(place, ref.origin);
  MLCC_CHECK(origin.offset.is_uniform(), "%", ref.buffer->name, ": tile inside a vector loop");
  return {&place, pointer_to(place, origin.base, origin.offset.scalar),
          place.strides[static_cast<size_t>(ref.row_dim)].scalar,
          place.strides[static_cast<size_t>(ref.column_dim)].scalar};
}

llvm::Value* FunctionEmitter::tile_pointer(const Tile& tile, llvm::Value* row,
                                           llvm::Value* column) {
  llvm::Value* in_row = pointer_to(*tile.place, tile.origin, ir_.CreateMul(row, tile.row_stride));
  return pointer_to(*tile.place, in_row, ir_.CreateMul(column, tile.column_stride));
}

// `width` elements of a row, widened to the accumulator's dtype.
llvm::Value* FunctionEmitter::load_tile(const Tile& tile, llvm::Value* row, llvm::Value* column,
                                        unsigned width, DType accumulator) {
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), tile.place->dtype), width);
  llvm::LoadInst* load =
      ir_.CreateAlignedLoad(type, tile_pointer(tile, row, column), element_alignment(*tile.place));
  annotate(load, *tile.place);
  return emit_cast(ops_, tile.place->dtype, accumulator, load);
}

llvm::Value* FunctionEmitter::multiply_add(DType dtype, llvm::Value* a, llvm::Value* b,
                                           llvm::Value* sum) {
  if (is_float(dtype)) return emit_fma(ops_, a, b, sum);
  return ir_.CreateAdd(sum, ir_.CreateMul(a, b));
}

void FunctionEmitter::emit_contract(const loop::Contract& contract) {
  const Tile a = tile_of(contract.a), b = tile_of(contract.b), c = tile_of(contract.c);
  llvm::Value* depth = emit_scalar(contract.depth);
  const bool has_vectors = options_.vector_bits != 0 && is_constant(b.column_stride, 1) &&
                           is_constant(c.column_stride, 1);
  const int64_t width = has_vectors ? options_.vector_bits / (8 * dtype_size(c.place->dtype)) : 1;
  const auto columns =
      group_columns(static_cast<unsigned>(contract.columns), static_cast<unsigned>(width));
  if (columns.size() * static_cast<size_t>(contract.rows) > kMostAccumulators)
    return emit_contract_loops(contract, a, b, c, depth);

  const DType dtype = c.place->dtype;
  Parts sums;
  for (int64_t m = 0; m < contract.rows; ++m)
    for (const ColumnGroup& group : columns)
      sums.push_back(
          load_tile(c, index_constant(m), index_constant(group.first), group.width, dtype));
  sums = emit_counted(
      index_constant(0), depth, 1, sums, [&](llvm::Value* k, llvm::ArrayRef<llvm::Value*> old) {
        Parts next(old);
        Parts b_row;
        for (const ColumnGroup& group : columns)
          b_row.push_back(load_tile(b, k, index_constant(group.first), group.width, dtype));
        for (int64_t m = 0; m < contract.rows; ++m) {
          llvm::Value* a_element = load_tile(a, index_constant(m), k, 1, dtype);
          for (size_t g = 0; g < columns.size(); ++g) {
            llvm::Value*& sum = next[static_cast<size_t>(m) * columns.size() + g];
            sum = multiply_add(dtype, splat(ops_, columns[g].width, a_element), b_row[g], sum);
          }
        }
        return next;
      });
  size_t i = 0;
  for (int64_t m = 0; m < contract.rows; ++m)
    for (const ColumnGroup& group : columns) {
      llvm::Value* pointer = tile_pointer(c, index_constant(m), index_constant(group.first));
      annotate(ir_.CreateAlignedStore(sums[i++], pointer, element_alignment(*c.place)), *c.place);
    }
}

// One element at a time.
void FunctionEmitter::emit_contract_loops(const loop::Contract& contract, const Tile& a,
                                          const Tile& b, const Tile& c, llvm::Value* depth) {
  const DType dtype = c.place->dtype;
  auto element = [&](llvm::Value* m, llvm::Value* n) {
    const Parts init = {load_tile(c, m, n, 1, dtype)};
    const Parts sum = emit_counted(index_constant(0), depth, 1, init,
                                   [&](llvm::Value* k, llvm::ArrayRef<llvm::Value*> old) -> Parts {
                                     llvm::Value* left = load_tile(a, m, k, 1, dtype);
                                     llvm::Value* right = load_tile(b, k, n, 1, dtype);
                                     return {multiply_add(dtype, left, right, old[0])};
                                   });
    store_scalar(*c.place, tile_pointer(c, m, n), sum[0]);
  };
  emit_counted(index_constant(0), index_constant(contract.rows), 1, {},
               [&](llvm::Value* m, llvm::ArrayRef<llvm::Value*>) {
                 return emit_counted(index_constant(0), index_constant(contract.columns), 1, {},
                                     [&](llvm::Value* n, llvm::ArrayRef<llvm::Value*>) {
                                       element(m, n);
                                       return Parts{};
                                     });
               });
}

}  // namespace mlcc::codegen::cpu
