// Lowering a group, from above: a recording run over its nodes, axes and schedule from what that
// found, the phases, and the kernel around them. The parts:
//   evaluator    scalar code of one element        group_nodes  levels and positions of the nodes
//   recording    what a run without loops learns   context      what all parts share
//   nest_axes    axes of the loops                 nest         the loops around rows
//   rows         what happens in a row             reduction    loops of one pass's reductions
//   pieces       reductions cut into parts         tiles        loads exchanged through tiles
//   online       reductions of several levels in one pass
//   kernel_buffers  parameters and errors            segments     loops between the ends of parts
//   interchange  loops over rows around those over columns
//   requests     prefetches of what later iterations read
//   words        copies of whole words
// Groups of one update or scan, and those that begin with a contraction or attention, have
// lowerings of their own: updates, scans, contraction, attention.
#include "lower/lower.h"

#include <cctype>
#include <optional>
#include <utility>

#include "fusion/online.h"
#include "loop/text.h"
#include "lower/attention/attention.h"
#include "lower/attention/attention_gradients.h"
#include "lower/axes/words.h"
#include "lower/context.h"
#include "lower/contractions/contraction.h"
#include "lower/contractions/winograd.h"
#include "lower/element/evaluator.h"
#include "lower/element/segments.h"
#include "lower/group_nodes.h"
#include "lower/loops/nest.h"
#include "lower/loops/requests.h"
#include "lower/loops/tiles.h"
#include "lower/reductions/pieces.h"
#include "lower/reductions/rows.h"
#include "lower/scans_and_updates/scans.h"
#include "lower/scans_and_updates/updates.h"

namespace mlcc::lower {

using graph::Node;
using loop::Block;
using loop::Expr;
using loop::Variable;
using Index = std::vector<SymExpr>;

namespace {

// -- the recording run

// Every node once, every output stored.
Recording record(const Context& context, const GroupNodes& nodes) {
  return record(context, context.group.domain, [&](Evaluator& evaluator, Block& block) {
    evaluator.push(&block);
    for (const Node* node : context.group.nodes) {
      const Index position = nodes.read_position(*node, evaluator.assumptions());
      Expr element;
      if (is_reduction(*node)) {
        element = evaluator.evaluate(node->operand(0), position);
        if (!arg_dim_index(*node, position).equals_constant(0))
          evaluator.index_expr(arg_dim_index(*node, position));
        element = Variable::make(context.arena, node->result()->type().dtype,
                                 context.arena.fresh_name("row"));
      } else {
        element = evaluator.evaluate_node(*node, position);
      }
      evaluator.define_row(node->result(), element);
      if (nodes.is_output(node->result()))
        evaluator.store(node->result(), nodes.position(*node), element);
    }
    evaluator.pop();
  });
}

// -- the phases

// Whether what a kernel passes over comes from memory again in each pass.
bool is_large(const Context& context) {
  return context.expected(context.group.ideal_bytes) > context.machine.second_level_bytes;
}

// Pieces can be combined afterwards if nothing but row values waits for the reductions, and
// reductions that repairs allow to take in the same pass, where that saves memory traffic.
bool can_be_cut(const Context& context, const GroupNodes& nodes) {
  const auto hint = [&](std::string_view name) { return context.hint(name); };
  const bool may_be_online =
      !context.machine.is_gpu && is_large(context) && fusion::has_long_pieces(context.group, hint);
  for (const Node* node : context.group.nodes) {
    if (nodes.level_of(node->result()) == 0) continue;
    if (is_reduction(*node)
            ? !may_be_online || !context.group.repairs.count(node)
            : !nodes.per_row(*node) && (!may_be_online || nodes.is_output(node->result())))
      return false;
  }
  return !nodes.reductions().empty();
}

// Rows of unknown length keep nothing on the stack. Those of a CPU that are short keep there what
// costs much and has no other place, or none in outputs that go past the caches, in code of their
// own.
class RowsByLength {
 public:
  RowsByLength(const Context& context, const GroupNodes& nodes, Nest& nest, Evaluator& evaluator,
               int64_t ops)
      : arena_(context.arena), evaluator_(evaluator), extent_(nest.row_extent()),
        rows_(context, nodes, nest, evaluator) {
    rows_.add_row_buffers();
    const bool may_be_short = !context.machine.is_gpu && ops <= kMostOps &&
                              !extent_.as_constant() && context.expected(extent_) <= kShortRow;
    if (!may_be_short) return;
    Rows rows(context, nodes, nest, evaluator, kShortRow);
    const bool streams =
        context.moves_much() && rows_.keeps_in_outputs() && !rows.keeps_in_outputs();
    const bool keeps_more =
        rows.num_kept() > rows_.num_kept() ||
        (rows.num_kept() == rows_.num_kept() && rows.kept_levels() < rows_.kept_levels());
    if (!streams && !keeps_more) return;
    rows.add_row_buffers();
    short_rows_.emplace(std::move(rows));
  }

  Rows& rows() { return rows_; }

  void emit(Block& block) {
    if (!short_rows_) return rows_.emit(block);
    Block of_short, of_long;
    const Evaluator::Definitions before = evaluator_.definitions();
    short_rows_->emit(of_short);
    evaluator_.restore(before);
    rows_.emit(of_long);
    const Expr is_short =
        loop::apply(arena_, loop::ScalarOp::kLe,
                    {loop::from_symbolic(arena_, extent_), loop::int_constant(arena_, kShortRow)});
    block.push_back(loop::If::make(arena_, is_short, std::move(of_short), std::move(of_long)));
  }

 private:
  static constexpr int64_t kShortRow = 8192;  // elements: as many f32 as a first-level cache holds
  static constexpr int64_t kMostOps = 96;  // of a point: twice as much code takes time to compile

  loop::Arena& arena_;
  Evaluator& evaluator_;
  const SymExpr extent_;
  Rows rows_;
  std::optional<Rows> short_rows_;
};

void add_phases(const Context& context, const GroupNodes& nodes, const Recording& recording,
                Nest& nest, Evaluator& evaluator, LoweredKernel& lowered) {
  const schedule::Schedule& schedule = nest.schedule();
  RowsByLength rows_by_length(context, nodes, nest, evaluator, recording.ops);
  Rows& rows = rows_by_length.rows();
  lowered.is_online = rows.is_online();
  const Nest::Row whole = [&](Block& block) { rows_by_length.emit(block); };
  if (context.machine.is_gpu && schedule.tile_axis >= 0)
    return add_phase(Tiles(context, nest, evaluator).build(recording, whole), lowered);
  if (schedule.pieces == 1) return add_phase(nest.build(1, schedule.group, whole), lowered);
  const Pieces pieces(context, nest, evaluator, rows.piece_reducers());
  add_phase(nest.build(schedule.pieces, schedule.group,
                       [&](Block& block) { rows.emit_piece(pieces, block); }),
            lowered);
  const bool threads_share = nest.vector_is_reduced() && context.machine.is_gpu;
  add_phase(nest.build(1, threads_share ? kCombineGroup : schedule.group,
                       [&](Block& block) { rows.emit_combined(pieces, block); }),
            lowered);
  lowered.kernel.buffers = pieces.partials();
  lowered.scratch = pieces.scratch();
}

// -- the kernel

bool mentions(const std::string& text, const std::string& name) {
  for (size_t at = text.find("%" + name); at != std::string::npos;
       at = text.find("%" + name, at + 1)) {
    const char next = text[at + 1 + name.size()];
    if (!std::isalnum(static_cast<unsigned char>(next)) && next != '_' && next != '.') return true;
  }
  return false;
}

// Completes a kernel that has its phases and its scratch buffers.
void finish(const Context& context, const KernelBuffers& buffers, LoweredKernel& lowered) {
  loop::Kernel& kernel = lowered.kernel;
  kernel.name = "k";
  kernel.buffers.insert(kernel.buffers.begin(), buffers.buffers().begin(), buffers.buffers().end());
  kernel.errors = buffers.errors();
  lowered.buffers = buffers.values();
  const std::string text = loop::print(kernel);
  for (const graph::Symbol& symbol : context.graph.symbols()) {
    if (!mentions(text, symbol.name)) continue;
    kernel.sizes.push_back(Variable::make(context.arena, DType::kI64, symbol.name));
    lowered.sizes.push_back(SymExpr::symbol(symbol.name));
  }
  for (const Node* node : context.group.nodes) {
    if (!lowered.label.empty()) lowered.label += ", ";
    lowered.label += graph::op_info(node->op()).text;
  }
  lowered.kernel = loop::canonicalize(context.arena, kernel);
}

// Passes over one domain, as many as the group's reductions ask for.
void lower_passes(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered) {
  const GroupNodes nodes(context.plan, context.group);
  const Recording recording = record(context, nodes);
  const NestAxes axes(context.group.domain, context.group.reduced, recording.indices,
                      context.graph.assumptions());
  schedule::NestFacts facts = facts_of(recording, axes);
  facts.carried_values = static_cast<int64_t>(nodes.reductions().size());
  facts.can_be_cut = can_be_cut(context, nodes);
  lowered.schedule = context.choose(facts);
  std::vector<Cut> cuts;
  if (!context.machine.is_gpu) cuts = find_cuts(recording, axes, lowered.schedule);
  for (const Cut& cut : cuts)  // an axis is walked in blocks or in segments
    if (static_cast<int>(cut.axis) == lowered.schedule.tile_axis) lowered.schedule.tile_axis = -1;
  Evaluator evaluator(context, buffers, context.group.domain, &axes, nullptr);
  Nest nest(context, axes, lowered.schedule, evaluator);
  nest.set_cuts(std::move(cuts));
  add_phases(context, nodes, recording, nest, evaluator, lowered);
}

LoweredKernel lower(const Context& context) {
  KernelBuffers buffers(context);
  LoweredKernel lowered;
  const Node& first = *context.group.nodes.front();
  const graph::OpClass op_class = graph::op_info(first.op()).op_class;
  if (op_class == graph::OpClass::kUpdate)
    lower_update(context, first, buffers, lowered);
  else if (op_class == graph::OpClass::kScan)
    lower_scan(context, first, buffers, lowered);
  else if (op_class == graph::OpClass::kContraction && is_transformed(context))
    lower_winograd(context, buffers, lowered);
  else if (op_class == graph::OpClass::kContraction)
    lower_contraction(context, buffers, lowered);
  else if (first.op() == graph::Op::kAttendGradients)
    lower_attention_gradients(context, buffers, lowered);
  else if (op_class == graph::OpClass::kAttention)
    lower_attention(context, buffers, lowered);
  else
    lower_passes(context, buffers, lowered);
  request_rows(context, lowered.kernel);
  finish(context, buffers, lowered);
  return lowered;
}

}  // namespace

LoweredKernel lower_group(const graph::Graph& graph, const fusion::FusionPlan& plan,
                          const fusion::Group& group, const schedule::Machine& machine,
                          loop::Arena& arena) {
  const Context context{graph, plan, group, machine, arena};
  if (!may_go_by_words(context)) return lower(context);
  const Words words = words_of(context, record(context, GroupNodes(plan, group)));
  if (words.elements == 1) return lower(context);
  fusion::Group of_words = group;
  of_words.domain.back() = 1;
  return lower({graph, plan, of_words, machine, arena, words});
}

}  // namespace mlcc::lower
