#include "fusion/order.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <utility>

namespace mlcc::fusion {
namespace {

bool is_small(const OrderedUnit& unit, const WaveLimits& limits) {
  return unit.work > 0 && unit.work <= limits.of_kernel;
}

struct Ready {
  Turn turn;
  int last, index;
  auto operator<=>(const Ready&) const = default;
};

class Sorter {
 public:
  Sorter(const std::vector<OrderedUnit>& units, const WaveLimits& limits)
      : units_(units), limits_(limits), waiting_(units.size(), 0), readers_(units.size()) {
    for (size_t u = 0; u < units.size(); ++u)
      for (const int source : units[u].reads) {
        ++waiting_[u];
        readers_[static_cast<size_t>(source)].push_back(static_cast<int>(u));
      }
    for (size_t u = 0; u < units.size(); ++u) add_if_ready(static_cast<int>(u));
  }

  Waves waves() {
    Waves all;
    while (!ready_.empty()) {
      all.push_back(take_wave());
      for (const int unit : all.back())
        for (const int reader : readers_[static_cast<size_t>(unit)]) {
          --waiting_[static_cast<size_t>(reader)];
          add_if_ready(reader);
        }
    }
    return all;
  }

 private:
  const OrderedUnit& unit(int index) const { return units_[static_cast<size_t>(index)]; }

  void add_if_ready(int index) {
    if (waiting_[static_cast<size_t>(index)] == 0)
      ready_.insert({unit(index).turn, unit(index).last, index});
  }

  bool is_small(int index) const { return fusion::is_small(unit(index), limits_); }

  // The next unit, if it walks over what the first one of a wave does.
  void add_walker(std::vector<int>& wave) {
    if (ready_.empty()) return;
    const int next = ready_.begin()->index;
    const std::vector<int>& others = unit(next).walks_over;
    const std::vector<int>& values = unit(wave.front()).walks_over;
    if (std::find_first_of(values.begin(), values.end(), others.begin(), others.end()) ==
        values.end())
      return;
    wave.push_back(next);
    ready_.erase(ready_.begin());
  }

  // Early ones first and late ones last; all in program order while much is under way.
  int take_next() {
    auto next = ready_.begin();
    if (next->turn == Turn::kEarly && under_way_ > 0 &&
        under_way_ + unit(next->index).begun_bytes > kBytesUnderWay)
      next = std::min_element(ready_.begin(), ready_.end(), [](const Ready& a, const Ready& b) {
        return std::pair(a.last, a.index) < std::pair(b.last, b.index);
      });
    const auto [turn, last, index] = *next;
    ready_.erase(next);
    if (turn == Turn::kEarly) {
      begun_.insert(index);
      under_way_ += unit(index).begun_bytes;
    }
    if (turn == Turn::kLate)
      for (const int source : unit(index).reads)
        if (begun_.erase(source) != 0) under_way_ -= unit(source).begun_bytes;
    return index;
  }

  // The first unit, and what runs beside it. None of them depends on another: all are ready.
  std::vector<int> take_wave() {
    std::vector<int> wave = {take_next()};
    if (!is_small(wave.front())) {
      add_walker(wave);
      return wave;
    }
    int64_t work = unit(wave.front()).work;
    for (auto next = ready_.begin(); next != ready_.end();) {
      const int index = next->index;
      if (!is_small(index) || work + unit(index).work > limits_.of_wave) {
        ++next;
        continue;
      }
      work += unit(index).work;
      wave.push_back(index);
      next = ready_.erase(next);
    }
    return wave;
  }

  const std::vector<OrderedUnit>& units_;
  const WaveLimits& limits_;
  std::vector<int> waiting_;  // for so many units
  std::vector<std::vector<int>> readers_;
  std::set<Ready> ready_;
  std::set<int> begun_;    // early units that nothing has waited for
  int64_t under_way_ = 0;  // bytes of theirs
};

class Delayer {
 public:
  Delayer(const std::vector<OrderedUnit>& units, const std::vector<int64_t>& value_bytes,
          Waves& waves)
      : units_(units), value_bytes_(value_bytes), waves_(waves), place_(units.size()),
        needed_by_(units.size()), readers_(value_bytes.size()) {
    for (size_t w = 0; w < waves.size(); ++w)
      for (const int unit : waves[w]) place_[static_cast<size_t>(unit)] = w;
    for (size_t u = 0; u < units.size(); ++u) {
      for (const int source : units[u].reads)
        needed_by_[static_cast<size_t>(source)].push_back(static_cast<int>(u));
      for (const int value : units[u].reads_values)
        readers_[static_cast<size_t>(value)].push_back(static_cast<int>(u));
    }
  }

  // The last ones first, so that what needs a kernel has its place.
  void run() {
    for (size_t w = waves_.size(); w-- > 0;) {
      if (waves_[w].size() != 1) continue;
      const int unit = waves_[w].front();
      const int64_t gain = units_[static_cast<size_t>(unit)].result_bytes;
      if (gain == 0) continue;
      const size_t place = std::min(first_need(unit), first_late(w)) - 1;  // others moved up
      if (place > w && gain > bytes_kept_for(unit, place)) move(w, place);
    }
  }

 private:
  size_t first_need(int unit) const {
    size_t first = waves_.size();
    for (const int other : needed_by_[static_cast<size_t>(unit)])
      first = std::min(first, place_[static_cast<size_t>(other)]);
    return first;
  }

  // The first wave behind `w` that would rather have kernels run before.
  size_t first_late(size_t w) const {
    while (++w < waves_.size())
      if (units_[static_cast<size_t>(waves_[w].front())].turn == Turn::kLate) break;
    return w;
  }

  // Of values that nothing else reads at `place` or later.
  int64_t bytes_kept_for(int unit, size_t place) const {
    int64_t bytes = 0;
    for (const int value : units_[static_cast<size_t>(unit)].reads_values) {
      const std::vector<int>& readers = readers_[static_cast<size_t>(value)];
      if (std::none_of(readers.begin(), readers.end(), [&](int reader) {
            return reader != unit && place_[static_cast<size_t>(reader)] >= place;
          }))
        bytes += value_bytes_[static_cast<size_t>(value)];
    }
    return bytes;
  }

  void move(size_t from, size_t to) {
    const auto begin = waves_.begin() + static_cast<ptrdiff_t>(from);
    std::rotate(begin, begin + 1, waves_.begin() + static_cast<ptrdiff_t>(to) + 1);
    for (size_t w = from; w <= to; ++w)
      for (const int unit : waves_[w]) place_[static_cast<size_t>(unit)] = w;
  }

  const std::vector<OrderedUnit>& units_;
  const std::vector<int64_t>& value_bytes_;
  Waves& waves_;
  std::vector<size_t> place_;  // of each unit among the waves
  std::vector<std::vector<int>> needed_by_;
  std::vector<std::vector<int>> readers_;  // of each value
};

}  // namespace

Waves find_waves(const std::vector<OrderedUnit>& units, const WaveLimits& limits) {
  return Sorter(units, limits).waves();
}

bool take_turns(const std::vector<OrderedUnit>& units, const std::vector<int>& wave,
                const WaveLimits& limits) {
  return wave.size() > 1 && !is_small(units[static_cast<size_t>(wave.front())], limits);
}

void delay_kernels(const std::vector<OrderedUnit>& units, const std::vector<int64_t>& value_bytes,
                   Waves& waves) {
  Delayer(units, value_bytes, waves).run();
}

}  // namespace mlcc::fusion
