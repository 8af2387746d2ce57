#include "codegen/cpu/function_emitter.h"

#include <numeric>

#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

// Whether a carried value of a scan is a sum that starts at 0.0. A lane may start at -0.0 then,
// which costs no addition: the 0.0 in front of the first lane decides the sign.
bool is_zero_of_sum(const loop::Reduce& scan, const loop::Carried& carried) {
  const auto* init = loop::as<loop::Constant>(carried.init);
  if (init == nullptr || !is_float(init->dtype) || init->bits != 0) return false;
  for (const loop::Stmt stmt : scan.body) {
    const auto* let = loop::as<loop::Let>(stmt);
    const auto* sum = let != nullptr ? loop::as<loop::Apply>(let->value) : nullptr;
    if (sum != nullptr && sum->op == loop::ScalarOp::kAdd &&
        (sum->args[0] == carried.variable || sum->args[1] == carried.variable))
      return true;
  }
  return false;
}

}  // namespace

// The carried values of a loop are passed through its phis as one flat list: for each carried
// variable its vectors, or its one scalar where all lanes agree.

void FunctionEmitter::emit_reduce(const loop::Reduce& reduce) {
  const Value begin = emit_expr(reduce.begin);
  const Value end = emit_expr(reduce.end);
  if (reduce.mode.kind == loop::LoopKind::kVector)
    return emit_vector_reduce(reduce, begin.scalar, end.scalar);
  if (reduce.mode.kind == loop::LoopKind::kScan) return emit_scan(reduce, begin.scalar, end.scalar);
  Parts inits;
  for (const loop::Carried& carried : reduce.carried)
    inits.append(flatten(carried, emit_expr(carried.init)));
  Parts results;
  if (begin.is_uniform() && end.is_uniform()) {
    results = emit_ordered(reduce.mode, begin.scalar, end.scalar, inits,
                           [&](llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried) {
                             return emit_reduce_step(reduce, uniform_value(index), carried, {});
                           });
  } else {
    results = emit_divergent(begin, end, inits,
                             [&](const Value& index, llvm::ArrayRef<llvm::Value*> carried) {
                               const Parts mask = vector_.active;
                               return emit_reduce_step(reduce, index, carried, mask);
                             });
  }
  const std::vector<Value> values = unflatten(reduce, results);
  for (size_t i = 0; i < values.size(); ++i) variables_[reduce.carried[i].result] = values[i];
}

Parts FunctionEmitter::flatten(const loop::Carried& carried, const Value& value) {
  if (vector_.lanes.is_vector && vector_.varying.contains(carried.variable))
    return to_parts(ops_, vector_.lanes, value);
  MLCC_CHECK(value.is_uniform(), "%", carried.variable->name, ": differs between lanes");
  return {value.scalar};
}

std::vector<Value> FunctionEmitter::unflatten(const loop::Reduce& reduce,
                                              llvm::ArrayRef<llvm::Value*> values) {
  std::vector<Value> result;
  for (const loop::Carried& carried : reduce.carried) {
    const bool varies = vector_.lanes.is_vector && vector_.varying.contains(carried.variable);
    const size_t count = varies ? vector_.lanes.parts : 1;
    const auto own = values.take_front(count);
    result.push_back(varies ? lanes_value(Parts(own)) : uniform_value(own[0]));
    values = values.drop_front(count);
  }
  return result;
}

// One step: `carried` in, the next values out; lanes outside `mask` (if given) keep what they had.
Parts FunctionEmitter::emit_reduce_step(const loop::Reduce& reduce, const Value& index,
                                        llvm::ArrayRef<llvm::Value*> carried, const Parts& mask) {
  variables_[reduce.variable] = index;
  const std::vector<Value> values = unflatten(reduce, carried);
  for (size_t i = 0; i < values.size(); ++i) variables_[reduce.carried[i].variable] = values[i];
  emit_block(reduce.body);
  Parts next;
  for (size_t i = 0; i < values.size(); ++i)
    next.append(flatten(reduce.carried[i], emit_expr(reduce.yields[i])));
  if (mask.empty()) return next;
  for (size_t i = 0; i < next.size(); ++i)
    next[i] = ir_.CreateSelect(mask[i % mask.size()], next[i], carried[i]);
  return next;
}

// ---- Vector reductions
// -----------------------------------------------------------------------------------------

// Every vector and every lane is a partial reduction of its own, which starts at init.
void FunctionEmitter::emit_vector_reduce(const loop::Reduce& reduce, llvm::Value* begin,
                                         llvm::Value* end) {
  MLCC_CHECK(reduce.combine, "%", reduce.variable->name, ": a vector reduction needs a combine");
  loop::VariableSet seeds = {reduce.variable};
  for (const loop::Carried& carried : reduce.carried) seeds.insert(carried.variable);
  const loop::VariableSet varying = loop::varying_variables(reduce.body, seeds);
  const Lanes lanes = lanes_of_mode(reduce.mode, begin, end);
  Parts init;
  for (const loop::Carried& carried : reduce.carried)
    init.push_back(splat(ops_, lanes.width, emit_scalar(carried.init)));
  std::vector<Parts> partials(lanes.parts, init);
  for (const VectorRange& range : split_vector_range(reduce.body, lanes, begin, end))
    emit_partials(reduce, range, varying, partials);
  while (partials.size() > 1) {
    const size_t half = partials.size() / 2;
    for (size_t p = 0; p < half; ++p)
      partials[p] =
          emit_combine(reduce, lanes.width, partials[p], partials[partials.size() - 1 - p]);
    partials.resize(partials.size() - half);
  }
  const Parts result = combine_lanes(reduce, lanes.width, partials[0]);
  for (size_t i = 0; i < result.size(); ++i)
    variables_[reduce.carried[i].result] = uniform_value(result[i]);
}

// Runs one range, which continues the first of the partial tuples: as many as it has vectors.
void FunctionEmitter::emit_partials(const loop::Reduce& reduce, const VectorRange& range,
                                    const loop::VariableSet& varying,
                                    std::vector<Parts>& partials) {
  const size_t num_carried = reduce.carried.size();
  Parts inits;
  for (size_t i = 0; i < num_carried; ++i)
    for (unsigned p = 0; p < range.lanes.parts; ++p) inits.push_back(partials[p][i]);
  auto step = [&](llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried) {
    enter_vector_loop(range, index, varying);
    const Parts mask = vector_.active;
    Parts next = emit_reduce_step(reduce, linear_value(index, ir_.getInt64(1)), carried, mask);
    vector_ = VectorState();
    return next;
  };
  const Parts next = emit_counted(range.begin, range.end, range.lanes.count(), inits, step);
  for (size_t i = 0; i < num_carried; ++i)
    for (unsigned p = 0; p < range.lanes.parts; ++p)
      partials[p][i] = next[i * range.lanes.parts + p];
}

// ---- Scans
// -----------------------------------------------------------------------------------------------------

// Every lane takes its own iteration in, as if it were the first. Prefixes of these within a vector
// cost log2(width) combines, and one more takes in what came before the vector: the carried values,
// which each lane of a vector holds.
void FunctionEmitter::emit_scan(const loop::Reduce& scan, llvm::Value* begin, llvm::Value* end) {
  loop::VariableSet seeds = {scan.variable};
  for (const loop::Carried& carried : scan.carried) seeds.insert(carried.variable);
  const loop::VariableSet varying = loop::varying_variables(scan.body, seeds);
  const Lanes lanes = lanes_of_mode(scan.mode, begin, end);
  Parts init;
  for (const loop::Carried& carried : scan.carried) {
    llvm::Value* value = emit_scalar(carried.init);
    const bool is_sum = is_zero_of_sum(scan, carried);
    variables_[carried.variable] =
        uniform_value(is_sum ? llvm::ConstantFP::getNegativeZero(value->getType()) : value);
    init.push_back(splat(ops_, lanes.width, value));
  }
  Parts sofar = init;
  // No body: a mask of several vectors would have its last lane in one of them.
  for (const VectorRange& range : split_vector_range({}, lanes, begin, end))
    sofar = emit_counted(range.begin, range.end, range.lanes.count(), sofar,
                         [&](llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried) {
                           enter_vector_loop(range, index, varying);
                           variables_[scan.variable] = linear_value(index, ir_.getInt64(1));
                           const Parts next = emit_scan_body(scan, range, index, carried);
                           vector_ = VectorState();
                           return next;
                         });
  for (size_t i = 0; i < sofar.size(); ++i)
    variables_[scan.carried[i].result] = uniform_value(
        lanes.width == 1 ? sofar[i] : ir_.CreateExtractElement(sofar[i], uint64_t{0}));
}

// Returns the carried values behind the iterations that run at once.
Parts FunctionEmitter::emit_scan_body(const loop::Reduce& scan, const VectorRange& range,
                                      llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried) {
  const auto step_end = loop::end_of_step(scan);
  MLCC_CHECK(step_end, "%", scan.variable->name, ": a yield of a scan is not a let of its body");
  const auto split = scan.body.begin() + static_cast<std::ptrdiff_t>(*step_end);
  emit_block({scan.body.begin(), split});
  std::vector<Parts> values;
  for (loop::Expr yield : scan.yields)
    values.push_back(to_parts(ops_, vector_.lanes, emit_expr(yield)));
  cache_.clear();
  llvm::Value* last = nullptr;  // the last lane with an iteration, where that is not the last one
  if (range.is_masked) {
    llvm::Value* left = ir_.CreateBinaryIntrinsic(
        llvm::Intrinsic::smin, ir_.CreateSub(range.end, index), ir_.getInt64(range.lanes.width));
    last = ir_.CreateSub(left, ir_.getInt64(1));
  }
  const VectorState state = vector_;
  Parts sofar(carried);
  for (unsigned p = 0; p < state.lanes.parts; ++p) {
    Parts part;
    for (const Parts& value : values) part.push_back(value[p]);
    part = emit_prefixes(scan, state.lanes.width, part);
    const Parts whole = emit_combine(scan, state.lanes.width, sofar, part);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i][p] = whole[i];
      sofar[i] = spread_lane(state.lanes.width, whole[i], last);
    }
  }
  vector_ = state;
  for (size_t i = 0; i < values.size(); ++i)
    variables_[loop::as<loop::Variable>(scan.yields[i])] = lanes_value(values[i]);
  emit_block({split, scan.body.end()});
  return sofar;
}

// In each lane the combination of all lanes up to it. Blocks of lanes are done, then of twice as
// many: the upper half takes in the last lane of the lower one (Sklansky's network). A shuffle then
// has one source, most are within 128 bits, and none needs zeros.
Parts FunctionEmitter::emit_prefixes(const loop::Reduce& scan, unsigned width, Parts values) {
  for (unsigned half = 1; half < width; half *= 2) {
    llvm::SmallVector<int, 32> lanes(width);
    llvm::SmallVector<llvm::Constant*, 32> is_upper(width);
    for (unsigned lane = 0; lane < width; ++lane) {
      const bool upper = (lane & half) != 0;
      lanes[lane] = static_cast<int>(upper ? (lane & ~(2 * half - 1)) + half - 1 : lane);
      is_upper[lane] = ir_.getInt1(upper);
    }
    Parts lower;
    for (llvm::Value* value : values) lower.push_back(ir_.CreateShuffleVector(value, lanes));
    const Parts merged = emit_combine(scan, width, lower, values);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = ir_.CreateSelect(llvm::ConstantVector::get(is_upper), merged[i], values[i]);
  }
  return values;
}

// What lane `last` (null: the last one) holds, in all lanes.
llvm::Value* FunctionEmitter::spread_lane(unsigned width, llvm::Value* value, llvm::Value* last) {
  if (width == 1) return value;
  if (last != nullptr) return splat(ops_, width, ir_.CreateExtractElement(value, last));
  const llvm::SmallVector<int, 32> lanes(width, static_cast<int>(width - 1));
  return ir_.CreateShuffleVector(value, lanes);
}

// combine(left, right) of two tuples of vectors.
Parts FunctionEmitter::emit_combine(const loop::Reduce& reduce, unsigned width, const Parts& left,
                                    const Parts& right) {
  vector_.lanes = {.width = width, .parts = 1, .is_vector = true};
  for (size_t i = 0; i < left.size(); ++i) {
    variables_[reduce.combine->left[i]] = lanes_value({left[i]});
    variables_[reduce.combine->right[i]] = lanes_value({right[i]});
  }
  emit_block(reduce.combine->body);
  Parts result;
  for (loop::Expr value : reduce.combine->values)
    result.push_back(to_parts(ops_, vector_.lanes, emit_expr(value))[0]);
  cache_.clear();
  vector_ = VectorState();
  return result;
}

// Folds the upper half of the lanes into the lower until one is left.
Parts FunctionEmitter::combine_lanes(const loop::Reduce& reduce, unsigned width, Parts values) {
  while (width > 1) {
    width /= 2;
    Parts lower, upper;
    for (llvm::Value* value : values) {
      lower.push_back(lane_range(value, 0, width));
      upper.push_back(lane_range(value, width, width));
    }
    values = emit_combine(reduce, width, lower, upper);
  }
  return values;
}

// Lanes [first, first + count) of a vector; a scalar where count is 1.
llvm::Value* FunctionEmitter::lane_range(llvm::Value* vector, unsigned first, unsigned count) {
  if (count == 1) return ir_.CreateExtractElement(vector, first);
  llvm::SmallVector<int, 32> lanes(count);
  std::iota(lanes.begin(), lanes.end(), static_cast<int>(first));
  return ir_.CreateShuffleVector(vector, lanes);
}

}  // namespace mlcc::codegen::cpu
