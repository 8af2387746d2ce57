// Random loop programs for fuzzers: valid, and with one result whatever the order of iterations and
// partial reductions, bit by bit but for the sign of a zero and of a NaN. The same for a seed on
// every machine.
//
// Nothing unspecified happens in them: divisors are not 0, indices lie inside, no float becomes an
// integer, sums of floats are made in order only. The text holds the directives (loop/run_data.h)
// that make its data.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "loop/ir.h"
#include "loop/text.h"

namespace mlcc::fuzz {

struct RandomProgramOptions {
  bool floats = true;
  bool atomics = true;
  bool contractions = true;
  bool checks = true;  // some of which fail
  // Groups of threads, widths and lengths as kernels for a GPU have them.
  bool gpu = false;
  int depth = 3;  // of expressions
};

class RandomProgram {
 public:
  RandomProgram(uint64_t seed, const RandomProgramOptions& options)
      : random_(seed), options_(options), name_("seed_" + std::to_string(seed)) {}

  std::string make() {
    n_ = add_size("n", 1 + draw(20));
    m_ = options_.gpu ? draw_row_length() : add_size("m", 1 + draw(40));
    for (int i = 0; i < 4; ++i) add_input("x" + std::to_string(i));
    add_index();
    const int phases = 1 + draw(3);
    for (int i = 0; i < phases; ++i) {
      visible_.clear();
      kernel_.phases.push_back(make_phase());
      // What a phase wrote, the next ones may read.
      readable_.insert(readable_.end(), written_.begin(), written_.end());
      written_.clear();
    }
    kernel_.name = name_;
    return directives_ + loop::print(kernel_);
  }

 private:
  using Block = loop::Block;
  using Buffer = loop::Buffer;
  using Expr = loop::Expr;
  using LoopKind = loop::LoopKind;
  using Op = loop::ScalarOp;
  using Variable = loop::Variable;

  // ---- Drawing

  int draw(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  bool flip_coin(int percent) { return draw(100) < percent; }
  template <typename T>
  const T& pick(const std::vector<T>& all) {
    return all[static_cast<size_t>(draw(static_cast<int>(all.size())))];
  }
  std::string new_name(std::string_view base) { return arena_.fresh_name(base); }

  DType draw_dtype() {
    static const std::vector<DType> integers = {DType::kBool, DType::kU8,  DType::kI8,
                                                DType::kI16,  DType::kI32, DType::kI64};
    static const std::vector<DType> floats = {DType::kF32, DType::kF32, DType::kF32,
                                              DType::kF64, DType::kF16, DType::kBF16};
    return options_.floats && flip_coin(55) ? pick(floats) : pick(integers);
  }

  static bool is_narrow(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

  // ---- Parameters

  const Variable* add_size(const std::string& name, int value) {
    directives_ += "// RUN-SIZE: %" + name + " = " + std::to_string(value) + "\n";
    kernel_.sizes.push_back(Variable::make(arena_, DType::kI64, name));
    return kernel_.sizes.back();
  }

  // Known or not, a multiple of the widths or not (then packs are left to loops of the one kind).
  Expr draw_row_length() {
    if (flip_coin(60)) return integer(pick<int64_t>({1, 7, 24, 64, 96, 100, 128, 257, 512}));
    return add_size("m", flip_coin(80) ? 8 * (1 + draw(16)) : 1 + draw(100));
  }

  const Buffer* add_buffer(const std::string& name, DType dtype, loop::Access access,
                           std::vector<Expr> shape, std::vector<Expr> strides = {}) {
    kernel_.buffers.push_back(arena_.make_buffer(
        {name, dtype, loop::Scope::kGlobal, access, std::move(shape), std::move(strides)}));
    return kernel_.buffers.back();
  }

  std::vector<Expr> draw_shape() {
    const std::vector<std::vector<Expr>> shapes = {{n_, m_}, {n_, m_}, {m_}, {n_}, {}};
    return pick(shapes);
  }

  void add_input(const std::string& name) {
    const DType dtype = draw_dtype();
    std::vector<Expr> shape = draw_shape();
    std::vector<Expr> strides;
    if (shape.size() == 2 && flip_coin(20)) strides = {integer(1), n_};  // by columns
    if (is_integer(dtype))
      directives_ += "// RUN-DATA: %" + name +
                     (dtype == DType::kU8 ? " = randint(0, 256)\n" : " = randint(-128, 128)\n");
    readable_.push_back(
        add_buffer(name, dtype, loop::Access::kIn, std::move(shape), std::move(strides)));
  }

  void add_index() {
    index_ = add_buffer("index", DType::kI64, loop::Access::kIn, {m_});
    directives_ += "// RUN-DATA: %index = randint(0, %n)\n";
  }

  // ---- Expressions

  Expr integer(int64_t value) { return loop::int_constant(arena_, value); }
  Expr apply(Op op, std::vector<Expr> args) {
    return loop::Apply::make(arena_, op, std::move(args));
  }

  Expr constant(DType dtype) {
    if (!is_float(dtype)) return loop::Constant::make_int(arena_, dtype, draw(9) - 4);
    return loop::Constant::make_float(arena_, dtype, (draw(33) - 16) / 4.0);
  }

  // An i64 in 0..extent.
  Expr index_below(Expr extent) {
    std::vector<Expr> fitting;
    for (const auto& [variable, bound] : indices_)
      if (bound == extent) fitting.push_back(variable);
    if (!fitting.empty() && (flip_coin(85) || index_depth_ > 0)) return pick(fitting);
    if (index_depth_ > 0) return apply(Op::kMod, {integer(draw(50)), extent});
    ++index_depth_;
    const bool is_indirect = extent == n_ && flip_coin(50);
    const Expr index = is_indirect ? loop::Load::make(arena_, index_, {index_below(m_)})
                                   : apply(Op::kMod, {expression(DType::kI64, 1), extent});
    --index_depth_;
    return index;
  }

  Expr load(DType dtype, int depth) {
    std::vector<const Buffer*> fitting;
    for (const Buffer* buffer : readable_)
      if (buffer->dtype == dtype) fitting.push_back(buffer);
    if (fitting.empty()) return constant(dtype);
    const Buffer* buffer = pick(fitting);
    std::vector<Expr> index;
    if (!flip_coin(20) || buffer->shape.empty()) {
      for (const Expr extent : buffer->shape) index.push_back(index_below(extent));
      return loop::Load::make(arena_, buffer, std::move(index));
    }
    // Outside in places, where the mask is false.
    Expr mask = loop::Constant::make_int(arena_, DType::kBool, 1);
    for (const Expr extent : buffer->shape) {
      index.push_back(apply(Op::kAdd, {index_below(extent), integer(draw(5) - 2)}));
      mask = apply(Op::kAnd, {mask, apply(Op::kAnd, {apply(Op::kGe, {index.back(), integer(0)}),
                                                     apply(Op::kLt, {index.back(), extent})})});
    }
    const Expr otherwise = flip_coin(50) ? expression(dtype, std::min(depth, 1) - 1) : nullptr;
    return loop::Load::make(arena_, buffer, std::move(index), mask, otherwise);
  }

  Expr leaf(DType dtype) {
    std::vector<Expr> fitting;
    for (const Variable* variable : visible_)
      if (variable->dtype == dtype) fitting.push_back(variable);
    if (!fitting.empty() && flip_coin(60)) return pick(fitting);
    return flip_coin(75) ? load(dtype, 0) : constant(dtype);
  }

  Expr cast(DType dtype, int depth) {
    DType from = draw_dtype();
    // Out of range the result is unspecified.
    if (is_integer(dtype) && is_float(from)) from = DType::kI32;
    return loop::Cast::make(arena_, dtype, expression(from, depth - 1));
  }

  Expr expression(DType dtype, int depth) {
    if (depth <= 0) return leaf(dtype);
    const int choice = draw(10);
    if (choice == 0) return leaf(dtype);
    if (choice == 1 || is_narrow(dtype)) return cast(dtype, depth);
    if (choice == 2)
      return apply(Op::kSelect, {expression(DType::kBool, depth - 1), expression(dtype, depth - 1),
                                 expression(dtype, depth - 1)});
    if (dtype == DType::kBool) return condition(depth);
    return is_float(dtype) ? float_expression(dtype, depth) : integer_expression(dtype, depth);
  }

  Expr condition(int depth) {
    if (flip_coin(40)) {
      const Expr a = expression(DType::kBool, depth - 1);
      if (flip_coin(25)) return apply(Op::kNot, {a});
      return apply(pick<Op>({Op::kAnd, Op::kOr, Op::kXor}),
                   {a, expression(DType::kBool, depth - 1)});
    }
    DType dtype = draw_dtype();
    if (is_narrow(dtype)) dtype = DType::kF32;
    const Expr a = expression(dtype, depth - 1);
    if (is_float(dtype) && flip_coin(20))
      return apply(flip_coin(50) ? Op::kIsNan : Op::kIsInf, {a});
    const auto op = pick<Op>({Op::kEq, Op::kNe, Op::kLt, Op::kLe, Op::kGt, Op::kGe});
    return apply(op, {a, expression(dtype, depth - 1)});
  }

  // A divisor: 1..8, or with zeros' signs lost and away from 0.
  Expr divisor(DType dtype, int depth) {
    const Expr one = loop::Constant::make_int(arena_, dtype, 1);
    const Expr e = expression(dtype, depth - 1);
    if (is_float(dtype)) return apply(Op::kAdd, {apply(Op::kAbs, {e}), one});
    return apply(Op::kAdd, {apply(Op::kAnd, {e, loop::Constant::make_int(arena_, dtype, 7)}), one});
  }

  Expr float_expression(DType dtype, int depth) {
    const auto op = pick<Op>({Op::kAdd, Op::kAdd, Op::kSub, Op::kMul, Op::kMul, Op::kDiv, Op::kMin,
                              Op::kMax, Op::kNeg, Op::kAbs, Op::kFma, Op::kSqrt, Op::kFloor,
                              Op::kCeil, Op::kTrunc, Op::kRound});
    std::vector<Expr> args;
    for (int i = 0; i < scalar_op_arity(op); ++i) args.push_back(expression(dtype, depth - 1));
    if (op == Op::kDiv) args[1] = divisor(dtype, depth);
    return apply(op, std::move(args));
  }

  Expr integer_expression(DType dtype, int depth) {
    const auto op = pick<Op>({Op::kAdd, Op::kSub, Op::kMul, Op::kTruncDiv, Op::kFloorDiv, Op::kRem,
                              Op::kMod, Op::kMin, Op::kMax, Op::kNeg, Op::kAbs, Op::kAnd, Op::kOr,
                              Op::kXor, Op::kNot, Op::kShl, Op::kShr, Op::kLshr});
    std::vector<Expr> args;
    for (int i = 0; i < scalar_op_arity(op); ++i) args.push_back(expression(dtype, depth - 1));
    const bool divides =
        op == Op::kTruncDiv || op == Op::kFloorDiv || op == Op::kRem || op == Op::kMod;
    if (divides) args[1] = divisor(dtype, depth);
    return apply(op, std::move(args));
  }

  // ---- Statements

  loop::LoopMode draw_mode(bool may_be_vector) {
    loop::LoopMode mode;
    if (may_be_vector && flip_coin(60)) {
      mode.kind = LoopKind::kVector;
      mode.width = options_.gpu ? pick<int64_t>({1, 2, 4, 8}) : pick<int64_t>({0, 0, 4, 8, 16});
      mode.unroll = pick<int64_t>({1, 1, 2, 4});
    } else if (flip_coin(20)) {
      mode.unroll = 1 + draw(3);
    }
    return mode;
  }

  // Runs `body` as the inside of a loop over `variable` in 0..extent; what it defines is not
  // visible after it.
  template <typename Body>
  void inside(const Variable* variable, Expr extent, Body body) {
    const size_t visible = visible_.size();
    indices_.emplace_back(variable, extent);
    visible_.push_back(variable);
    body();
    visible_.resize(visible);
    indices_.pop_back();
  }

  void add_lets(Block& out, int count) {
    for (int i = 0; i < count; ++i) {
      const DType dtype = draw_dtype();
      const Expr value = expression(dtype, options_.depth);
      const auto* variable = Variable::make(arena_, dtype, new_name("t"));
      out.push_back(loop::Let::make(arena_, variable, value));
      visible_.push_back(variable);
    }
  }

  // Whether a store streams: in no case, in all, or by a size.
  Expr draw_streams() {
    if (!flip_coin(30)) return nullptr;
    if (kernel_.sizes.empty() || flip_coin(50))
      return loop::Constant::make_int(arena_, DType::kBool, 1);
    return loop::apply(arena_, loop::ScalarOp::kGe,
                       {kernel_.sizes.front(), loop::int_constant(arena_, draw(20))});
  }

  // A store of any value to an element that no other iteration writes.
  void add_store(Block& out, const Buffer* buffer, const std::vector<Expr>& index) {
    const auto store = [&] {
      return loop::Store::make(arena_, buffer, index, expression(buffer->dtype, options_.depth),
                               nullptr, draw_streams());
    };
    const int choice = draw(10);
    if (choice == 0) {
      const Expr question = condition(2);
      const auto arm = [&] {
        const size_t visible = visible_.size();
        Block block;
        add_lets(block, draw(2));
        block.push_back(store());
        visible_.resize(visible);
        return block;
      };
      Block then_body = arm();
      out.push_back(loop::If::make(arena_, question, std::move(then_body), arm()));
      return;
    }
    out.push_back(store());
    if (choice == 1)  // some elements once more
      out.push_back(
          loop::Store::make(arena_, buffer, index, expression(buffer->dtype, 1), condition(1)));
  }

  // Ops that give one result in any order.
  Op draw_fold(DType dtype) {
    if (dtype == DType::kBool) return pick<Op>({Op::kAnd, Op::kOr, Op::kXor});
    if (is_float(dtype)) return pick<Op>({Op::kMin, Op::kMax});
    return pick<Op>({Op::kAdd, Op::kMul, Op::kMin, Op::kMax, Op::kAnd, Op::kOr, Op::kXor});
  }

  Expr identity(Op op, DType dtype) {
    const bool is_low = op == Op::kMax;
    if (is_float(dtype))
      return loop::Constant::make_float(arena_, dtype, is_low ? -INFINITY : INFINITY);
    if (op == Op::kMul) return loop::Constant::make_int(arena_, dtype, 1);
    if (op == Op::kAnd) return loop::Constant::make_int(arena_, dtype, -1);
    if (op != Op::kMin && op != Op::kMax) return loop::Constant::make_int(arena_, dtype, 0);
    const int64_t width = dtype_size(dtype) * 8;
    const int64_t highest = dtype == DType::kU8 ? 255 : INT64_MAX >> (64 - width);
    return loop::Constant::make_int(arena_, dtype,
                                    is_low ? (dtype == DType::kU8 ? 0 : -highest - 1) : highest);
  }

  DType draw_fold_dtype() {
    const DType dtype = draw_dtype();
    return is_narrow(dtype) ? DType::kF32 : dtype;
  }

  // A reduce over 0..m with one to three carried values, with a combine or in order.
  void add_reduce(Block& out, bool may_be_vector) {
    const bool is_free = flip_coin(70);
    const auto* at = Variable::make(arena_, DType::kI64, new_name("k"));
    std::vector<loop::Carried> carried;
    std::vector<Op> ops;
    for (int i = 0; i <= draw(3); ++i) {
      const DType dtype = draw_fold_dtype();
      ops.push_back(is_free ? draw_fold(dtype) : dtype == DType::kBool ? Op::kXor : Op::kAdd);
      carried.push_back({Variable::make(arena_, dtype, new_name("c")),
                         is_free ? identity(ops.back(), dtype) : constant(dtype),
                         Variable::make(arena_, dtype, new_name("r"))});
    }
    Block body;
    std::vector<Expr> yields;
    inside(at, m_, [&] {
      add_lets(body, draw(3));
      for (size_t i = 0; i < carried.size(); ++i)
        yields.push_back(apply(
            ops[i], {carried[i].variable, expression(carried[i].variable->dtype, options_.depth)}));
    });
    std::optional<loop::Combine> combine;
    if (is_free) combine = make_combine(carried, ops);
    loop::LoopMode mode = draw_mode(may_be_vector && is_free);
    for (const loop::Carried& c : carried) visible_.push_back(c.result);
    out.push_back(loop::Reduce::make(arena_, at, integer(0), m_, mode, std::move(carried),
                                     std::move(body), std::move(yields), std::move(combine)));
  }

  // A scan over 0..m with one to three carried values; stores the running ones, and others.
  void add_scan(Block& out, const Variable* row) {
    const auto* at = Variable::make(arena_, DType::kI64, new_name("k"));
    std::vector<loop::Carried> carried;
    std::vector<Op> ops;
    for (int i = 0; i <= draw(3); ++i) {
      const DType dtype = draw_fold_dtype();
      ops.push_back(draw_fold(dtype));
      carried.push_back({Variable::make(arena_, dtype, new_name("c")), identity(ops.back(), dtype),
                         Variable::make(arena_, dtype, new_name("r"))});
    }
    const Buffer* buffer =
        row != nullptr ? add_buffer(new_name("y"), draw_dtype(), loop::Access::kOut, {n_, m_})
                       : add_buffer(new_name("y"), draw_dtype(), loop::Access::kOut, {m_});
    Block body;
    std::vector<Expr> yields;
    inside(at, m_, [&] {
      add_lets(body, draw(3));
      for (size_t i = 0; i < carried.size(); ++i) {
        const DType dtype = carried[i].variable->dtype;
        const auto* next = Variable::make(arena_, dtype, new_name("next"));
        const Expr value = apply(ops[i], {carried[i].variable, expression(dtype, options_.depth)});
        body.push_back(loop::Let::make(arena_, next, value));
        yields.push_back(next);
      }
      for (const Expr next : yields) visible_.push_back(loop::as<Variable>(next));
      add_lets(body, draw(2));
      std::vector<Expr> index = {at};
      if (row != nullptr) index.insert(index.begin(), row);
      add_store(body, buffer, index);
    });
    written_.push_back(buffer);
    loop::Combine combine = make_combine(carried, ops);
    loop::LoopMode mode = draw_mode(false);
    mode.kind = LoopKind::kScan;
    mode.width = options_.gpu ? 0 : pick<int64_t>({0, 1, 4, 8, 16});
    for (const loop::Carried& c : carried) visible_.push_back(c.result);
    out.push_back(loop::Reduce::make(arena_, at, integer(0), m_, mode, std::move(carried),
                                     std::move(body), std::move(yields), std::move(combine)));
  }

  loop::Combine make_combine(const std::vector<loop::Carried>& carried,
                             const std::vector<Op>& ops) {
    loop::Combine combine;
    for (size_t i = 0; i < carried.size(); ++i) {
      const DType dtype = carried[i].variable->dtype;
      combine.left.push_back(Variable::make(arena_, dtype, new_name("p")));
      combine.right.push_back(Variable::make(arena_, dtype, new_name("q")));
      combine.values.push_back(apply(ops[i], {combine.left[i], combine.right[i]}));
    }
    return combine;
  }

  // A small local table, filled and then readable at a computed place.
  void add_table(Block& out) {
    const Expr extent = integer(2 + draw(7));
    const DType dtype = draw_dtype();
    const auto scope = flip_coin(50) ? loop::Scope::kStack : loop::Scope::kRegister;
    const Buffer* table =
        arena_.make_buffer({new_name("table"), dtype, scope, loop::Access::kInOut, {extent}, {}});
    const auto* at = Variable::make(arena_, DType::kI64, new_name("f"));
    Block body;
    inside(at, extent,
           [&] { body.push_back(loop::Store::make(arena_, table, {at}, expression(dtype, 2))); });
    loop::LoopMode mode;
    if (flip_coin(30)) mode.kind = LoopKind::kUnrolled;
    out.push_back(loop::Alloc::make(arena_, table));
    out.push_back(loop::For::make(arena_, at, integer(0), extent, mode, std::move(body)));
    const auto* value = Variable::make(arena_, dtype, new_name("v"));
    const Expr place =
        flip_coin(50) ? integer(draw(2)) : apply(Op::kMod, {expression(DType::kI64, 2), extent});
    out.push_back(loop::Let::make(arena_, value, loop::Load::make(arena_, table, {place})));
    visible_.push_back(value);
  }

  // Small whole numbers, whose sums are exact in any order; integers also wrap.
  const Buffer* add_operand(std::string_view base, DType dtype, Expr count) {
    const Buffer* buffer = add_buffer(new_name(base), dtype, loop::Access::kIn, {count});
    const std::string range = is_float(dtype)        ? " = randint(-8, 9)\n"
                              : dtype == DType::kU8  ? " = randint(0, 256)\n"
                              : dtype == DType::kI8  ? " = randint(-128, 128)\n"
                              : dtype == DType::kI16 ? " = randint(-32768, 32768)\n"
                                                     : " = randint(-1000000, 1000000)\n";
    directives_ += "// RUN-DATA: %" + buffer->name + range;
    return buffer;
  }

  // A tile whose axes lie in memory in any order, one behind the other; what `order` names first is
  // innermost. Sets the steps of the axes in the order of `extents`; returns the elements in all.
  Expr lay_out(const std::vector<Expr>& extents, const std::vector<size_t>& order,
               std::vector<Expr>& steps) {
    steps.assign(extents.size(), nullptr);
    Expr step = integer(1);
    for (const size_t axis : order) {
      steps[axis] = step;
      step = apply(Op::kMul, {step, extents[axis]});
    }
    return step;
  }

  std::vector<size_t> draw_order(size_t axes, bool line_first) {
    std::vector<size_t> order(axes);
    for (size_t i = 0; i < axes; ++i) order[i] = i;
    if (!line_first) std::reverse(order.begin(), order.end());
    if (flip_coin(30))
      std::swap(order[0], order[static_cast<size_t>(draw(static_cast<int>(axes)))]);
    return order;
  }

  struct ContractDtypes {
    DType a, b, sum;
  };
  ContractDtypes draw_contract_dtypes() {
    const std::vector<DType> narrow = {DType::kF32, DType::kBF16, DType::kF16};
    const std::vector<DType> integers = {DType::kU8, DType::kI8,  DType::kU8,
                                         DType::kI8, DType::kI16, DType::kI32};
    if (!options_.floats || flip_coin(45)) {
      if (flip_coin(15)) return {DType::kI64, DType::kI64, DType::kI64};
      const DType a = pick(integers);
      return {a, flip_coin(50) ? a : pick(integers), DType::kI32};
    }
    if (flip_coin(20)) return {DType::kF64, DType::kF64, DType::kF64};
    const DType a = pick(narrow);
    return {a, flip_coin(60) ? a : pick(narrow), DType::kF32};
  }

  void add_contraction(Block& out) {
    const ContractDtypes dtypes = draw_contract_dtypes();
    const int64_t rows = 1 + draw(flip_coin(20) ? 15 : 5);
    const int64_t columns = pick<int64_t>({1, 4, 8, 16, 7, 32, 33, 64});
    std::vector<Expr> depths = {m_};
    if (flip_coin(40)) depths.insert(depths.begin() + draw(2), integer(1 + draw(3)));
    // The instructions that take several elements at once want them innermost.
    const int64_t word = pick<int64_t>({1, 1, 2, 4});
    if (word != 1) depths.push_back(integer(word));
    const size_t axes = 1 + depths.size();
    std::vector<Expr> extents_a = depths, extents_b = depths, steps_a, steps_b;
    extents_a.insert(extents_a.begin(), integer(rows));
    extents_b.insert(extents_b.begin(), integer(columns));
    const std::vector<size_t> order_a = draw_order(axes, false);
    std::vector<size_t> order_b = draw_order(axes, true);
    if (word != 1) {
      order_b.erase(std::find(order_b.begin(), order_b.end(), axes - 1));
      order_b.insert(order_b.begin() + (flip_coin(80) ? 0 : 1), axes - 1);
    }
    const Buffer* a = add_operand("a", dtypes.a, lay_out(extents_a, order_a, steps_a));
    const Buffer* b = add_operand("b", dtypes.b, lay_out(extents_b, order_b, steps_b));
    const auto scope = flip_coin(50) ? loop::Scope::kStack : loop::Scope::kRegister;
    const Buffer* c = arena_.make_buffer({new_name("acc"),
                                          dtypes.sum,
                                          scope,
                                          loop::Access::kInOut,
                                          {integer(rows), integer(columns)},
                                          {}});
    out.push_back(loop::Alloc::make(arena_, c));
    const auto* i = Variable::make(arena_, DType::kI64, new_name("i"));
    const auto* j = Variable::make(arena_, DType::kI64, new_name("j"));
    loop::LoopMode unrolled{.kind = LoopKind::kUnrolled};
    const Expr seven = is_float(dtypes.sum) ? loop::Constant::make_float(arena_, dtypes.sum, 7)
                                            : loop::Constant::make_int(arena_, dtypes.sum, 7);
    const loop::Stmt start = loop::Store::make(arena_, c, {i, j}, seven);
    const loop::Stmt row = loop::For::make(arena_, j, integer(0), integer(columns), {}, {start});
    const bool adds = flip_coin(50);
    if (adds) out.push_back(loop::For::make(arena_, i, integer(0), integer(rows), unrolled, {row}));
    const Expr zero = integer(0);
    const int64_t live = 1 + draw(static_cast<int>(columns));
    Expr live_columns = nullptr;
    if (flip_coin(50))
      live_columns = apply(Op::kMax, {apply(Op::kMin, {m_, integer(live)}), integer(1)});
    out.push_back(loop::Contract::make(
        arena_, {c, {zero, zero}, {integer(columns), integer(1)}}, {a, {zero}, std::move(steps_a)},
        {b, {zero}, std::move(steps_b)}, rows, columns, live_columns, std::move(depths), adds));
    const auto* value = Variable::make(arena_, dtypes.sum, new_name("v"));
    const Expr column = live_columns == nullptr ? integer(draw(static_cast<int>(columns)))
                                                : apply(Op::kSub, {live_columns, integer(1)});
    out.push_back(loop::Let::make(
        arena_, value,
        loop::Load::make(arena_, c, {integer(draw(static_cast<int>(rows))), column})));
    visible_.push_back(value);
  }

  void add_atomic(Block& out) {
    const auto dtype = pick<DType>({DType::kI32, DType::kI64});
    const auto op = pick<Op>({Op::kAdd, Op::kMin, Op::kMax, Op::kAnd, Op::kOr, Op::kXor});
    const Buffer* buffer = add_buffer(new_name("sum"), dtype, loop::Access::kInOut, {n_});
    const Expr mask = flip_coin(40) ? condition(1) : nullptr;
    const Expr place = loop::Load::make(arena_, index_, {index_below(m_)});
    out.push_back(loop::Atomic::make(arena_, op, buffer, {place}, expression(dtype, 2), mask));
    pending_.push_back(buffer);
  }

  void add_check(Block& out) {
    kernel_.errors.resize(1, {1, "RuntimeError", "a check failed: {0}"});
    const Expr value = expression(DType::kI8, 1);
    const Expr bound = loop::Constant::make_int(arena_, DType::kI8, flip_coin(20) ? -100 : -128);
    std::vector<Expr> details;
    if (flip_coin(50)) details.push_back(expression(DType::kI64, 1));
    out.push_back(loop::Check::make(arena_, apply(Op::kGe, {value, bound}), 1, details));
  }

  // An inner loop over 0..m that writes row `row` of a new buffer, or of a column where there is no
  // row.
  void add_inner_loop(Block& out, const Variable* row) { add_inner_loop(out, row, integer(0), m_); }

  void add_inner_loop(Block& out, const Variable* row, Expr begin, Expr end) {
    const DType dtype = draw_dtype();
    const auto access = flip_coin(25) ? loop::Access::kScratch : loop::Access::kOut;
    const Buffer* buffer = row != nullptr ? add_buffer(new_name("y"), dtype, access, {n_, m_})
                                          : add_buffer(new_name("y"), dtype, access, {m_});
    const auto* at = Variable::make(arena_, DType::kI64, new_name("j"));
    Block body;
    const loop::LoopMode mode = draw_mode(true);
    inside(at, m_, [&] {
      add_lets(body, draw(3));
      if (flip_coin(15)) add_table(body);
      if (flip_coin(15)) add_reduce(body, mode.kind != LoopKind::kVector);
      if (options_.atomics && flip_coin(10)) add_atomic(body);
      if (options_.checks && flip_coin(5)) add_check(body);
      std::vector<Expr> index = {at};
      if (row != nullptr) index.insert(index.begin(), row);
      add_store(body, buffer, index);
    });
    out.push_back(loop::For::make(arena_, at, begin, end, mode, std::move(body)));
    written_.push_back(buffer);
  }

  void add_row_statements(Block& out, const Variable* row) {
    add_lets(out, draw(3));
    if (flip_coin(30)) add_reduce(out, true);
    if (!options_.gpu && flip_coin(25)) add_scan(out, row);
    if (flip_coin(20)) add_table(out);
    if (options_.contractions && flip_coin(15)) add_contraction(out);
    if (options_.checks && flip_coin(5)) add_check(out);
    for (int i = 0; i <= draw(2); ++i) add_inner_loop(out, row);
    if (row != nullptr && flip_coin(40)) {
      const Buffer* buffer = add_buffer(new_name("y"), draw_dtype(), loop::Access::kOut, {n_});
      add_store(out, buffer, {row});
      written_.push_back(buffer);
    }
  }

  // Rows of one dimension in pieces, as long axes are dealt to blocks of threads.
  void add_chunks(Block& phase) {
    const Expr length = integer(pick<int64_t>({16, 32, 128, 200}));
    const auto* chunk = Variable::make(arena_, DType::kI64, new_name("chunk"));
    const Expr begin = apply(Op::kMul, {chunk, length});
    const auto* end = Variable::make(arena_, DType::kI64, new_name("end"));
    Block body;
    body.push_back(
        loop::Let::make(arena_, end, apply(Op::kMin, {apply(Op::kAdd, {begin, length}), m_})));
    const Expr chunks = apply(
        Op::kFloorDiv, {apply(Op::kAdd, {m_, apply(Op::kSub, {length, integer(1)})}), length});
    inside(chunk, chunks, [&] {
      add_lets(body, draw(2));
      for (int i = 0; i <= draw(3); ++i) add_inner_loop(body, nullptr, begin, end);
    });
    loop::LoopMode mode{.kind = LoopKind::kParallel};
    mode.group = draw_group();
    phase.push_back(loop::For::make(arena_, chunk, integer(0), chunks, mode, std::move(body)));
  }

  int64_t draw_group() { return pick<int64_t>({0, 1, 2, 8, 32, 32, 64, 128, 256}); }

  Block make_phase() {
    Block phase;
    pending_.clear();
    if (options_.gpu && flip_coin(25)) {
      add_chunks(phase);
    } else if (flip_coin(20)) {
      add_row_statements(phase, nullptr);
    } else {
      if (flip_coin(25)) add_lets(phase, 1);
      const auto* row = Variable::make(arena_, DType::kI64, new_name("i"));
      loop::LoopMode mode{.kind = flip_coin(80) ? LoopKind::kParallel : LoopKind::kSerial};
      if (mode.kind == LoopKind::kParallel) mode.grain = 1 + draw(4);
      if (mode.kind == LoopKind::kParallel && options_.gpu) mode.group = draw_group();
      Block body;
      inside(row, n_, [&] { add_row_statements(body, row); });
      phase.push_back(loop::For::make(arena_, row, integer(0), n_, mode, std::move(body)));
    }
    // Sums are whole when the phase ends.
    written_.insert(written_.end(), pending_.begin(), pending_.end());
    return phase;
  }

  std::mt19937_64 random_;
  const RandomProgramOptions options_;
  const std::string name_;
  loop::Arena arena_;
  loop::Kernel kernel_;
  std::string directives_;
  int index_depth_ = 0;  // of indices in indices
  Expr n_ = nullptr;
  Expr m_ = nullptr;
  const Buffer* index_ = nullptr;
  std::vector<const Buffer*> readable_;
  std::vector<const Buffer*> written_;
  std::vector<const Buffer*> pending_;  // of atomic updates
  std::vector<const Variable*> visible_;
  std::vector<std::pair<Expr, Expr>> indices_;  // loop variables and their extents
};

inline std::string random_program(uint64_t seed, const RandomProgramOptions& options = {}) {
  return RandomProgram(seed, options).make();
}

}  // namespace mlcc::fuzz
