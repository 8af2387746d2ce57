// Lowers a 3x3 convolution whose filters are there transformed
// (graph/passes/contractions/winograd.h), and its epilogue. One phase, whose iterations are a
// block of 2x2 tiles of the result's pixels times some panels of its channels:
//
//   for %p in 0..blocks * groups parallel {
//     for %t in ..tiles { for %c in .. vector { store %images[..] = ..4x4 pixels, transformed } }
//     for %panel in ..panels of the group {
//       for %i in 0..16 { for %t in .. { contract %products[..] = %images[..] * %filters[..] } }
//       for %t in ..tiles {
//         for %c in .. vector { store %pixels[..] = ..16 products, transformed }
//         for %y in 0..2 { for %x in 0..2 { for %c in .. vector { store %out[..] = relu(..) } } }
//
// A tile of which a pixel is not finite is computed once more as the sums that the contraction
// means: an infinity or NaN of the image reaches no pixel beside its own windows.
#pragma once

#include "lower/context.h"
#include "lower/kernel_buffers.h"
#include "lower/lower.h"

namespace mlcc::lower {

// Whether the group is such a convolution, on a machine that is to transform images.
bool is_transformed(const Context& context);

void lower_winograd(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered);

}  // namespace mlcc::lower
