// AMX in software, for machines that have none: each of its instructions ends in a signal here, is
// carried out, and the kernel goes on behind it. So it is the machine code that is tested.
#pragma once

#include <cstdint>

namespace mlcc::codegen::cpu::testing {

// From now on, in this process. Products of tiles whose shapes do not fit end it, as do accesses to
// memory that is not there.
void install_tile_machine();

// Instructions that multiplied tiles, so far.
int64_t count_tile_products();

}  // namespace mlcc::codegen::cpu::testing
