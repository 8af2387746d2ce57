#include "byte_count.h"

#include <algorithm>
#include <utility>

namespace mlcc_emulator {

ByteCounter::ByteCounter(std::vector<MemoryRange> ranges, int threads_per_block)
    : iterations_(threads_per_block) {
  for (const MemoryRange& range : ranges) buffers_.push_back({{range}, {}});
  elsewhere_.bytes.range = {0, 0, MemoryKind::kHost};
  begin_block();
}

void ByteCounter::begin_block() {
  for (size_t i = 0; i < iterations_.size(); ++i) begin_iteration(static_cast<int>(i));
}

void ByteCounter::begin_iteration(int thread) {
  iterations_[thread].number = ++last_iteration_;
  iterations_[thread].used = 0;
}

ByteCounter::Buffer* ByteCounter::find(uintptr_t address) {
  auto next = std::upper_bound(
      buffers_.begin(), buffers_.end(), address,
      [](uintptr_t value, const Buffer& buffer) { return value < buffer.bytes.range.begin; });
  if (next == buffers_.begin() || !std::prev(next)->bytes.range.contains(address)) return nullptr;
  return &*std::prev(next);
}

void ByteCounter::grow(Iteration& iteration) {
  constexpr size_t smallest = 64;
  std::vector<Slot> old = std::move(iteration.slots);
  iteration.slots.assign(std::max(smallest, 2 * old.size()), {});
  iteration.used = 0;
  for (const Slot& slot : old)
    if (slot.iteration == iteration.number) slot_of(iteration, slot.address) = slot;
}

ByteCounter::Slot& ByteCounter::slot_of(Iteration& iteration, uintptr_t address) {
  if (2 * iteration.used >= iteration.slots.size()) grow(iteration);
  const size_t mask = iteration.slots.size() - 1;
  for (size_t i = address * 0x9E3779B97F4A7C15u >> 20;; ++i) {
    Slot& slot = iteration.slots[i & mask];
    if (slot.iteration == iteration.number && slot.address == address) return slot;
    if (slot.iteration == iteration.number) continue;
    ++iteration.used;
    slot = {address, iteration.number, {}};
    return slot;
  }
}

bool ByteCounter::touch(int thread, const void* pointer, size_t bytes, bool is_store) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  Buffer* found = find(address);
  const bool inside = found && found->bytes.range.contains(address + bytes - 1);
  Buffer& buffer = inside ? *found : elsewhere_;
  (is_store ? buffer.bytes.written_total : buffer.bytes.read_total) += bytes;
  if (!inside) return false;
  if (buffer.most.empty()) buffer.most.resize(buffer.bytes.range.size);
  for (uintptr_t i = address; i < address + bytes; ++i) {
    Most& count = slot_of(iterations_[thread], i).count;
    Most& most = buffer.most[i - buffer.bytes.range.begin];
    if (is_store)
      most.writes = std::max(most.writes, ++count.writes);
    else
      most.reads = std::max(most.reads, ++count.reads);
  }
  return true;
}

std::vector<BufferBytes> ByteCounter::result() const {
  std::vector<BufferBytes> result;
  for (const Buffer& buffer : buffers_) {
    if (buffer.most.empty()) continue;
    BufferBytes bytes = buffer.bytes;
    for (const Most& most : buffer.most) {
      bytes.read += most.reads;
      bytes.written += most.writes;
    }
    result.push_back(bytes);
  }
  if (elsewhere_.bytes.read_total + elsewhere_.bytes.written_total > 0)
    result.push_back(elsewhere_.bytes);
  return result;
}

}  // namespace mlcc_emulator
