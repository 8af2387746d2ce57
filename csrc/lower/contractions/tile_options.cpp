#include "lower/contractions/tile_options.h"

#include <utility>

#include "schedule/contraction.h"
#include "schedule/winograd.h"

namespace mlcc::lower {

using schedule::Machine;

graph::TileOptions tile_options(std::function<Machine()> machine) {
  const auto of_operands = [&machine](int64_t (*ask)(const Machine&, DType lhs, DType rhs)) {
    return [machine, ask](DType lhs, DType rhs) { return ask(machine(), lhs, rhs); };
  };
  return {
      .columns = [machine](DType accumulator) -> int64_t {
        const Machine known = machine();
        return known.is_gpu ? 0 : schedule::tile_columns(known, accumulator);
      },
      .terms = of_operands(schedule::dot_terms),
      .mixes_signs = [machine] { return machine().mixes_signs; },
      .wider_dtype = [machine](DType lhs,
                               DType rhs) { return schedule::wider_dtype(machine(), lhs, rhs); },
      .widens_weights = [machine] { return machine().widens_weights; },
      .terms_of_register = of_operands(schedule::terms_of_register),
      .most_rows_unpacked = of_operands(schedule::most_rows_unpacked),
      .products_worth_packing = of_operands(schedule::products_worth_packing),
      .most_rows_summed = of_operands(schedule::most_rows_summed),
      .most_rows_in_registers =
          [machine](DType accumulator, int64_t columns) {
            const Machine known = machine();
            return schedule::most_rows_in_registers(
                known, columns / schedule::vector_columns(known, accumulator));
          },
      .panel_columns =
          [machine](DType accumulator, const graph::ProductSize& size) {
            return schedule::panel_columns(
                {.rows = size.rows,
                 .columns = size.columns,
                 .depth = size.terms,
                 .has_images_of_unknown_size = size.has_images_of_unknown_size},
                accumulator, machine());
          },
      .transformed_columns =
          [machine](const graph::ConvolutionSize& size) {
            return schedule::transformed_columns(
                {.tiles = size.images * ((size.height + 1) / 2) * ((size.width + 1) / 2),
                 .are_tiles_known = true,
                 .pixels = size.images * size.height * size.width,
                 .channels = size.channels,
                 .columns = size.columns},
                machine());
          }};
}

}  // namespace mlcc::lower
