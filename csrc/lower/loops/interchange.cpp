#include "lower/loops/interchange.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "loop/cost.h"
#include "loop/mutator.h"
#include "loop/varying.h"
#include "lower/loops/requests.h"

namespace mlcc::lower {

using loop::Block;
using loop::Buffer;
using loop::Carried;
using loop::Expr;
using loop::For;
using loop::Let;
using loop::Load;
using loop::LoopKind;
using loop::Reduce;
using loop::ScalarOp;
using loop::Stmt;
using loop::StmtKind;
using loop::Variable;

namespace {

// Of all arrays together: well inside a thread's stack, and beside the rows in a second-level
// cache.
constexpr int64_t kMostBytes = 128 * 1024;
// Statements of a reduction's body up to which all of its rows are copies of it; of a longer body
// one row in kPartOfRows is.
constexpr size_t kShortBody = 4;
constexpr int64_t kPartOfRows = 4;

bool has_loops(const Block& block) {
  bool found = false;
  loop::for_each_stmt(block, [&](Stmt stmt) {
    found |= stmt->kind == StmtKind::kFor || stmt->kind == StmtKind::kReduce;
  });
  return found;
}

// The body of a loop, its bounds and its mode.
struct Parts {
  const Block* body;
  Expr begin, end;
  const loop::LoopMode* mode;
};

std::optional<Parts> parts_of(Stmt stmt) {
  if (const auto* inner = loop::as<For>(stmt))
    return Parts{&inner->body, inner->begin, inner->end, &inner->mode};
  if (const auto* reduce = loop::as<Reduce>(stmt))
    return Parts{&reduce->body, reduce->begin, reduce->end, &reduce->mode};
  return std::nullopt;
}

// Whether [begin, end) has at most `most` elements, as the way in which it is written shows.
bool is_at_most(Expr begin, Expr end, int64_t most) {
  const auto* first = loop::as<loop::Constant>(begin);
  if (const auto* last = loop::as<loop::Constant>(end))
    return first != nullptr && last->as_int() - first->as_int() <= most;
  const auto* apply = loop::as<loop::Apply>(end);
  if (apply == nullptr) return false;
  if (apply->op == ScalarOp::kMin)
    return std::any_of(apply->args.begin(), apply->args.end(),
                       [&](Expr arg) { return is_at_most(begin, arg, most); });
  const auto* length = loop::as<loop::Constant>(apply->args.size() == 2 ? apply->args[1] : nullptr);
  return apply->op == ScalarOp::kAdd && apply->args[0] == begin && length != nullptr &&
         length->as_int() <= most;
}

// The loop's variable, and what reductions inside carry and give: the same for all columns or not,
// it differs from section to section.
loop::VariableSet kept_in_arrays(const For& loop) {
  loop::VariableSet variables = {loop.variable};
  loop::for_each_stmt(loop.body, [&](Stmt stmt) {
    const auto* reduce = loop::as<Reduce>(stmt);
    if (reduce == nullptr) return;
    for (const Carried& carried : reduce->carried)
      variables.insert({carried.variable, carried.result});
  });
  return variables;
}

class Turning {
 public:
  Turning(loop::Arena& arena, const For& loop, const Interchange& by)
      : arena_(arena), loop_(loop), by_(by),
        varying_(loop::varying_variables(loop.body, kept_in_arrays(loop))) {
    loop::for_each_stmt(loop.body, [&](Stmt stmt) {
      if (const auto* let = loop::as<Let>(stmt)) classify(*let);
    });
  }

  // The first round finds which values outlive the loop that computes them.
  std::optional<Block> run() {
    if (!is_possible_ || !is_possible(loop_.body)) return std::nullopt;
    for (const bool is_last : {false, true}) {
      is_last_ = is_last;
      arrays_.clear();
      Block block;
      emit(loop_.body, block);
      flush(block);
      if (!is_last) continue;
      int64_t bytes = 0;
      for (const Buffer* array : all_arrays_) bytes += by_.columns * dtype_size(array->dtype);
      if (bytes > kMostBytes) break;
      Block result;
      for (const Buffer* array : all_arrays_) result.push_back(loop::Alloc::make(arena_, array));
      result.insert(result.end(), block.begin(), block.end());
      return result;
    }
    return std::nullopt;
  }

 private:
  // Statements of one of the new vector loops: variables as they are there.
  class Section : public loop::Mutator {
   public:
    Section(Turning& turning, const Variable* column)
        : Mutator(turning.arena_), column(column), turning_(turning) {}
    const Variable* const column;
    Block body;
    loop::VariableSet own;

   protected:
    Expr rewrite(Expr e) override {
      const auto* variable = loop::as<Variable>(e);
      return variable == nullptr ? e : turning_.use(variable, *this);
    }

   private:
    Turning& turning_;
  };

  bool mentions(const std::vector<Expr>& roots, const loop::VariableSet& variables) const {
    bool found = false;
    loop::for_each_expr(roots, [&](Expr e) {
      const auto* variable = loop::as<Variable>(e);
      found |= variable != nullptr && variables.count(variable) != 0;
    });
    return found;
  }

  // Lets that sections compute again: places, and what is the same for all columns but in memory.
  void classify(const Let& let) {
    const bool reads = reads_memory({let.value});
    if (varying_.count(let.variable) != 0) {
      if (let.variable->dtype == DType::kI64 && !reads) again_[let.variable] = let.value;
      return;
    }
    if (!reads && !mentions({let.value}, shared_)) return;
    loop::for_each_expr({let.value}, [&](Expr e) {
      const auto* load = loop::as<Load>(e);
      is_possible_ &= load == nullptr || load->buffer->access == loop::Access::kIn ||
                      load->buffer->access == loop::Access::kValue;
    });
    again_[let.variable] = let.value;
    shared_.insert(let.variable);
  }

  // A loop that a vector loop may hold: over a few rows, which are copies of its body.
  bool is_short(Stmt stmt) const {
    const Parts parts = *parts_of(stmt);
    if (parts.mode->kind == LoopKind::kUnrolled) return true;
    return stmt->kind == StmtKind::kReduce && !has_loops(*parts.body) &&
           is_at_most(parts.begin, parts.end, by_.rows);
  }

  bool is_possible(const Block& block) const {
    return std::all_of(block.begin(), block.end(), [&](Stmt stmt) {
      switch (stmt->kind) {
      case StmtKind::kLet:
      case StmtKind::kPrefetch:
      case StmtKind::kStore: return true;
      case StmtKind::kIf: {
        const auto* branch = loop::as<loop::If>(stmt);
        return !has_loops(branch->then_body) && !has_loops(branch->else_body);
      }
      case StmtKind::kFor:
      case StmtKind::kReduce: {
        const Parts parts = *parts_of(stmt);
        if (is_short(stmt)) return true;
        return parts.mode->kind == LoopKind::kSerial && !reads_memory({parts.begin, parts.end}) &&
               !mentions({parts.begin, parts.end}, varying_) &&
               !mentions({parts.begin, parts.end}, shared_) && is_possible(*parts.body);
      }
      case StmtKind::kAtomic:
      case StmtKind::kCheck:
      case StmtKind::kAlloc:
      case StmtKind::kContract: return false;
      }
      return false;
    });
  }

  // ---- Arrays

  const Buffer* make_array(DType dtype) {
    Buffer array{arena_.fresh_name("columns"),
                 dtype,
                 loop::Scope::kStack,
                 loop::Access::kInOut,
                 {loop::int_constant(arena_, by_.columns)},
                 {}};
    const Buffer* made = arena_.make_buffer(std::move(array));
    if (is_last_) all_arrays_.push_back(made);
    return made;
  }

  const Buffer* array_of(const Variable* variable) {
    const Buffer*& array = arrays_[variable];
    if (array == nullptr) array = make_array(variable->dtype);
    return array;
  }

  Expr place() { return loop::apply(arena_, ScalarOp::kSub, {section().column, loop_.begin}); }

  void store(const Buffer* array, Expr value) {
    section().body.push_back(loop::Store::make(arena_, array, {place()}, value));
  }

  // ---- Sections

  Section& section() {
    if (section_ == nullptr)
      section_ = std::make_unique<Section>(
          *this, Variable::make(arena_, DType::kI64, arena_.fresh_name(loop_.variable->name)));
    return *section_;
  }

  void flush(Block& block) {
    if (section_ == nullptr) return;
    loop::LoopMode mode = loop_.mode;
    if (loop::ops_of(section_->body) < loop::kManyOps) mode.unroll = 1;
    block.push_back(For::make(arena_, section_->column, loop_.begin, loop_.end, mode,
                              std::move(section_->body)));
    section_.reset();
  }

  // What stands for a variable in a section.
  Expr use(const Variable* variable, Section& user) {
    if (variable == loop_.variable) return user.column;
    if (user.own.count(variable) != 0) return variable;
    if (const auto array = arrays_.find(variable); array != arrays_.end())
      return Load::make(arena_, array->second, {place()});
    if (const auto value = again_.find(variable); value != again_.end())
      return user.mutate(value->second);
    if (bound_.count(variable) != 0) outliving_.insert(variable);
    return variable;
  }

  // What a statement and those inside it bind belongs to the section.
  void bind(Stmt stmt) {
    std::vector<const Variable*> variables;
    loop::for_each_stmt({stmt}, [&](Stmt inner) {
      const std::vector<const Variable*> bound = loop::bound_variables(inner);
      variables.insert(variables.end(), bound.begin(), bound.end());
    });
    section().own.insert(variables.begin(), variables.end());
    bound_.insert(variables.begin(), variables.end());
  }

  void add(Stmt stmt) {
    bind(stmt);
    for (const Stmt made : section().mutate(Block{stmt})) {
      const auto* reduce = loop::as<Reduce>(made);
      section().body.push_back(reduce != nullptr ? with_copies(*reduce) : made);
    }
    std::vector<const Variable*> bound;
    if (const auto* let = loop::as<Let>(stmt)) bound.push_back(let->variable);
    if (const auto* reduce = loop::as<Reduce>(stmt))
      for (const Carried& carried : reduce->carried) bound.push_back(carried.result);
    for (const Variable* variable : bound)
      if (outliving_.count(variable) != 0) store(array_of(variable), variable);
  }

  // Rows side by side; of long bodies vectors are.
  int64_t copies_of(const Block& body) const {
    if (loop::ops_of(body) >= loop::kManyOps) return 1;
    return body.size() <= kShortBody ? by_.rows : std::max<int64_t>(1, by_.rows / kPartOfRows);
  }

  Stmt with_copies(const Reduce& reduce) {
    loop::LoopMode mode = reduce.mode;
    if (mode.kind != LoopKind::kSerial || mode.unroll != 1) return &reduce;
    mode.unroll = copies_of(reduce.body);
    return Reduce::make(arena_, reduce.variable, reduce.begin, reduce.end, mode, reduce.carried,
                        with_prefetches(reduce.body, reduce.variable), reduce.yields,
                        reduce.combine);
  }

  // ---- Statements

  void emit(const Block& body, Block& block) {
    for (const Stmt stmt : body) {
      const auto* let = loop::as<Let>(stmt);
      if (let != nullptr && again_.count(let->variable) != 0) continue;
      if (let != nullptr && varying_.count(let->variable) == 0)
        block.push_back(stmt);  // the same for all columns
      else if (!parts_of(stmt) || is_short(stmt))
        add(stmt);
      else
        emit_loop(stmt, block);
    }
  }

  void emit_loop(Stmt stmt, Block& block) {
    if (const auto* reduce = loop::as<Reduce>(stmt)) return emit_reduce(*reduce, block);
    const auto* inner = loop::as<For>(stmt);
    flush(block);
    Block body;
    emit(inner->body, body);
    flush(body);
    block.push_back(
        For::make(arena_, inner->variable, inner->begin, inner->end, inner->mode, std::move(body)));
  }

  // The statements for row `row`, behind requests for what they will read of a later one, but for
  // what a row has only one of.
  Block with_prefetches(Block body, const Variable* row) {
    if (by_.ahead == 0) return body;
    const Expr later =
        loop::apply(arena_, ScalarOp::kAdd, {row, loop::int_constant(arena_, by_.ahead)});
    return with_requests(arena_, std::move(body), {row, later, {}},
                         [&](const Load&, const std::vector<Expr>& indices) {
                           return !reads_memory(indices) &&
                                  mentions(indices, {loop_.variable, section().column});
                         });
  }

  void emit_reduce(const Reduce& reduce, Block& block) {
    std::vector<const Buffer*> arrays;
    for (const Carried& carried : reduce.carried) {
      const Expr init = section().mutate(carried.init);
      arrays.push_back(array_of(carried.result));
      store(arrays.back(), init);
    }
    flush(block);
    const bool may_be_single = !is_in_levels_ && by_.expected <= by_.rows * by_.rows &&
                               loop::ops_of(reduce.body) < loop::kManyOps;
    const Chain chain = may_be_single ? chain_of(reduce) : Chain();
    if (chain.outer.empty()) return emit_levels(reduce, arrays, block);
    Block levels, single;
    is_in_levels_ = true;
    emit_levels(reduce, arrays, levels);
    is_in_levels_ = false;
    for (const Reduce* outer : chain.outer)
      single.push_back(Let::make(arena_, outer->variable, outer->begin));
    emit_levels(*chain.innermost, arrays, single);
    block.push_back(
        loop::If::make(arena_, chain.is_single, loop::copy_of(arena_, single), std::move(levels)));
  }

  // Levels of a reduction above the innermost one that has loops inside. Where each has a single
  // iteration, what the innermost one gives is what all of them give.
  struct Chain {
    std::vector<const Reduce*> outer;
    const Reduce* innermost = nullptr;
    Expr is_single = nullptr;
  };

  Chain chain_of(const Reduce& reduce) {
    Chain chain{{}, &reduce, nullptr};
    while (const Reduce* inner = only_merges(*chain.innermost)) {
      const Reduce& outer = *chain.innermost;
      Expr is_single = loop::apply(arena_, ScalarOp::kEq,
                                   {loop::apply(arena_, ScalarOp::kSub, {outer.end, outer.begin}),
                                    loop::int_constant(arena_, 1)});
      for (const Reduce* before : chain.outer)
        is_single = loop::substitute(arena_, is_single, before->variable, before->begin);
      if (chain.is_single != nullptr)
        is_single = loop::apply(arena_, ScalarOp::kAnd, {chain.is_single, is_single});
      chain.is_single = is_single;
      chain.outer.push_back(&outer);
      chain.innermost = inner;
    }
    return chain;
  }

  // The reduction inside that has loops of its own, where all that `outer` does is to merge what
  // it gives, from the same start.
  const Reduce* only_merges(const Reduce& outer) const {
    const auto* inner = outer.body.size() == 1 ? loop::as<Reduce>(outer.body.front()) : nullptr;
    if (inner == nullptr || is_short(inner) || inner->carried.size() != outer.carried.size())
      return nullptr;
    for (size_t i = 0; i < outer.carried.size(); ++i) {
      const Carried& carried = outer.carried[i];
      const auto* merge = loop::as<loop::Apply>(outer.yields[i]);
      if (merge == nullptr || !is_identity(merge->op, carried.init) ||
          merge->args != std::vector<Expr>{carried.variable, inner->carried[i].result} ||
          inner->carried[i].init != carried.init)
        return nullptr;
    }
    return inner;
  }

  // Whether `op` of `value` and what is merged from it on is the latter.
  static bool is_identity(ScalarOp op, Expr value) {
    if (op == ScalarOp::kMax || op == ScalarOp::kMin) return true;
    if (op == ScalarOp::kAnd || op == ScalarOp::kOr) return true;
    const auto* constant = loop::as<loop::Constant>(value);
    if (constant == nullptr || (op != ScalarOp::kAdd && op != ScalarOp::kMul)) return false;
    return constant->as_double() == (op == ScalarOp::kAdd ? 0 : 1);
  }

  // The iterations of a reduction, whose start its arrays hold.
  void emit_levels(const Reduce& reduce, const std::vector<const Buffer*>& arrays, Block& block) {
    if (!has_loops(reduce.body)) return emit_rows(reduce, arrays, block);
    for (size_t i = 0; i < arrays.size(); ++i) arrays_[reduce.carried[i].variable] = arrays[i];
    Block body;
    emit(reduce.body, body);
    std::vector<const Variable*> next;
    for (const Expr yield : reduce.yields) {
      next.push_back(Variable::make(arena_, yield->dtype, arena_.fresh_name("next")));
      section().body.push_back(Let::make(arena_, next.back(), section().mutate(yield)));
    }
    for (size_t i = 0; i < arrays.size(); ++i) store(arrays[i], next[i]);
    flush(body);
    block.push_back(
        For::make(arena_, reduce.variable, reduce.begin, reduce.end, {}, std::move(body)));
  }

  // A long reduction without loops inside: a few rows at a time.
  void emit_rows(const Reduce& reduce, const std::vector<const Buffer*>& arrays, Block& block) {
    const auto* number = Variable::make(arena_, DType::kI64, arena_.fresh_name("rows"));
    const Expr step = loop::int_constant(arena_, by_.rows);
    const Expr begin =
        loop::apply(arena_, ScalarOp::kAdd,
                    {reduce.begin, loop::apply(arena_, ScalarOp::kMul, {number, step})});
    const Expr end = loop::apply(arena_, ScalarOp::kMin,
                                 {loop::apply(arena_, ScalarOp::kAdd, {begin, step}), reduce.end});
    bind(&reduce);
    std::vector<Carried> carried;
    for (size_t i = 0; i < arrays.size(); ++i)
      carried.push_back({reduce.carried[i].variable, Load::make(arena_, arrays[i], {place()}),
                         Variable::make(arena_, arrays[i]->dtype, arena_.fresh_name("next"))});
    const std::vector<Carried> results = carried;
    loop::LoopMode mode;
    mode.unroll = copies_of(reduce.body);
    Block rows = with_prefetches(section().mutate(reduce.body), reduce.variable);
    std::vector<Expr> yields;
    for (const Expr yield : reduce.yields) yields.push_back(section().mutate(yield));
    section().body.push_back(Reduce::make(arena_, reduce.variable, begin, end, mode,
                                          std::move(carried), std::move(rows), std::move(yields),
                                          std::nullopt));
    for (size_t i = 0; i < arrays.size(); ++i) store(arrays[i], results[i].result);
    Block body;
    flush(body);
    const Expr length = loop::apply(arena_, ScalarOp::kSub, {reduce.end, reduce.begin});
    const Expr padded =
        loop::apply(arena_, ScalarOp::kAdd, {length, loop::int_constant(arena_, by_.rows - 1)});
    block.push_back(For::make(arena_, number, loop::int_constant(arena_, 0),
                              loop::apply(arena_, ScalarOp::kFloorDiv, {padded, step}), {},
                              std::move(body)));
  }

  loop::Arena& arena_;
  const For& loop_;
  const Interchange& by_;
  const loop::VariableSet varying_;
  bool is_possible_ = true;
  std::unordered_map<const Variable*, Expr> again_;  // lets that each section computes for itself
  loop::VariableSet shared_;                         // those that read memory all columns share
  std::unordered_map<const Variable*, const Buffer*> arrays_;
  std::vector<const Buffer*> all_arrays_;
  loop::VariableSet bound_;  // in some section
  loop::VariableSet outliving_;
  std::unique_ptr<Section> section_;
  bool is_in_levels_ = false;  // of a reduction that has code for single ones beside them
  bool is_last_ = false;
};

}  // namespace

std::optional<Block> interchange(loop::Arena& arena, const For& loop, const Interchange& by) {
  return Turning(arena, loop, by).run();
}

}  // namespace mlcc::lower
