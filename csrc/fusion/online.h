// Sums whose terms depend on a value of the whole row: how they are taken while that value is still
// growing, in the pass that finds it.
//
// Let s be a row value, s' what the part of a row seen so far gives for it, and let a sum have been
// taken with s' over this part. What it is with s, its repair:
//   terms exp(e - s) * f   sum * exp(s' - s)     where s is the largest e
//   terms (e - s)^2        sum + d * (2 * c + n * d), d = s' - s  where s is the mean of e
//   terms t / s, t * (1/s) sum * (s' / s)        where s is a sum of the first form without f whose
//                                                factor t has
// n is the number of terms so far, and c the sum of e - s' over them: nearly 0, but s' is rounded.
// Softmax, the logarithm of a sum of exponentials and the variance are of these forms, and what is
// weighted by a softmax; none is known by its name. Sources: Milakov, Gimelshein, "Online
// normalizer calculation for softmax" (2018); Chan, Golub, LeVeque, "Updating formulae and a
// pairwise algorithm for computing sample variances" (1979).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "fusion/fusion.h"
#include "graph/index_map.h"

namespace mlcc::fusion {

// A group as far as it is planned, and what stands around the node in question.
struct OnlineScope {
  const Group& group;
  // Whether a node that is not of the group is computed by its readers.
  std::function<bool(const graph::Node&)> is_folded;
  // Where a reduction of the group (the one in question too) reads its operand, over the axes of
  // the domain.
  std::function<std::vector<SymExpr>(const graph::Node&)> read_position;
  const Assumptions& assumptions;  // the axes are in bounds
};

// Whether the row of a group is made of pieces in memory that are long enough for blocks of them to
// be worth a repair.
bool has_long_pieces(const Group& group, const SizeHint& hint);

// Nothing where the node is no sum, or its terms depend on row values in another way.
std::optional<Repair> find_repair(const graph::Node& reduction, const OnlineScope& scope);

}  // namespace mlcc::fusion
