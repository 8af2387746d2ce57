// Vector loops: iterations dealt to the threads of a group, and reductions over them.
#include <algorithm>

#include "codegen/cuda/phase_emitter.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {

using loop::Expr;

namespace {

// Rounds up to which a loop of known length counts them.
constexpr int64_t kMostCountedRounds = 16;
// Rounds side by side where registers do not keep elements: more take registers and time to
// compile, and these have enough loads under way.
constexpr int64_t kUnrolledRounds = 4;

std::string number(int64_t value) { return std::to_string(value); }

std::string sum(const std::string& a, const std::string& b) { return a == "0" ? b : a + " + " + b; }

}  // namespace

std::string PhaseEmitter::cache_element(const ElementCache& cache,
                                        const std::string& element) const {
  if (!cache.is_shared) return cache.name + "[k].v[" + element + "]";
  const int64_t width = plan_->shape(*current_).width;
  const std::string rank = group_ > 1 ? " + rank" : "";
  return cache.name + "[(k * " + number(group_) + rank + ") * " + number(width) + " + " + element +
         "]";
}

void PhaseEmitter::emit_vector(const VectorLoop& loop) {
  current_ = &loop;
  text_.require_index_range(plan_->shape(loop).begin, plan_->shape(loop).end);
  offsets_.define_loop(loop.variable, plan_->shape(loop).begin, plan_->shape(loop).end);
  const auto* reduce = loop::as<loop::Reduce>(loop.stmt);
  if (reduce != nullptr)
    for (const loop::Carried& carried : reduce->carried) declare_carried(carried);
  emit_fill(loop);
  emit_rounds(loop);
  if (plan_->shape(loop).has_tail) emit_tail(loop);
  if (loop.has_checks && group_ > 1) {
    out_.line("stop_" + identifier(loop.variable->name) + ":;");
    out_.line(group_ <= kWarpThreads ? "if (__any_sync(mask, failed)) goto " + fail_label_ + ";"
                                     : "if (__syncthreads_or(failed)) goto " + fail_label_ + ";");
  }
  current_ = nullptr;
  if (reduce != nullptr && group_ > 1) emit_combine(*reduce);
}

namespace {

// The first iteration of round `k` that a thread runs.
std::string round_start(const std::string& begin, int64_t group, int64_t width) {
  const std::string rank = group > 1 ? "(k * " + number(group) + " + rank)" : "k";
  return sum(begin, width == 1 ? rank : rank + " * " + number(width));
}

}  // namespace

// The loop over rounds: unrolled whole where it is short, or where registers keep elements, whose
// numbers must then be constants. Inside, the loop's variable is a thread's first element.
void PhaseEmitter::open_rounds(const VectorLoop& loop) {
  const LoopShape& shape = plan_->shape(loop);
  const int64_t rounds = *shape.rounds;
  const bool has_registers =
      std::any_of(loop.accesses.begin(), loop.accesses.end(), [](const VectorAccess& access) {
        return access.cache != nullptr && !access.cache->is_shared;
      });
  if (rounds > 1 && loop.has_inner_loops && !has_registers)
    out_.unroll_by(1);  // the loops inside have loads in flight; side by side they do not run
  else if (rounds > 1 && (has_registers || rounds <= kUnrolledRounds))
    out_.unroll();
  else if (rounds > 1)
    out_.unroll_by(kUnrolledRounds);
  const std::string name = identifier(loop.variable->name);
  out_.open("for (i32 k = 0; k < " + number(rounds) + "; ++k) {");
  out_.line("const " + index_type_ + " " + name + " = " +
            round_start(text_.index(shape.begin), group_, shape.width) + ";");
  if (!shape.is_full) out_.open("if (" + name + last_start(shape) + ") {");
  text_.define(loop.variable, VariableKind::kElementIndex);
}

void PhaseEmitter::close_rounds(const VectorLoop& loop) {
  if (!plan_->shape(loop).is_full) out_.close();
  out_.close();
}

// What holds of the first one of a thread's elements if all of them are in the range.
std::string PhaseEmitter::last_start(const LoopShape& shape) const {
  const std::string end = text_.index(shape.end);
  return shape.has_tail ? " <= " + end + " - " + number(shape.width) : " < " + end;
}

// The rounds of a loop whose length is known, or a loop that strides over the range.
void PhaseEmitter::emit_rounds(const VectorLoop& loop) {
  const LoopShape& shape = plan_->shape(loop);
  const std::string name = identifier(loop.variable->name);
  const std::string begin = text_.index(shape.begin);
  const bool has_caches = std::any_of(loop.accesses.begin(), loop.accesses.end(),
                                      [](const VectorAccess& a) { return a.cache != nullptr; });
  if (shape.rounds && (has_caches || *shape.rounds <= kMostCountedRounds)) {
    open_rounds(loop);
    emit_elements(loop, shape.width);
    return close_rounds(loop);
  }
  text_.define(loop.variable, VariableKind::kElementIndex);
  const std::string rank =
      group_ > 1 ? sum(begin, shape.width == 1 ? "rank" : "rank * " + number(shape.width)) : begin;
  out_.unroll_by(loop.has_inner_loops ? 1 : kUnrolledRounds);
  out_.open("for (" + index_type_ + " " + name + " = " + rank + "; " + name + last_start(shape) +
            "; " + name + " += " + number(group_ * shape.width) + ") {");
  emit_elements(loop, shape.width);
  out_.close();
}

// Reads what caches keep from this loop on, all rounds ahead of the work.
void PhaseEmitter::emit_fill(const VectorLoop& loop) {
  const LoopShape& shape = plan_->shape(loop);
  std::vector<const VectorAccess*> filled;
  std::unordered_set<const ElementCache*> seen;
  for (const VectorAccess& access : loop.accesses)
    if (access.cache != nullptr && access.cache->first == loop.stmt && access.cache->is_loaded &&
        access.load != nullptr && seen.insert(access.cache).second)
      filled.push_back(&access);
  if (filled.empty()) return;
  open_rounds(loop);
  for (const VectorAccess* access : filled) {
    const loop::Load& load = *access->load;
    const std::string address = text_.address(load.buffer, load.indices);
    if (access->is_packed && !access->cache->is_shared) {
      out_.line(access->cache->name + "[k] = load_pack<" + number(shape.width) + ">(" + address +
                ");");
      continue;
    }
    std::string element;
    if (access->is_packed) {
      const std::string pack = "q" + access->cache->name;
      out_.line("const auto " + pack + " = load_pack<" + number(shape.width) + ">(" + address +
                ");");
      element = pack + ".v[e]";
    }
    if (shape.width > 1) {
      out_.unroll();
      out_.open("for (i32 e = 0; e < " + number(shape.width) + "; ++e) {");
      text_.set_element("e");
    }
    if (element.empty()) element = "load(" + text_.address(load.buffer, load.indices) + ")";
    out_.line(cache_element(*access->cache, shape.width > 1 ? "e" : "0") + " = " + element + ";");
    if (shape.width > 1) {
      text_.set_element("");
      out_.close();
    }
  }
  close_rounds(loop);
}

// What is left where the range ends inside a thread's elements.
void PhaseEmitter::emit_tail(const VectorLoop& loop) {
  const LoopShape& shape = plan_->shape(loop);
  const std::string name = identifier(loop.variable->name);
  const std::string begin = text_.index(shape.begin), end = text_.index(shape.end);
  text_.define(loop.variable, VariableKind::kIndex);
  out_.unroll_by(1);  // fewer elements than a thread has in a round
  out_.open("for (" + index_type_ + " " + name + " = " + end + " - (" + end + " - (" + begin +
            ")) % " + number(shape.width) + (group_ > 1 ? " + rank" : "") + "; " + name + " < " +
            end + "; " + name + " += " + number(group_) + ") {");
  is_tail_ = true;
  emit_elements(loop, 1);
  is_tail_ = false;
  out_.close();
}

// The body for `count` neighbouring iterations of one thread.
void PhaseEmitter::emit_elements(const VectorLoop& loop, int64_t count) {
  elements_ = {.count = count, .by_statement = false, .varying = {}};
  const auto* reduce = loop::as<loop::Reduce>(loop.stmt);
  if (count > 1 && loop.has_inner_loops) {
    elements_.by_statement = true;
    elements_.varying = loop.varying;
    MLCC_CHECK(reduce == nullptr, "cuda: a reduction of several elements with loops inside");
    emit_thread(*loop.body);
    elements_ = {};
    return;
  }
  define_loads(loop, count);
  if (count > 1) {
    out_.unroll();
    out_.open("for (i32 e = 0; e < " + number(count) + "; ++e) {");
    text_.set_element("e");
  }
  emit_thread(*loop.body);
  if (reduce != nullptr) emit_step(*reduce);
  if (count > 1) {
    text_.set_element("");
    out_.close();
    emit_packed_stores(loop);
  }
  for (const VectorAccess& access : loop.accesses)
    if (access.load != nullptr) text_.forget_load(access.load);
  elements_ = {};
}

void PhaseEmitter::define_loads(const VectorLoop& loop, int64_t count) {
  const std::string element = count > 1 ? "e" : "0";
  std::unordered_set<const loop::Load*> seen;
  for (const VectorAccess& access : loop.accesses) {
    if (access.store != nullptr && access.is_packed && count > 1)
      out_.line("Pack<" + std::string(type_text(access.buffer->dtype)) + ", " + number(count) +
                "> w" + identifier(access.buffer->name) + ";");
    if (access.load == nullptr || !seen.insert(access.load).second) continue;
    if (access.cache != nullptr && !is_tail_) {
      text_.define_load(access.load, cache_element(*access.cache, element));
    } else if (access.is_packed && count > 1) {
      const std::string name = "q" + number(next_name_++);
      out_.line("const auto " + name + " = load_pack<" + number(count) + ">(" +
                text_.address(access.buffer, access.load->indices) + ");");
      text_.define_load(access.load, name + ".v[e]");
    }
  }
}

void PhaseEmitter::emit_packed_stores(const VectorLoop& loop) {
  for (const VectorAccess& access : loop.accesses)
    if (access.store != nullptr && access.is_packed)
      out_.line("store_pack(" + text_.address(access.buffer, access.store->indices) + ", w" +
                identifier(access.buffer->name) + ");");
}

// ---- Reductions ---------------------------------------------------------------------------------

// One step of combining the partial values of two lanes.
void PhaseEmitter::emit_butterfly(const loop::Reduce& reduce, int64_t lanes,
                                  const std::string& mask) {
  if (lanes == 1) return;
  const loop::Combine& combine = *reduce.combine;
  out_.unroll();
  out_.open("for (u32 d = " + number(lanes / 2) + "; d > 0; d /= 2) {");
  for (size_t i = 0; i < reduce.carried.size(); ++i) {
    const std::string own = identifier(reduce.carried[i].variable->name);
    const std::string other = "other_" + own;
    out_.line("const " + declare(reduce.carried[i].variable->dtype, other) + " = shuffle_xor(" +
              mask + ", " + own + ", d);");
    text_.define_as(combine.left[i], own);
    text_.define_as(combine.right[i], other);
  }
  for (loop::Stmt stmt : combine.body) emit_let(*loop::as<loop::Let>(stmt));
  std::vector<std::string> names;
  for (size_t i = 0; i < reduce.carried.size(); ++i) {
    names.push_back("n" + number(next_name_++));
    out_.line("const " + declare(reduce.carried[i].variable->dtype, names.back()) + " = " +
              text_.value(combine.values[i]) + ";");
  }
  for (size_t i = 0; i < reduce.carried.size(); ++i)
    out_.line(identifier(reduce.carried[i].variable->name) + " = " + names[i] + ";");
  out_.close();
}

// All threads of the group end with the group's value.
void PhaseEmitter::emit_combine(const loop::Reduce& reduce) {
  const int64_t lanes = std::min(group_, kWarpThreads);
  emit_butterfly(reduce, lanes, group_ <= kWarpThreads ? "mask" : "0xffffffffu");
  if (group_ <= kWarpThreads) return;
  const int64_t warps = group_ / kWarpThreads;
  // The scratch may still be read from the last time.
  const VectorLoop* loop = plan_->find(&reduce);
  if (pending_reads_.contains(loop)) barrier();
  std::vector<std::string> scratch;
  for (const loop::Carried& carried : reduce.carried) {
    scratch.push_back("s_" + identifier(carried.variable->name));
    out_.line("__shared__ " + declare(carried.variable->dtype, scratch.back()) + "[" +
              number(warps) + "];");
  }
  out_.open("if (rank % 32 == 0) {");
  for (size_t i = 0; i < scratch.size(); ++i)
    out_.line(scratch[i] + "[rank / 32] = " + identifier(reduce.carried[i].variable->name) + ";");
  out_.close();
  barrier();
  for (size_t i = 0; i < scratch.size(); ++i)
    out_.line(identifier(reduce.carried[i].variable->name) + " = " + scratch[i] + "[rank % " +
              number(warps) + "];");
  emit_butterfly(reduce, warps, "0xffffffffu");
  pending_reads_.insert(loop);
}

}  // namespace mlcc::codegen::cuda
