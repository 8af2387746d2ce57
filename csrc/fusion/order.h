// In which order the kernels and calls of a plan run, and which kernels run at the same time.
//
// Units come in the order of their last nodes. Kernels too small to keep the machine busy are drawn
// forward to run beside an earlier one that they do not depend on: a wave. What a wave takes is
// bounded, and with it how much longer its results stay in memory. Kernels that write more than
// they free wait until their results are needed. Large kernels that walk over the same memory take
// turns. Work of a group of processes begins as soon as it can and is waited for when there is
// nothing else to do.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

namespace mlcc::fusion {

enum class Turn : uint8_t {
  kEarly,  // as soon as it can
  kUsual,  // in program order
  kLate,   // when nothing else can
};

// Bytes of results that early units may have under way, beside one that is larger: parts of one or
// two layers of a model that is gathered layer by layer, not all of it.
inline constexpr int64_t kBytesUnderWay = int64_t{256} << 20;

// A kernel or a call, by its index.
struct OrderedUnit {
  std::set<int> reads;  // units that come before it
  int last = 0;         // program order of its last node
  // Elements computed by a kernel that may run beside others; 0: this one runs alone.
  int64_t work = 0;
  // What a kernel that may wait writes; 0: this one does not.
  int64_t result_bytes = 0;
  // What it reads, by numbers that all units share.
  std::vector<int> reads_values;
  // What it reads from one end to the other, row after row, of more than a cache holds.
  std::vector<int> walks_over{};
  Turn turn = Turn::kUsual;
  int64_t begun_bytes = 0;  // results of an early unit, under way until a late one reads it
};

struct WaveLimits {
  int64_t of_kernel = 0;  // work above which a kernel runs alone
  int64_t of_wave = 0;    // work of all its kernels
  // Bytes of a value above which kernels that walk over it take turns; 0: none do.
  int64_t of_value = 0;
};

using Waves = std::vector<std::vector<int>>;

// The units in order, those of a wave together. Fewer than `units` where they wait for each other.
Waves find_waves(const std::vector<OrderedUnit>& units, const WaveLimits& limits);

// Whether the units of a wave go over the same memory, and are to do so together: part of it by one
// of them, the same part by the next one, and so on.
bool take_turns(const std::vector<OrderedUnit>& units, const std::vector<int>& wave,
                const WaveLimits& limits);

// Moves kernels behind others that do not need them, where less memory is in use meanwhile.
// `value_bytes` says how large each value is.
void delay_kernels(const std::vector<OrderedUnit>& units, const std::vector<int64_t>& value_bytes,
                   Waves& waves);

}  // namespace mlcc::fusion
