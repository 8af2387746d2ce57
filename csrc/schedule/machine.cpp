#include "schedule/machine.h"

#include <charconv>

namespace mlcc::schedule {
namespace {

struct Model {
  int capability;
  Machine machine;
};

#define MACHINE(field, value) machine.field = value;

Machine sm_80() {
  Machine machine;
#include "schedule/machines/sm_80.def"
  return machine;
}

Machine sm_90() {
  Machine machine;
#include "schedule/machines/sm_90.def"
  return machine;
}

Machine sm_100() {
  Machine machine;
#include "schedule/machines/sm_100.def"
  return machine;
}

#undef MACHINE

int capability_of(std::string_view architecture) {
  int capability = 0;
  const size_t digits = architecture.find_first_of("0123456789");
  if (digits == std::string_view::npos) return 0;
  std::from_chars(architecture.data() + digits, architecture.data() + architecture.size(),
                  capability);
  return capability;
}

}  // namespace

int64_t Machine::bytes_in_flight_per_thread() const {
  const int64_t in_flight = memory_gb_per_s * memory_latency_ns;  // GB/s times ns is bytes
  return in_flight / (multiprocessors * threads_per_multiprocessor) + 1;
}

int64_t vector_registers(int64_t vector_bits) {
  return vector_bits == 512 || vector_bits == 128 ? 32 : 16;
}

Machine gpu_machine(std::string_view architecture) {
  const Model models[] = {{80, sm_80()}, {90, sm_90()}, {100, sm_100()}};
  Machine machine = models[0].machine;
  for (const Model& model : models)
    if (model.capability <= capability_of(architecture)) machine = model.machine;
  machine.is_gpu = true;
  return machine;
}

}  // namespace mlcc::schedule
