#include "fusion/order.h"

#include <cstddef>
#include <utility>

namespace mlcc::fusion {
namespace {

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

  std::vector<std::vector<int>> waves() {
    std::vector<std::vector<int>> all;
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
    if (waiting_[static_cast<size_t>(index)] == 0) ready_.insert({unit(index).last, index});
  }

  bool is_small(int index) const {
    return unit(index).work > 0 && unit(index).work <= limits_.of_kernel;
  }

  // The first unit, and what runs beside it. None of them depends on another: all are ready.
  std::vector<int> take_wave() {
    std::vector<int> wave = {ready_.begin()->second};
    ready_.erase(ready_.begin());
    if (!is_small(wave.front())) return wave;
    int64_t work = unit(wave.front()).work;
    for (auto next = ready_.begin(); next != ready_.end();) {
      const int index = next->second;
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
  std::set<std::pair<int, int>> ready_;  // by last node
};

}  // namespace

std::vector<std::vector<int>> find_waves(const std::vector<OrderedUnit>& units,
                                         const WaveLimits& limits) {
  return Sorter(units, limits).waves();
}

}  // namespace mlcc::fusion
