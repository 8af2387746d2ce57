// Weights that are given up for their kept values (weights="steal"): their storage has no memory of
// its own, and gets it back, with the same bytes, before anything that torch dispatches reads it.
//
// A tensor that may be stolen is watched: it has a dispatch key whose fallback, for every op of
// torch, fills its storage and keeps it filled until the op is done. The key stays on for good,
// since guards of Dynamo and of mlcc.jit compare keys, and is set when a graph is compiled, before
// there are any. What reads the memory of a stolen storage without an op (`data_ptr()`, `numpy()`
// or DLPack of a buffer or of `p.data`, pickle of the parameter itself) gets an error that says
// what to do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "runtime/kept_values.h"
#include "support/hash.h"

namespace mlcc::python {

// Smaller weights are not worth an op's look at them.
constexpr int64_t kLeastStolenBytes = int64_t{64} << 10;
// A weight that ops took back so often, each time after fewer calls than pay for moving it there
// and back, stays where it is.
constexpr int kMostRestores = 4;
constexpr int64_t kCallsThatPay = 64;

bool is_watched(const at::Tensor& tensor);
// From now on, if it is a large plain tensor of the CPU.
void watch(const at::Tensor& tensor);

bool is_stolen(const c10::Storage& storage);

// The first byte of a tensor's storage, which is asked for nothing else than to tell storages
// apart: of a stolen one too, whose number is no other one's.
int64_t address_of(const at::Tensor& tensor);

// Writes the elements of a stolen weight into a tensor of its shape and strides.
using Unpack = std::function<void(const at::Tensor& place)>;

// The value that a weight is given up for, and how it was computed.
struct StolenBy {
  runtime::KeptValuePtr value;
  Hash128 recipe{};
  int64_t since = 0;  // a time of KeptValues
};

class WatchedWeight;

// As long as it lives, nobody steals the weight: its memory may be read, unless it is stolen by
// now.
class WeightHold {
 public:
  WeightHold() = default;
  // Of a watched tensor. Fills its storage, unless it was stolen for the value of this recipe.
  explicit WeightHold(const at::Tensor& tensor, const Hash128* recipe = nullptr);
  ~WeightHold() { release(); }
  WeightHold(WeightHold&& other) noexcept { *this = std::move(other); }
  WeightHold& operator=(WeightHold&& other) noexcept;
  WeightHold(const WeightHold&) = delete;
  WeightHold& operator=(const WeightHold&) = delete;

  explicit operator bool() const { return weight_ != nullptr; }
  // Null: the weight is in its place.
  const runtime::KeptValuePtr& value() const { return value_; }

  // Gives the memory of the weight, which is `tensor`, up for `by`, from which `unpack` restores
  // it. Empty, or why it stays.
  std::string_view steal(const at::Tensor& tensor, StolenBy by, Unpack unpack);

  void release();

 private:
  std::shared_ptr<WatchedWeight> weight_;
  runtime::KeptValuePtr value_;
};

struct StolenInfo {
  int64_t weights = 0;
  int64_t bytes = 0;  // of the values that stand for them
  int64_t restores = 0;
};
StolenInfo stolen_info();

// All stolen weights get their memory back. Returns how many there were.
int64_t restore_stolen_weights();

}  // namespace mlcc::python
