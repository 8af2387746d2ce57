// Random graphs executed by the reference interpreter: node by node as they are, node by node after
// the graph passes, and in fused kernels. All three give the same bits, NaN payloads and the order
// of sums of floats apart.
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>

#include "driver/interpret.h"
#include "graph/passes/pipeline.h"
#include "graph/text.h"
#include "random_graphs.h"
#include "schedule/contraction.h"
#include "seeds.h"
#include "support/error.h"

namespace mlcc::fuzz {
namespace {

using driver::HostTensor;
using Sizes = std::map<std::string, int64_t>;

template <typename T>
void store(HostTensor& tensor, size_t i, T value) {
  std::memcpy(tensor.bytes.data() + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
T load(const HostTensor& tensor, size_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

HostTensor random_tensor(const graph::TensorType& type, const Sizes& sizes,
                         std::mt19937_64& random) {
  const auto evaluate = [&](const std::vector<SymExpr>& all) {
    std::vector<int64_t> values;
    for (const SymExpr& e : all)
      values.push_back(
          e.evaluate([&](std::string_view name) { return sizes.at(std::string(name)); }));
    return values;
  };
  HostTensor tensor =
      driver::make_host_tensor(type.dtype, evaluate(type.shape), evaluate(type.dense_or_strides()));
  const size_t elements = tensor.bytes.size() / static_cast<size_t>(dtype_size(type.dtype));
  static const std::vector<float> kReals = {0.0F, -0.0F,  1.0F,     -1.0F, 0.5F,
                                            2.5F, -3.75F, INFINITY, NAN};
  for (size_t i = 0; i < elements; ++i) {
    const auto integer = static_cast<int64_t>(random() % 9) - 4;
    const float real = random() % 8 == 0 ? kReals[random() % kReals.size()]
                                         : static_cast<float>(random() % 4096) / 1024.0F - 2.0F;
    if (type.dtype == DType::kF32) store(tensor, i, real);
    if (type.dtype == DType::kI32) store(tensor, i, static_cast<int32_t>(integer));
    if (type.dtype == DType::kI64) store(tensor, i, integer);
    if (type.dtype == DType::kBool) store(tensor, i, static_cast<uint8_t>(integer > 0));
  }
  return tensor;
}

bool is_same(const HostTensor& a, const HostTensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  if (a.dtype != DType::kF32) return a.bytes == b.bytes;
  for (size_t i = 0; i < a.bytes.size() / sizeof(float); ++i) {
    const float x = load<float>(a, i);
    const float y = load<float>(b, i);
    if (std::isnan(x) != std::isnan(y)) return false;
    if (!std::isnan(x) && load<uint32_t>(a, i) != load<uint32_t>(b, i)) return false;
  }
  return true;
}

void compare(std::string_view what, const std::vector<HostTensor>& found,
             const std::vector<HostTensor>& expected, const graph::Graph& graph) {
  MLCC_CHECK(found.size() == expected.size(), what, ": number of outputs");
  for (size_t i = 0; i < found.size(); ++i)
    MLCC_CHECK(is_same(found[i], expected[i]), what, ": output ", i, " differs\n",
               graph::print(graph));
}

void check(uint64_t seed) {
  RandomGraphOptions options;
  options.nodes = 3 + static_cast<int>(seed % 14);
  options.symbols = seed % 2 == 0;
  options.float_reductions = false;
  const auto graph = random_graph(seed, options);
  std::mt19937_64 random(seed);
  const Sizes sizes = {{"s0", 2 + static_cast<int64_t>(random() % 6)},
                       {"s1", 2 + static_cast<int64_t>(random() % 4)}};
  std::vector<HostTensor> inputs;
  for (const auto& input : graph->inputs())
    inputs.push_back(random_tensor(input->type(), sizes, random));

  const auto expected = driver::interpret_graph(*graph, inputs, sizes, {});
  const auto rewritten = graph->clone();
  constexpr std::array<int64_t, 3> kVectorBits = {512, 256, 128};
  const schedule::Machine machine{.vector_bits = kVectorBits[seed % kVectorBits.size()]};
  graph::PipelineOptions passes;
  passes.tiles = graph::TileOptions{
      [&](DType accumulator) { return schedule::tile_columns(machine, accumulator); }};
  graph::run_pipeline(*rewritten, passes);
  compare("after passes", driver::interpret_graph(*rewritten, inputs, sizes, {}), expected, *graph);
  driver::InterpretOptions fused;
  fused.fuse = true;
  fused.seed = seed;
  fused.vector_bits = machine.vector_bits;
  compare("fused", driver::interpret_graph(*rewritten, inputs, sizes, fused), expected, *rewritten);
}

}  // namespace
}  // namespace mlcc::fuzz

int main(int argc, char** argv) { return mlcc::fuzz::run_seeds(argc, argv, mlcc::fuzz::check); }
