#include "lower/contractions/winograd.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "graph/strided_view.h"
#include "lower/axes/nest_axes.h"
#include "lower/contractions/borders.h"
#include "lower/contractions/tile_nest.h"
#include "lower/element/evaluator.h"
#include "lower/group_nodes.h"
#include "schedule/winograd.h"

namespace mlcc::lower {

using graph::Node;
using graph::Value;
using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;

namespace {

// Sides of a tile of the result, and of the pixels that it is computed from; of filters.
constexpr int64_t kSide = 2, kImageSide = 4, kTaps = 3;
constexpr int64_t kProducts = kImageSide * kImageSide, kPixels = kSide * kSide;
// Axes of the contraction.
enum : size_t { kImages, kRows, kColumns, kChannels, kRowsOfFilter, kColumnsOfFilter, kDepth };

// Columns that transformed filters lie together in.
int64_t panel_of(const Node& node) { return *node.operand(2)->type().shape[3].as_constant(); }

class WinogradLowering {
 public:
  WinogradLowering(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered)
      : context_(context), arena_(context.arena), node_(*context.group.nodes.front()),
        nodes_(context.plan, context.group), buffers_(buffers), lowered_(lowered),
        // Each axis stays as it is.
        axes_(context.group.domain, context.group.reduced,
              fusion::axis_symbols(context.group.domain.size()), context.graph.assumptions()),
        evaluator_(context, buffers, context.group.domain, &axes_, nullptr),
        nest_(context, evaluator_, lowered), image_(*graph::strided_view(node_.operand(0))),
        filters_(*graph::strided_view(node_.operand(1))),
        across_(ceil_div(extent(kColumns), kSide)), down_(ceil_div(extent(kRows), kSide)),
        all_(extent(kImages) * down_ * across_) {}

  void lower() {
    tiles_ = choose();
    lowered_.schedule.winograd = tiles_;
    const SymExpr panels = ceil_div(extent(kChannels), tiles_.columns);
    const SymExpr groups = ceil_div(panels, tiles_.panels);
    const SymExpr terms =
        extent(kDepth) * (kProducts * tiles_.tiles * tiles_.columns * tiles_.panels);
    nest_.add_range(
        ceil_div(all_, tiles_.tiles) * groups, terms, tiles_.grain_terms,
        [&](const SymExpr& at, Block& block) {
          Range range;
          const SymExpr group = let(SymExpr::mod(at, groups), "group", block);
          range.first = let(SymExpr::floordiv(at, groups) * tiles_.tiles, "first", block);
          range.count = let(SymExpr::min(all_ - range.first, tiles_.tiles), "count", block);
          range.height = nest_.choose_height(tiles_.rows, {}, tiles_.costs, range.count, block);
          range.panel = let(group * tiles_.panels, "panel", block);
          range.end_panel = let(SymExpr::min(range.panel + tiles_.panels, panels), "end", block);
          emit_block(range, block);
        });
    fill_borders(context_, evaluator_, nest_);
  }

 private:
  // Tiles and panels of an iteration.
  struct Range {
    SymExpr first, count, panel, end_panel;
    SymExpr height;  // of a tile of products
  };

  // Of a tile: the image, and where its first pixel is in the result.
  struct Place {
    SymExpr image, row, column;
  };

  // 16 matrices one behind the other.
  struct Matrices {
    const loop::Buffer* buffer;
    int64_t pitch;  // of their rows
    int64_t step;   // from one to the next
  };

  // -- small parts
  SymExpr extent(size_t axis) const { return context_.group.domain[axis]; }
  Expr expr(const SymExpr& over_nest) { return nest_.expr(over_nest); }
  Expr constant(int64_t value) { return nest_.constant(value); }
  Expr number(double value) { return loop::Constant::make_float(arena_, DType::kF32, value); }
  SymExpr let(const SymExpr& value, std::string_view name, Block& block) {
    return nest_.let(value, name, block);
  }
  Expr let(Expr value, std::string_view name, Block& block) {
    return nest_.let(value, name, block);
  }
  Expr load(const loop::Buffer* buffer, const SymExpr& at) { return nest_.load(buffer, at); }
  void store(const loop::Buffer* buffer, const SymExpr& at, Expr value, Block& block) {
    nest_.store(buffer, at, value, block);
  }
  Expr add(Expr a, Expr b) { return nest_.apply(ScalarOp::kAdd, {a, b}); }
  Expr subtract(Expr a, Expr b) { return nest_.apply(ScalarOp::kSub, {a, b}); }
  Block over(std::string_view name, const SymExpr& begin, const SymExpr& end,
             const std::function<void(SymExpr, Block&)>& body) {
    return nest_.loop_over(name, begin, end, {}, body);
  }
  loop::LoopMode vector_mode() const {
    return {LoopKind::kVector, schedule::vector_columns(context_.machine, DType::kF32), 1, 1};
  }
  void bind(size_t axis, const SymExpr& at, Block& block) {
    for (const Axis& each : axes_.axes())
      if (each.name == fusion::axis_name(axis)) nest_.bind(each, at, block);
  }
  const loop::Buffer* buffer_of(Value* value) {
    return buffers_.buffer_of(value, loop::Access::kIn);
  }

  schedule::WinogradTiles choose() const {
    const auto expected = [&](const SymExpr& size) {
      return std::max<int64_t>(1, context_.expected(size));
    };
    return schedule::choose_winograd(
        {.tiles = expected(all_),
         .are_tiles_known = all_.is_constant(),
         .pixels = expected(extent(kImages) * extent(kRows) * extent(kColumns)),
         .channels = expected(extent(kDepth)),
         .columns = expected(extent(kChannels)),
         .panel = panel_of(node_)},
        context_.machine);
  }

  Matrices matrices(std::string_view name, int64_t pitch, Block& block) {
    const int64_t step = tiles_.computed() * pitch + schedule::WinogradTiles::kMargin;
    return {nest_.stack(name, DType::kF32, kProducts * step, block), pitch, step};
  }

  Place place_of(const SymExpr& tile, Block& block) {
    const SymExpr line = let(SymExpr::floordiv(tile, across_), "line", block);
    return {let(SymExpr::floordiv(line, down_), "image", block),
            let(SymExpr::mod(line, down_) * kSide, "row", block),
            let(SymExpr::mod(tile, across_) * kSide, "column", block)};
  }

  // -- a block
  void emit_block(const Range& range, Block& block) {
    const Matrices images = matrices("images", tiles_.channels, block);
    const Matrices products = matrices("products", tiles_.columns, block);
    const SymExpr& channels = extent(kDepth);
    const bool is_whole = channels.as_constant().value_or(INT64_MAX) <= tiles_.channels;
    if (is_whole) emit_images(range, images, {0, channels}, block);
    append(block, over("panel", range.panel, range.end_panel, [&](const SymExpr& panel, Block& b) {
             if (is_whole)
               emit_products(range, images, products, panel, {0, channels}, false, b);
             else
               emit_parts(range, images, products, panel, b);
             emit_results(range, products, panel, b);
           }));
  }

  // Channels of the image.
  struct Part {
    SymExpr begin, count;
  };

  void emit_parts(const Range& range, const Matrices& images, const Matrices& products,
                  const SymExpr& panel, Block& block) {
    const SymExpr& channels = extent(kDepth);
    const auto part = [&](const SymExpr& begin, bool adds, Block& b) {
      const SymExpr count = let(SymExpr::min(channels - begin, tiles_.channels), "some", b);
      emit_images(range, images, {begin, count}, b);
      emit_products(range, images, products, panel, {begin, count}, adds, b);
    };
    part(0, false, block);
    append(block,
           over("part", 1, ceil_div(channels, tiles_.channels), [&](const SymExpr& i, Block& b) {
             part(let(i * tiles_.channels, "begin", b), true, b);
           }));
  }

  // A row of four, transformed: B' d of Winograd's algorithm.
  std::array<Expr, kImageSide> image_row(const std::array<Expr, kImageSide>& d, Block& block) {
    return {let(subtract(d[0], d[2]), "v", block), let(add(d[1], d[2]), "v", block),
            let(subtract(d[2], d[1]), "v", block), let(subtract(d[1], d[3]), "v", block)};
  }

  // And back: A' m.
  std::array<Expr, kSide> result_row(const std::array<Expr, kImageSide>& m, Block& block) {
    return {let(add(add(m[0], m[1]), m[2]), "y", block),
            let(subtract(subtract(m[1], m[2]), m[3]), "y", block)};
  }

  // Where the image's pixels of a tile begin along an axis, behind `base`; behind the last one it
  // is read again, for results that nobody asks for.
  std::array<SymExpr, kImageSide> pixels_along(size_t axis, const SymExpr& base,
                                               const SymExpr& first, Block& block) {
    const SymExpr& step = image_.strides[axis];
    const SymExpr begin = let(base + first * step, "at", block);
    std::array<SymExpr, kImageSide> places;
    for (int64_t i = 0; i < kImageSide; ++i) {
      const SymExpr at = begin + i * step;
      places[static_cast<size_t>(i)] = step.is_constant() ? at : let(at, "at", block);
    }
    if (extent(axis).divide_exactly(kSide)) return places;
    const SymExpr last = extent(axis) + (kTaps - 2);
    places.back() = let(base + SymExpr::min(first + (kImageSide - 1), last) * step, "at", block);
    return places;
  }

  void emit_images(const Range& range, const Matrices& images, const Part& part, Block& block) {
    const loop::Buffer* from = buffer_of(image_.base);
    append(block, over("t", 0, range.count, [&](const SymExpr& t, Block& b) {
             const Place place = place_of(range.first + t, b);
             const SymExpr base = image_.offset + place.image * image_.strides[0] + part.begin;
             const auto rows = pixels_along(kRows, base, place.row, b);
             const auto columns = pixels_along(kColumns, 0, place.column, b);
             const SymExpr to = let(t * images.pitch, "to", b);
             append(b, nest_.loop_over("c", 0, part.count, vector_mode(),
                                       [&](const SymExpr& c, Block& inner) {
                                         emit_image(from, c, rows, columns, images, to + c, inner);
                                       }));
           }));
  }

  void emit_image(const loop::Buffer* from, const SymExpr& c,
                  const std::array<SymExpr, kImageSide>& rows,
                  const std::array<SymExpr, kImageSide>& columns, const Matrices& images,
                  const SymExpr& to, Block& block) {
    std::array<std::array<Expr, kImageSide>, kImageSide> by_column;
    for (size_t j = 0; j < kImageSide; ++j) {
      std::array<Expr, kImageSide> pixels;
      for (size_t i = 0; i < kImageSide; ++i)
        pixels[i] = let(load(from, rows[i] + columns[j] + c), "d", block);
      by_column[j] = image_row(pixels, block);
    }
    for (size_t i = 0; i < kImageSide; ++i) {
      const auto row =
          image_row({by_column[0][i], by_column[1][i], by_column[2][i], by_column[3][i]}, block);
      for (size_t j = 0; j < kImageSide; ++j)
        store(images.buffer, to + static_cast<int64_t>(i * kImageSide + j) * images.step, row[j],
              block);
    }
  }

  // Rows behind the last tile are multiplied too, whatever they are.
  void emit_products(const Range& range, const Matrices& images, const Matrices& products,
                     const SymExpr& panel, const Part& part, bool adds, Block& block) {
    const loop::Buffer* filters = buffer_of(node_.operand(2));
    const auto tile = [&](const loop::Buffer* buffer, const SymExpr& at, int64_t step,
                          int64_t step_of_depth) {
      return loop::TileRef{buffer, {expr(at)}, {constant(step), constant(step_of_depth)}};
    };
    const auto rows_of = [&](const Matrices& all, const SymExpr& i, const SymExpr& row) {
      return tile(all.buffer, i * all.step + row * all.pitch, all.pitch, 1);
    };
    const SymExpr of_matrix = extent(kDepth) * tiles_.columns;
    append(
        block, over("i", 0, kProducts, [&](const SymExpr& i, Block& b) {
          const SymExpr at =
              let((panel * kProducts + i) * of_matrix + part.begin * tiles_.columns, "filters", b);
          append(b,
                 over("r", 0, ceil_div(range.count, range.height),
                      [&](const SymExpr& r, Block& inner) {
                        const SymExpr row = let(r * range.height, "row", inner);
                        append(inner, nest_.by_height(tiles_.rows, range.height, [&](int64_t rows) {
                          return loop::Contract::make(
                              arena_, rows_of(products, i, row), rows_of(images, i, row),
                              tile(filters, at, 1, tiles_.columns), rows, tiles_.columns, nullptr,
                              {expr(part.count)}, adds, ahead_of(at + of_matrix, r, rows, part));
                        }));
                      }));
        }));
  }

  // Each tile asks for its share of the next matrix of filters, which else only the first one would
  // wait for. Behind the last one lies nothing; asking for it does no harm.
  loop::LinesAhead ahead_of(const SymExpr& next, const SymExpr& r, int64_t rows, const Part& part) {
    const graph::TensorType& type = node_.operand(2)->type();
    const int64_t bytes = context_.expected(product(type.shape)) * dtype_size(type.dtype);
    if (2 * bytes <= context_.machine.second_level_bytes) return {};
    loop::LinesAhead ahead;
    const int64_t tiles = std::min(tiles_.tiles, std::max<int64_t>(1, context_.expected(all_)));
    const int64_t of_matrix = (tiles + rows - 1) / rows;
    ahead.shift = std::bit_width(static_cast<uint64_t>(of_matrix)) - 1;
    const int64_t shares = int64_t{1} << ahead.shift;
    ahead.origin = expr(next + SymExpr::mod(r, shares) *
                                   SymExpr::floordiv(part.count * tiles_.columns, shares));
    return ahead;
  }

  void emit_results(const Range& range, const Matrices& products, const SymExpr& panel,
                    Block& block) {
    const SymExpr column = let(panel * tiles_.columns, "channel", block);
    const SymExpr live =
        let(SymExpr::min(extent(kChannels) - column, tiles_.columns), "live", block);
    const loop::Buffer* pixels =
        nest_.stack("pixels", DType::kF32, kPixels * tiles_.columns, block);
    append(block, over("t", 0, range.count, [&](const SymExpr& t, Block& b) {
             const Place place = place_of(range.first + t, b);
             const SymExpr at = let(t * products.pitch, "from", b);
             const Expr rest = emit_pixels(products, at, pixels, b);
             Block again;
             emit_sums(place, column, live, pixels, again);
             b.push_back(loop::If::make(arena_, nest_.apply(ScalarOp::kNe, {rest, number(0)}),
                                        std::move(again)));
             emit_epilogue(place, column, live, pixels, b);
           }));
  }

  // A tile's pixels; gives 0 if all of them are finite, else NaN.
  Expr emit_pixels(const Matrices& products, const SymExpr& from, const loop::Buffer* pixels,
                   Block& block) {
    const auto fresh = [&](std::string_view name) {
      return Variable::make(arena_, DType::kF32, arena_.fresh_name(name));
    };
    const Variable* at = nest_.variable("c");
    const SymExpr c = SymExpr::symbol(at->name);
    Block body;
    std::array<std::array<Expr, kSide>, kImageSide> by_column;
    for (size_t j = 0; j < kImageSide; ++j) {
      std::array<Expr, kImageSide> m;
      for (size_t i = 0; i < kImageSide; ++i)
        m[i] = let(load(products.buffer,
                        from + c + static_cast<int64_t>(i * kImageSide + j) * products.step),
                   "m", body);
      by_column[j] = result_row(m, body);
    }
    Expr all = nullptr;
    for (size_t i = 0; i < kSide; ++i) {
      const auto row =
          result_row({by_column[0][i], by_column[1][i], by_column[2][i], by_column[3][i]}, body);
      for (size_t j = 0; j < kSide; ++j) {
        store(pixels, c + static_cast<int64_t>(i * kSide + j) * tiles_.columns, row[j], body);
        all = all == nullptr ? row[j] : add(all, row[j]);
      }
    }
    const loop::Carried carried{fresh("so_far"), number(0), fresh("rest")};
    const Expr next = add(carried.variable, nest_.apply(ScalarOp::kMul, {all, number(0)}));
    const Variable *left = fresh("left"), *right = fresh("right");
    loop::Combine combine{{left}, {right}, {}, {add(left, right)}};
    block.push_back(loop::Reduce::make(arena_, at, constant(0), constant(tiles_.columns),
                                       vector_mode(), {carried}, std::move(body), {next},
                                       std::move(combine)));
    return carried.result;
  }

  // A tile's pixels as sums of products, some channels side by side.
  void emit_sums(const Place& place, const SymExpr& column, const SymExpr& live,
                 const loop::Buffer* pixels, Block& block) {
    const loop::Buffer *image = buffer_of(image_.base), *filters = buffer_of(filters_.base);
    append(
        block, over("pixel", 0, kPixels, [&](const SymExpr& pixel, Block& b) {
          const auto inside = [&](const SymExpr& at, size_t axis) {
            return SymExpr::min(at, extent(axis) - 1);
          };
          const SymExpr row = inside(place.row + SymExpr::floordiv(pixel, kSide), kRows);
          const SymExpr from = let(
              image_.offset + place.image * image_.strides[0] + row * image_.strides[1] +
                  inside(place.column + SymExpr::mod(pixel, kSide), kColumns) * image_.strides[2],
              "from", b);
          append(b,
                 nest_.loop_over("c", 0, live, vector_mode(), [&](const SymExpr& c, Block& inner) {
                   const SymExpr of_filters = filters_.offset + (column + c) * stride_of(kChannels);
                   store(pixels, pixel * tiles_.columns + c,
                         sum(image, from, filters, of_filters, inner), inner);
                 }));
        }));
  }

  // How far apart filters' elements are along an axis of the contraction.
  SymExpr stride_of(size_t axis) const {
    const auto& index = node_.attr<std::vector<SymExpr>>("rhs");
    const auto place =
        std::find(index.begin(), index.end(), SymExpr::symbol(fusion::axis_name(axis)));
    return filters_.strides[static_cast<size_t>(place - index.begin())];
  }

  Expr sum(const loop::Buffer* image, const SymExpr& from, const loop::Buffer* filters,
           const SymExpr& of_filters, Block& block) {
    // Of each tap by itself: no accumulator takes more terms than channels.
    const auto reduce = [&](std::string_view name, const SymExpr& count, Block& b,
                            const std::function<Expr(const SymExpr&, Expr, Block&)>& step) {
      const Variable* at = nest_.variable(name);
      const auto fresh = [&] {
        return Variable::make(arena_, DType::kF32, arena_.fresh_name("sum"));
      };
      const loop::Carried carried{fresh(), number(0), fresh()};
      Block body;
      const Expr next = step(SymExpr::symbol(at->name), carried.variable, body);
      b.push_back(loop::Reduce::make(arena_, at, constant(0), expr(count), {}, {carried},
                                     std::move(body), {next}, std::nullopt));
      return carried.result;
    };
    return reduce("tap", kTaps * kTaps, block, [&](const SymExpr& tap, Expr so_far, Block& b) {
      const SymExpr r = let(SymExpr::floordiv(tap, kTaps), "r", b);
      const SymExpr s = let(SymExpr::mod(tap, kTaps), "s", b);
      const Expr of_tap =
          reduce("k", extent(kDepth), b, [&](const SymExpr& k, Expr of_channels, Block&) {
            const SymExpr at = r * image_.strides[1] + s * image_.strides[2];
            const SymExpr of = r * stride_of(kRowsOfFilter) + s * stride_of(kColumnsOfFilter) +
                               k * stride_of(kDepth);
            return nest_.apply(ScalarOp::kFma, {load(image, from + at + k),
                                                load(filters, of_filters + of), of_channels});
          });
      return add(so_far, of_tap);
    });
  }

  // The epilogue.
  void emit_epilogue(const Place& place, const SymExpr& column, const SymExpr& live,
                     const loop::Buffer* pixels, Block& block) {
    const auto side = [&](size_t axis, const SymExpr& first) {
      if (extent(axis).divide_exactly(kSide)) return SymExpr(kSide);
      return let(SymExpr::min(extent(axis) - first, kSide), "side", block);
    };
    const SymExpr height = side(kRows, place.row), width = side(kColumns, place.column);
    bind(kImages, place.image, block);
    append(block, over("y", 0, height, [&](const SymExpr& y, Block& rows) {
             bind(kRows, place.row + y, rows);
             append(rows, over("x", 0, width, [&](const SymExpr& x, Block& b) {
                      bind(kColumns, place.column + x, b);
                      const SymExpr from = let((y * kSide + x) * tiles_.columns, "pixel", b);
                      append(b, nest_.loop_over("c", 0, live, vector_mode(),
                                                [&](const SymExpr& c, Block& inner) {
                                                  bind(kChannels, column + c, inner);
                                                  emit_element(load(pixels, from + c), inner);
                                                }));
                    }));
           }));
  }

  // Nodes of the group at the current point.
  void emit_element(Expr sum, Block& block) {
    sum = let(sum, "sum", block);
    evaluator_.push(&block);
    for (const Node* node : context_.group.nodes) {
      const std::vector<SymExpr>& position = nodes_.position(*node);
      const Expr element = node == &node_ ? sum : evaluator_.evaluate_node(*node, position);
      evaluator_.define_row(node->result(), element);
      if (nodes_.is_output(node->result())) evaluator_.store(node->result(), position, element);
    }
    evaluator_.pop();
  }

  const Context& context_;
  loop::Arena& arena_;
  const Node& node_;
  const GroupNodes nodes_;
  KernelBuffers& buffers_;
  LoweredKernel& lowered_;
  const NestAxes axes_;
  Evaluator evaluator_;
  TileNest nest_;
  const graph::StridedView image_, filters_;
  const SymExpr across_, down_, all_;  // tiles of an image, and of all images
  schedule::WinogradTiles tiles_;
};

}  // namespace

bool is_transformed(const Context& context) {
  const Node& node = *context.group.nodes.front();
  if (node.op() != graph::Op::kContract || node.operands().size() < 3 ||
      !schedule::has_winograd(panel_of(node), context.machine))
    return false;
  const auto image = graph::strided_view(node.operand(0));
  return image && image->strides.back().equals_constant(1);
}

void lower_winograd(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered) {
  WinogradLowering(context, buffers, lowered).lower();
}

}  // namespace mlcc::lower
