// How the terms of long sums are cut into parts, so that no accumulator takes more of them than it
// should: loops over parts, and what one micro-kernel goes over.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lower/contractions/contraction_nest.h"

namespace mlcc::lower {

// An axis that one micro-kernel goes over, innermost last; loops around it go over the rest, and
// add up in the tile.
struct DepthAxis {
  const schedule::Axis* axis;
  SymExpr begin;
  SymExpr extent;
};

// Whether a sum has several parts.
bool has_parts(const ContractionNest& nest);

// Whether parts of a sum are added up by themselves first, and some at a time then join it.
bool has_sums_of_parts(const ContractionNest& nest);

// Terms that one micro-kernel goes over at most, where the axes inside of what is cut are whole.
int64_t most_terms_of_part(const ContractionNest& nest);

// What is made for one micro-kernel's terms, for all of them; `join` is what follows some of the
// parts where they have sums of their own.
using OfTerms = std::function<loop::Block(const std::vector<DepthAxis>&)>;
using OfParts = std::function<loop::Block()>;
loop::Block over_parts(ContractionNest& nest, const OfTerms& make, const OfParts& join);

}  // namespace mlcc::lower
