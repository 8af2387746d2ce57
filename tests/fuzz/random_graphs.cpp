// Random graphs through printer, parser, verifier and passes: texts are read back to the same text,
// every pass and every prefix of the rewrites leaves a right graph, and a second run of the
// pipeline finds nothing to do.
#include "random_graphs.h"

#include <string_view>

#include "graph/passes/pipeline.h"
#include "graph/strided_view.h"
#include "graph/text.h"
#include "seeds.h"
#include "support/error.h"

namespace mlcc::fuzz {
namespace {

void check_text(const graph::Graph& graph) {
  graph::verify(graph);
  const std::string text = graph::print(graph);
  const auto again = graph::parse_graph(text);
  graph::verify(*again);
  MLCC_CHECK(graph::print(*again) == text, "the text is read back to another one");
  MLCC_CHECK(graph::print(*graph.clone()) == text, "the clone differs");
}

// An output as its type declares it, and the strides that it has if it is a view of another value:
// they follow from its base, and random graphs declare others.
struct Output {
  graph::TensorType type;
  std::vector<SymExpr> strides;
};

std::vector<Output> outputs_of(const graph::Graph& graph) {
  std::vector<Output> outputs;
  for (graph::Value* output : graph.outputs())
    outputs.push_back({output->type(), graph::strided_view(output)->strides});
  return outputs;
}

// At one size, since equal strides may be written in several ways. That of a single element means
// nothing.
bool lie_alike(const std::vector<SymExpr>& shape, const std::vector<SymExpr>& a,
               const std::vector<SymExpr>& b) {
  const auto value_of = [](std::string_view symbol) -> int64_t { return symbol == "s0" ? 5 : 7; };
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d].evaluate(value_of) != 1 && a[d].evaluate(value_of) != b[d].evaluate(value_of))
      return false;
  return true;
}

// What callers see of the outputs: types, strides (those declared or those that the view had), and
// that they are different tensors.
void check_outputs(const graph::Graph& graph, const std::vector<Output>& expected) {
  const std::vector<Output> found = outputs_of(graph);
  MLCC_CHECK(found.size() == expected.size(), "outputs were lost");
  for (size_t i = 0; i < found.size(); ++i) {
    const auto& [type, strides] = expected[i];
    MLCC_CHECK(found[i].type.dtype == type.dtype && found[i].type.shape == type.shape &&
                   (lie_alike(type.shape, found[i].strides, strides) ||
                    lie_alike(type.shape, found[i].strides, type.dense_or_strides())),
               "output ", i, " was ", graph::print(type), ", is ", graph::print(found[i].type));
  }
}

void check_views(const graph::Graph& graph) {
  for (const graph::Node* node : graph.nodes()) {
    const auto view = graph::strided_view(node->result());
    MLCC_CHECK(view && view->shape == node->result()->type().shape, "a view of another shape");
    MLCC_CHECK(view->strides.size() == view->shape.size(), "a view without strides");
  }
}

int64_t run_passes(graph::Graph& graph, int64_t bisect) {
  int64_t rewrites = 0;
  graph::PipelineOptions options;
  options.verify = true;
  options.bisect = bisect;
  options.report = [&](const graph::PassReport& report) { rewrites += report.rewrites; };
  graph::run_pipeline(graph, options);
  return rewrites;
}

void check(uint64_t seed) {
  RandomGraphOptions options;
  options.nodes = 5 + static_cast<int>(seed % 20);
  options.symbols = seed % 3 != 0;
  const auto graph = random_graph(seed, options);
  check_text(*graph);
  check_views(*graph);
  const auto types = outputs_of(*graph);

  const auto whole = graph->clone();
  const int64_t rewrites = run_passes(*whole, -1);
  check_outputs(*whole, types);
  check_text(*whole);
  const std::string once = graph::print(*whole);
  MLCC_CHECK(run_passes(*whole, -1) == 0, "the pipeline is not done after one run: ", once);

  const auto part = graph->clone();
  const int64_t limit = static_cast<int64_t>(seed) % (rewrites + 1);
  MLCC_CHECK(run_passes(*part, limit) == limit, "the budget of rewrites was not kept");
  check_outputs(*part, types);
}

}  // namespace
}  // namespace mlcc::fuzz

int main(int argc, char** argv) { return mlcc::fuzz::run_seeds(argc, argv, mlcc::fuzz::check); }
