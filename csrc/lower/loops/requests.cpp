#include "lower/loops/requests.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "loop/cost.h"
#include "loop/mutator.h"
#include "loop/varying.h"

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::For;
using loop::Let;
using loop::Load;
using loop::LoopKind;
using loop::Reduce;
using loop::ScalarOp;
using loop::Stmt;
using loop::Variable;

namespace {

// What is on its way at a time: enough to wait for all of it at once, little enough to stay close.
constexpr int64_t kBytesAhead = 16 * 1024;
constexpr int64_t kFewestRowsAhead = 2, kMostRowsAhead = 8;
// Rows that an earlier pass has read are asked for if they take at most this part of a second-level
// cache: what the pass works on stays there beside them.
constexpr int64_t kPartOfCache = 4;
constexpr int64_t kBytesOfElement = 4;  // about
// Pages end here, and prefetchers with them: pieces of rows that lie so far apart are asked for
// unless they are long.
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kLongPieceBytes = 4 * kPageBytes;

// Expressions as they are in the later iteration, with lets in place of their variables.
class InLaterIteration : public loop::Mutator {
 public:
  InLaterIteration(loop::Arena& arena, const LaterIteration& iteration)
      : Mutator(arena), iteration_(iteration) {
    for (const Let* let : iteration.lets) outer_[let->variable] = let->value;
  }

  void add(const Let& let) { inner_[let.variable] = let.value; }

 protected:
  Expr rewrite(Expr e) override {
    const auto* variable = loop::as<Variable>(e);
    if (variable == nullptr) return e;
    if (variable == iteration_.variable) return iteration_.later;
    if (const auto inner = inner_.find(variable); inner != inner_.end())
      return mutate(inner->second);
    const auto outer = outer_.find(variable);
    if (outer == outer_.end()) return e;
    const Expr value = mutate(outer->second);
    return value == outer->second ? e : value;
  }

 private:
  const LaterIteration& iteration_;
  std::unordered_map<const Variable*, Expr> outer_, inner_;
};

// What the statements of a block bind, but for lets.
loop::VariableSet bound_by_loops(const Block& block) {
  loop::VariableSet bound;
  loop::for_each_stmt(block, [&](Stmt stmt) {
    if (stmt->kind == loop::StmtKind::kLet) return;
    for (const Variable* variable : loop::bound_variables(stmt)) bound.insert(variable);
  });
  return bound;
}

// Whether an index can be computed in front of a block that binds `bound`.
bool is_known_before(const std::vector<Expr>& index, const loop::VariableSet& bound) {
  bool known = true;
  loop::for_each_expr(index, [&](Expr e) {
    if (const auto* variable = loop::as<Variable>(e)) known &= bound.count(variable) == 0;
    if (const auto* load = loop::as<Load>(e))
      known &= load->mask == nullptr && load->buffer->scope == loop::Scope::kGlobal &&
               load->buffer->access == loop::Access::kIn;
  });
  return known;
}

// Where a row that was read begins, in the first iteration of the loops around it.
using RowRead = std::pair<const loop::Buffer*, int64_t>;

// A loop around the current place, and in its body so far the lets and what rows were read.
struct Around {
  const Variable* variable;
  Expr begin, end;
  std::vector<const Let*> lets;
  std::map<RowRead, int> reads;  // how often
};

class RowRequests {
 public:
  RowRequests(const Context& context, const Block& phase) : context_(context) {
    loop::for_each_stmt(phase, [&](Stmt stmt) {
      if (const auto* loop = loop::as<For>(stmt)) count_reads(*loop);
      if (const auto* reduce = loop::as<Reduce>(stmt)) count_reads(*reduce);
      if (const auto* request = loop::as<loop::Prefetch>(stmt)) asked_.insert(request->buffer);
    });
  }

  Block in_block(const Block& block) {
    Block result;
    for (Stmt stmt : block) {
      if (const auto* loop = loop::as<For>(stmt)) {
        Block body = in_loop(*loop, loop->body);
        stmt = For::make(context_.arena, loop->variable, loop->begin, loop->end, loop->mode,
                         std::move(body));
      } else if (const auto* reduce = loop::as<Reduce>(stmt)) {
        Block body = in_loop(*reduce, reduce->body);
        stmt =
            Reduce::make(context_.arena, reduce->variable, reduce->begin, reduce->end, reduce->mode,
                         reduce->carried, std::move(body), reduce->yields, reduce->combine);
      } else if (const auto* branch = loop::as<loop::If>(stmt)) {
        stmt = loop::If::make(context_.arena, branch->condition, in_branch(branch->then_body),
                              in_branch(branch->else_body));
      } else if (const auto* let = loop::as<Let>(stmt)) {
        if (!around_.empty()) around_.back().lets.push_back(let);
      }
      result.push_back(stmt);
    }
    return result;
  }

 private:
  template <typename Loop>
  void count_reads(const Loop& row) {
    if (row.mode.kind != LoopKind::kVector) return;
    std::set<const loop::Buffer*> buffers;  // membership only
    for (const Stmt stmt : row.body)
      loop::for_each_expr(loop::operands(stmt), [&](Expr e) {
        if (const auto* load = loop::as<Load>(e)) buffers.insert(load->buffer);
      });
    rows_that_read_.insert(buffers.begin(), buffers.end());
  }

  // What it reads and binds is not known behind it, and a later iteration may not reach it.
  Block in_branch(const Block& block) {
    const std::vector<Around> around = around_;
    ++num_branches_;
    Block result = in_block(block);
    --num_branches_;
    around_ = around;
    return result;
  }

  template <typename Loop>
  Block in_loop(const Loop& loop, const Block& body) {
    if (loop::has_lanes(loop.mode.kind)) return in_row(loop, body);
    around_.push_back({loop.variable, loop.begin, loop.end, {}, {}});
    Block result = in_block(body);
    around_.pop_back();
    return result;
  }

  // A vector loop: a row of the loops around it.
  template <typename Loop>
  Block in_row(const Loop& row, Block body) {
    if (around_.empty() || row.mode.kind != LoopKind::kVector) return body;
    const auto expected = expected_iterations(row.begin, row.end);
    if (!expected) return body;
    const int64_t elements = std::max<int64_t>(1, *expected);
    std::vector<const Let*> lets;
    for (const Around& each : around_) lets.insert(lets.end(), each.lets.begin(), each.lets.end());
    const std::set<RowRead> reads = reads_of(row, body);
    if (num_branches_ == 0) body = with_gathered_rows(row, std::move(body), elements);
    body = with_next_pieces(row, std::move(body), elements, lets);
    if (!writes(body) || computes_much(body))
      body = with_next_row(row, std::move(body), elements, lets);
    body = with_next_page(row, std::move(body));
    for (Around& each : around_)
      for (const RowRead& read : reads) ++each.reads[read];
    return body;
  }

  static int64_t rows_ahead(int64_t row_bytes, int64_t fewest) {
    return std::clamp(kBytesAhead / row_bytes, fewest, kMostRowsAhead);
  }

  // At places from memory: of the next rows of the innermost loop, but none behind its last one.
  template <typename Loop>
  Block with_gathered_rows(const Loop& row, Block body, int64_t elements) const {
    loop::Arena& arena = context_.arena;
    const Around& inner = around_.back();
    const Expr next =
        plus(inner.variable, rows_ahead(elements * kBytesOfElement, kFewestRowsAhead));
    const Expr last = loop::apply(arena, ScalarOp::kSub, {inner.end, loop::int_constant(arena, 1)});
    const LaterIteration later{inner.variable, loop::apply(arena, ScalarOp::kMin, {next, last}),
                               inner.lets};
    if (!is_as_long(row, later)) return body;
    return with_requests(
        arena, std::move(body), later, [&](const Load& load, const std::vector<Expr>& indices) {
          return reads_memory(indices) && may_ask_for(*load.buffer) && is_at_known_places(indices);
        });
  }

  // Of pieces that lie apart: where they are is known.
  template <typename Loop>
  Block with_next_pieces(const Loop& row, Block body, int64_t elements,
                         const std::vector<const Let*>& lets) const {
    const int64_t ahead = rows_ahead(elements * kBytesOfElement, kFewestRowsAhead);
    for (size_t i = around_.size(); i-- > 0;) {
      const Variable* variable = around_[i].variable;
      body = with_requests(context_.arena, std::move(body), {variable, plus(variable, ahead), lets},
                           [&](const Load& load, const std::vector<Expr>& indices) {
                             return may_ask_for(*load.buffer) &&
                                    is_next_piece(load, indices, i, row, elements);
                           });
    }
    return body;
  }

  // Of the row behind one that an earlier pass has read: it comes from memory while this pass
  // computes on what is close already.
  template <typename Loop>
  Block with_next_row(const Loop& row, Block body, int64_t elements,
                      const std::vector<const Let*>& lets) const {
    int64_t bytes = elements * kBytesOfElement;  // that an iteration of loop number i takes in
    for (size_t i = around_.size(); i-- > 0;) {
      if (bytes > context_.machine.second_level_bytes / kPartOfCache) break;
      const Around& each = around_[i];
      const int64_t ahead = rows_ahead(bytes, 1);
      const int64_t moved =
          begin_moves(row, each.variable);  // where rows are blocks of longer ones
      const Variable* variable = moved == 0 ? each.variable : row.variable;
      const LaterIteration later{variable, plus(variable, moved == 0 ? ahead : ahead * moved),
                                 lets};
      body = with_requests(context_.arena, std::move(body), later,
                           [&](const Load& load, const std::vector<Expr>& indices) {
                             return !reads_memory(indices) && may_ask_for(*load.buffer) &&
                                    is_read_again(load, i, row);
                           });
      bytes *= std::max<int64_t>(1, expected_iterations(each.begin, each.end).value_or(1));
    }
    return body;
  }

  // Of what is read for the first time and one element after the other: a page ahead, where
  // prefetchers begin anew and wait, while the kernel computes on. One that computes little and
  // reads again what it has read asks for it then, if at all.
  template <typename Loop>
  Block with_next_page(const Loop& row, Block body) const {
    const bool computes_on = computes_much(body);
    if (!computes_on && (context_.machine.prefetches_pages || !context_.moves_much())) return body;
    const std::set<const loop::Buffer*> asked = asked_for(body);
    const LaterIteration later{row.variable, plus(row.variable, kPageBytes / kBytesOfElement), {}};
    return with_requests(context_.arena, std::move(body), later,
                         [&](const Load& load, const std::vector<Expr>& indices) {
                           return !reads_memory(indices) && asked.count(load.buffer) == 0 &&
                                  (computes_on || rows_that_read_.count(load.buffer) == 1) &&
                                  may_ask_for(*load.buffer) && is_read_first(load, row);
                         });
  }

  static std::set<const loop::Buffer*> asked_for(const Block& body) {
    std::set<const loop::Buffer*> buffers;  // membership only
    for (const Stmt stmt : body)
      if (const auto* prefetch = loop::as<loop::Prefetch>(stmt)) buffers.insert(prefetch->buffer);
    return buffers;
  }

  // Whether no earlier pass has read what a row reads, element after element.
  template <typename Loop>
  bool is_read_first(const Load& load, const Loop& row) const {
    const auto read = read_by(load, row);
    if (!read || std::any_of(around_.begin(), around_.end(),
                             [&](const Around& each) { return each.reads.count(*read) != 0; }))
      return false;
    const auto next = place_of(*loop::to_symbolic(load.indices[0]), row, 1, nullptr);
    return next && *next == read->second + 1;
  }

  // How far the begin of a row's loop moves with one iteration of a loop around it.
  template <typename Loop>
  int64_t begin_moves(const Loop& row, const Variable* around) const {
    const auto begin = loop::to_symbolic(row.begin);
    if (!begin) return 0;
    const auto first = at_start(*begin), second = at_start(*begin, around);
    return first && second ? *second - *first : 0;
  }

  template <typename Loop>
  std::optional<RowRead> read_by(const Load& load, const Loop& row) const {
    const auto index = load.indices.size() == 1 ? loop::to_symbolic(load.indices[0]) : std::nullopt;
    const auto start = index ? place_of(*index, row, 0, nullptr) : std::nullopt;
    return start ? std::optional(RowRead{load.buffer, *start}) : std::nullopt;
  }

  template <typename Loop>
  std::set<RowRead> reads_of(const Loop& row, const Block& body) const {
    std::set<RowRead> reads;
    for (const Stmt stmt : body)
      loop::for_each_expr(loop::operands(stmt), [&](Expr e) {
        const auto* load = loop::as<Load>(e);
        const auto read = load != nullptr ? read_by(*load, row) : std::nullopt;
        if (read) reads.insert(*read);
      });
    return reads;
  }

  static bool is_read_once(const Around& loop, const RowRead& read) {
    const auto found = loop.reads.find(read);
    return found != loop.reads.end() && found->second == 1;
  }

  static bool writes(const Block& body) {
    return std::any_of(body.begin(), body.end(),
                       [](Stmt stmt) { return loop::as<loop::Store>(stmt) != nullptr; });
  }

  // Whether an element takes so long that requests cost nothing beside.
  static bool computes_much(const Block& body) { return loop::ops_of(body) >= loop::kFunctionOps; }

  // Whether one earlier pass has read the row, in the same iteration of loop number i of those
  // around but not of those inside it, and that loop moves on to another row.
  template <typename Loop>
  bool is_read_again(const Load& load, size_t i, const Loop& row) const {
    const auto read = read_by(load, row);
    if (!read || !is_read_once(around_[i], *read)) return false;
    for (size_t inner = i + 1; inner < around_.size(); ++inner)
      if (around_[inner].reads.count(*read) != 0) return false;
    const auto index = loop::to_symbolic(load.indices[0]);
    const auto next = place_of(*index, row, 0, around_[i].variable);
    return next && *next != read->second;
  }

  // An index in the first iteration of the loops around, but for one of them in its second one: of
  // that element of a row.
  template <typename Loop>
  std::optional<int64_t> place_of(const SymExpr& index, const Loop& row, int64_t element,
                                  const Variable* second) const {
    const auto begin = loop::to_symbolic(row.begin);
    if (!begin) return std::nullopt;
    const SymExpr at = index.substitute([&](std::string_view name) {
      return name == row.variable->name ? std::optional(*begin + element) : std::nullopt;
    });
    return at_start(at, second);
  }

  Expr plus(const Variable* variable, int64_t ahead) const {
    return loop::apply(context_.arena, ScalarOp::kAdd,
                       {variable, loop::int_constant(context_.arena, ahead)});
  }

  // An expression at the start of all loops around, but for one of them in its second iteration;
  // nothing where it has no value for the sizes that are expected.
  std::optional<int64_t> at_start(const SymExpr& e, const Variable* second = nullptr) const {
    return with_lets(e).try_evaluate([&](std::string_view name) -> int64_t {
      if (second != nullptr && name == second->name) return 1;
      const bool is_around = std::any_of(around_.begin(), around_.end(), [&](const Around& each) {
        return each.variable->name == name;
      });
      return is_around ? 0 : context_.hint(name);
    });
  }

  std::optional<int64_t> expected_iterations(Expr begin, Expr end) const {
    const auto length =
        loop::to_symbolic(loop::apply(context_.arena, ScalarOp::kSub, {end, begin}));
    return length ? at_start(*length) : std::nullopt;
  }

  // With the values of what the loops around have bound so far.
  SymExpr with_lets(const SymExpr& e) const {
    return e.substitute([&](std::string_view name) -> std::optional<SymExpr> {
      for (const Around& each : around_)
        for (const Let* let : each.lets)
          if (let->variable->name == name)
            if (const auto value = loop::to_symbolic(let->value)) return with_lets(*value);
      return std::nullopt;
    });
  }

  // Whether the loop that moves a load from one row to the next one is number i of those around,
  // and the row is a short piece of memory that lies apart from the next one.
  template <typename Loop>
  bool is_next_piece(const Load& load, const std::vector<Expr>& later, size_t i, const Loop& row,
                     int64_t elements) const {
    const int64_t bytes = dtype_size(load.buffer->dtype);
    const auto index = later.size() == 1 ? loop::to_symbolic(later[0]) : std::nullopt;
    if (!index || elements * bytes >= kLongPieceBytes) return false;
    const auto place = [&](int64_t element, const Variable* second) {
      return place_of(*index, row, element, second);
    };
    const auto start = place(0, nullptr);
    const auto step = [&](const std::optional<int64_t>& next) {
      return start && next ? std::optional(*next - *start) : std::nullopt;
    };
    for (size_t inner = around_.size(); --inner > i;) {
      const Around& each = around_[inner];
      const bool is_repeated = expected_iterations(each.begin, each.end).value_or(2) > 1;
      if (is_repeated && step(place(0, each.variable)) != 0) return false;
    }
    const int64_t apart = std::abs(step(place(0, around_[i].variable)).value_or(0));
    return step(place(1, nullptr)) == 1 && apart > elements && apart * bytes >= kPageBytes;
  }

  // Whether the row is surely as long in the later iteration, which then reads what this one reads.
  template <typename Loop>
  bool is_as_long(const Loop& row, const LaterIteration& later) const {
    InLaterIteration in_later(context_.arena, later);
    return in_later.mutate(row.begin) == row.begin && in_later.mutate(row.end) == row.end;
  }

  // Whether it is large, and what lowered the kernel asks for none of it itself.
  bool may_ask_for(const loop::Buffer& buffer) const {
    if (asked_.count(&buffer) > 0) return false;
    SymExpr bytes = dtype_size(buffer.dtype);
    for (const Expr extent : buffer.shape) {
      const auto size = loop::to_symbolic(extent);
      if (!size) return false;
      bytes = bytes * *size;
    }
    return at_start(bytes).value_or(0) > context_.machine.second_level_bytes;
  }

  // Whether each part of an index that is read from memory is there in any iteration of the loops
  // around: where they and sizes alone say. A place that is read from memory too has not been
  // checked yet, and one that this iteration has computed belongs to it.
  bool is_at_known_places(const std::vector<Expr>& index) const {
    bool known = true;
    loop::for_each_expr(index, [&](Expr e) {
      const auto* load = loop::as<Load>(e);
      if (load != nullptr) known &= is_counted(load->indices);
    });
    return known;
  }

  // Whether nothing but sizes and the loops around make up expressions.
  bool is_counted(const std::vector<Expr>& roots) const {
    bool counted = true;
    loop::for_each_expr(roots, [&](Expr e) {
      counted &= e->kind != loop::ExprKind::kLoad;
      if (const auto* variable = loop::as<Variable>(e)) counted &= is_counted(variable);
    });
    return counted;
  }

  bool is_counted(const Variable* variable) const {
    for (const Around& each : around_) {
      if (each.variable == variable) return true;
      for (const Let* let : each.lets)
        if (let->variable == variable) return is_counted({let->value});
    }
    const auto& sizes = context_.graph.symbols();
    return std::any_of(sizes.begin(), sizes.end(),
                       [&](const graph::Symbol& size) { return size.name == variable->name; });
  }

  const Context& context_;
  std::multiset<const loop::Buffer*> rows_that_read_;  // each once a row; counts only
  std::set<const loop::Buffer*> asked_;                // membership only
  std::vector<Around> around_;
  int num_branches_ = 0;  // around the current place
};

}  // namespace

bool reads_memory(const std::vector<Expr>& roots) {
  bool found = false;
  loop::for_each_expr(roots, [&](Expr e) { found |= e->kind == loop::ExprKind::kLoad; });
  return found;
}

Block with_requests(loop::Arena& arena, Block body, const LaterIteration& iteration,
                    const IsWanted& is_wanted) {
  const loop::VariableSet bound = bound_by_loops(body);
  InLaterIteration in_later(arena, iteration);
  Block result;
  std::set<std::pair<const loop::Buffer*, std::vector<Expr>>> asked;  // membership only
  for (const Stmt stmt : body) {
    loop::for_each_expr(loop::operands(stmt), [&](Expr e) {
      const auto* load = loop::as<Load>(e);
      if (load == nullptr || load->mask != nullptr || load->buffer->scope != loop::Scope::kGlobal)
        return;
      std::vector<Expr> later;
      for (const Expr index : load->indices) later.push_back(in_later.mutate(index));
      if (later == load->indices || !is_known_before(later, bound) || !is_wanted(*load, later))
        return;
      if (asked.insert({load->buffer, later}).second)
        result.push_back(loop::Prefetch::make(arena, load->buffer, later));
    });
    if (const auto* let = loop::as<Let>(stmt)) in_later.add(*let);
  }
  result.insert(result.end(), body.begin(), body.end());
  return result;
}

void request_rows(const Context& context, loop::Kernel& kernel) {
  if (context.machine.is_gpu) return;
  for (Block& phase : kernel.phases) phase = RowRequests(context, phase).in_block(phase);
}

}  // namespace mlcc::lower
