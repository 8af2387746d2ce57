#include "lower/contractions/depth_parts.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace mlcc::lower {

using loop::Block;
using schedule::Axis;

namespace {

// Axes from `first` on are whole in one micro-kernel, and have so many terms together.
struct DepthSplit {
  size_t first;
  int64_t terms;
};

DepthSplit split_depth(const ContractionNest& nest) {
  const std::vector<const Axis*>& depth = nest.roles().depth();
  DepthSplit split{depth.size(), 1};
  while (split.first > 0) {
    const auto extent = depth[split.first - 1]->extent.as_constant();
    if (!extent || *extent * split.terms > nest.tiles().depth) break;
    split.terms *= std::max<int64_t>(1, *extent);
    --split.first;
  }
  return split;
}

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// What a part of the axis that is cut is a multiple of, so that with the axes inside of it it is
// one of so many words.
int64_t step_of(const ContractionNest& nest, const DepthSplit& split) {
  const int64_t step = nest.tiles().depth_step;
  return step / std::gcd(step, std::max<int64_t>(1, split.terms / nest.terms_of_word()));
}

int64_t most_of_cut(const ContractionNest& nest, const DepthSplit& split) {
  return std::max<int64_t>(1, nest.tiles().depth / split.terms);
}

// Loops over the axes before those that are whole, of which the last is cut into parts.
class PartLoops {
 public:
  PartLoops(ContractionNest& nest, const DepthSplit& split, std::vector<DepthAxis> inner,
            const OfTerms& make, const OfParts& join)
      : nest_(nest), end_(split.first), most_(most_of_cut(nest, split)),
        step_(step_of(nest, split)), inner_(std::move(inner)), make_(make), join_(join) {}

  // Over the axes [i, end).
  Block over_axes(size_t i) {
    const Axis& axis = *nest_.roles().depth()[i];
    if (i + 1 == end_) return over_parts_of(axis);
    return nest_.loop_over(axis.name, 0, axis.extent, {}, [&](const SymExpr& at, Block& block) {
      append(block, with({&axis, at, 1}, [&] { return over_axes(i + 1); }));
    });
  }

 private:
  Block with(DepthAxis part, const std::function<Block()>& body) {
    outer_.push_back(std::move(part));
    Block block = body();
    outer_.pop_back();
    return block;
  }

  Block whole() const {
    std::vector<DepthAxis> all = outer_;
    all.insert(all.end(), inner_.begin(), inner_.end());
    return make_(all);
  }

  // Parts of equal length, as far as that is known.
  Block over_parts_of(const Axis& axis) {
    const auto extent = axis.extent.as_constant();
    const int64_t count = extent ? (*extent + most_ - 1) / most_ : 0;
    const int64_t even = extent && count > 0 ? (*extent + count - 1) / count : most_;
    const int64_t length = rounded_up(even, step_);
    const auto over = [&](const SymExpr& first, const SymExpr& last) {
      return nest_.loop_over("part", first, last, {}, [&](const SymExpr& part, Block& block) {
        const SymExpr begin = nest_.let(part * length, "begin", block);
        const SymExpr left = axis.extent - begin;
        const bool is_even = extent && *extent % length == 0;
        const SymExpr size =
            is_even ? SymExpr(length) : nest_.let(SymExpr::min(left, length), "terms", block);
        append(block, with({&axis, begin, size}, [&] { return whole(); }));
      });
    };
    const SymExpr all = ceil_div(axis.extent, length);
    if (!has_sums_of_parts(nest_)) return over(0, all);
    const int64_t some = nest_.tiles().parts_of_sum;
    return nest_.loop_over(
        "parts", 0, ceil_div(all, some), {}, [&](const SymExpr& at, Block& block) {
          const SymExpr first = nest_.let(at * some, "first", block);
          const SymExpr last = nest_.let(SymExpr::min(first + some, all), "last", block);
          append(block, over(first, last));
          append(block, join_());
        });
  }

  ContractionNest& nest_;
  const size_t end_;
  const int64_t most_, step_;
  const std::vector<DepthAxis> inner_;
  const OfTerms& make_;
  const OfParts& join_;
  std::vector<DepthAxis> outer_;
};

}  // namespace

int64_t most_terms_of_part(const ContractionNest& nest) {
  const DepthSplit split = split_depth(nest);
  return split.first == 0
             ? split.terms
             : rounded_up(most_of_cut(nest, split), step_of(nest, split)) * split.terms;
}

bool has_parts(const ContractionNest& nest) { return split_depth(nest).first > 0; }

bool has_sums_of_parts(const ContractionNest& nest) {
  const schedule::ContractionTiles& tiles = nest.tiles();
  return tiles.parts_of_sum > 1 && has_parts(nest) &&
         extent_of(nest.roles().depth()).as_constant().value_or(INT64_MAX) >
             tiles.depth * tiles.parts_of_sum;
}

Block over_parts(ContractionNest& nest, const OfTerms& make, const OfParts& join) {
  const DepthSplit split = split_depth(nest);
  const std::vector<const Axis*>& depth = nest.roles().depth();
  std::vector<DepthAxis> whole;
  for (size_t i = split.first; i < depth.size(); ++i)
    whole.push_back({depth[i], 0, depth[i]->extent});
  if (split.first == 0) return make(whole);
  return PartLoops(nest, split, std::move(whole), make, join).over_axes(0);
}

}  // namespace mlcc::lower
