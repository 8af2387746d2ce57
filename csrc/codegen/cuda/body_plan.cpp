#include "codegen/cuda/body_plan.h"

#include <algorithm>
#include <array>
#include <set>

#include "loop/mutator.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {

using loop::Block;
using loop::Buffer;
using loop::Expr;
using loop::LoopKind;
using loop::Stmt;
using loop::StmtKind;

namespace {

// What a thread may keep of what it touches, and where.
// Registers that a thread's work takes beside its caches: with fewer, code with wide bodies spills.
constexpr int64_t kWorkRegisters = 40;
// Caches take no more registers than leave this part of a multiprocessor's threads resident.
constexpr int64_t kLeastPartOfThreads = 2;
// Rounds of a loop over registers, which is unrolled whole: more take long to compile, and spill.
constexpr int64_t kMostRegisterRounds = 16;
// Rounds whose loads are made ahead of the rounds' work: that many accesses are then in flight.
constexpr int64_t kMostStagedRounds = 8;
constexpr int64_t kMostStagedRegisters = 32;  // of a thread, for what these loads give
constexpr int64_t kMostPrivateBytes = 4096;   // of a thread's local arrays: they lie in memory
constexpr int64_t kSharedAlignment = 16;      // bytes, of arrays in shared memory
constexpr int64_t kWidestAccess = 16;         // bytes that a thread loads or stores at once

bool is_vector(Stmt stmt) {
  if (const auto* loop = loop::as<loop::For>(stmt)) return loop->mode.kind == LoopKind::kVector;
  if (const auto* reduce = loop::as<loop::Reduce>(stmt))
    return reduce->mode.kind == LoopKind::kVector;
  return false;
}

bool is_local(const Buffer* buffer) { return buffer->scope != loop::Scope::kGlobal; }

std::optional<int64_t> elements_of(const Buffer* buffer) {
  return Offsets::extent(buffer).as_constant();
}

}  // namespace

class BodyPlanner {
 public:
  BodyPlanner(const Offsets& offsets, int64_t group, int64_t groups, bool has_widths,
              const EmitOptions& options)
      : offsets_(offsets), group_(group), groups_(groups), has_widths_(has_widths),
        options_(options) {}

  Result<BodyPlan> plan(const Block& body) {
    visit(body, true);
    for (size_t shape = 0; shape < plan_.shapes_.size(); ++shape) choose_width(shape);
    for (auto& loop : plan_.loops_) classify(*loop);
    find_aligned();
    for (size_t shape = 0; shape < plan_.shapes_.size(); ++shape) choose_caches(shape);
    if (auto reason = place_local_buffers()) return Unsupported{*reason};
    place_caches();
    for (auto& loop : plan_.loops_) choose_packs(*loop);
    return std::move(plan_);
  }

 private:
  // -- what is there
  void visit(const Block& block, bool is_top) {
    for (Stmt stmt : block) visit(stmt, is_top);
  }

  void visit(Stmt stmt, bool is_top) {
    if (is_vector(stmt)) return add_loop(stmt, is_top);
    for (Expr e : loop::operands(stmt)) visit_uniform(e);
    if (const auto* let = loop::as<loop::Let>(stmt)) {
      offsets_.define(*let);
      if (!is_top) inner_names_.insert(let->variable->name);
      definitions_[let->variable] = let->value;
    }
    if (const auto* store = loop::as<loop::Store>(stmt)) touch_uniform(store->buffer, true);
    if (const auto* atomic = loop::as<loop::Atomic>(stmt)) touch_uniform(atomic->buffer, true);
    if (stmt->kind == StmtKind::kCheck) plan_.has_checks_ = true;
    if (const auto* alloc = loop::as<loop::Alloc>(stmt)) local_buffers_.push_back(alloc->buffer);
    if (const auto* loop = loop::as<loop::For>(stmt)) {
      inner_names_.insert(loop->variable->name);
      offsets_.define_loop(loop->variable, loop->begin, loop->end);
    }
    if (const auto* reduce = loop::as<loop::Reduce>(stmt)) {
      inner_names_.insert(reduce->variable->name);
      for (const loop::Carried& carried : reduce->carried)
        inner_names_.insert(carried.variable->name);
      offsets_.define_loop(reduce->variable, reduce->begin, reduce->end);
    }
    for (const Block* block : loop::blocks(stmt)) visit(*block, false);
  }

  void visit_uniform(Expr e) {
    if (e == nullptr) return;
    loop::for_each_expr({e}, [&](Expr each) {
      if (const auto* load = loop::as<loop::Load>(each)) touch_uniform(load->buffer, false);
    });
  }

  void touch_uniform(const Buffer* buffer, bool is_write) {
    uniform_.insert(buffer);
    if (is_write) written_.insert(buffer);
  }

  void add_loop(Stmt stmt, bool is_top) {
    auto loop = std::make_unique<VectorLoop>();
    loop->stmt = stmt;
    loop::LoopMode mode;
    Expr begin = nullptr, end = nullptr;
    if (const auto* plain = loop::as<loop::For>(stmt)) {
      loop->variable = plain->variable;
      loop->body = &plain->body;
      begin = plain->begin;
      end = plain->end;
      mode = plain->mode;
    } else {
      const auto* reduce = loop::as<loop::Reduce>(stmt);
      for (const loop::Carried& carried : reduce->carried) visit_uniform(carried.init);
      loop->variable = reduce->variable;
      loop->body = &reduce->body;
      loop->yields = reduce->yields;
      begin = reduce->begin;
      end = reduce->end;
      mode = reduce->mode;
    }
    visit_uniform(begin);
    visit_uniform(end);
    loop->shape = shape_of(begin, end, has_widths_ ? std::max<int64_t>(1, mode.width) : 1);
    offsets_.define_loop(loop->variable, begin, end);
    loop->varying = loop::varying_variables(*loop->body, {loop->variable});
    std::set<std::string> names;
    collect(*loop, *loop->body, true, names);
    for (Expr yield : loop->yields) collect_loads(*loop, yield, certain_, names);
    certain_ = true;
    if (!is_top) nested_.insert(loop.get());
    plan_.has_checks_ |= loop->has_checks;
    plan_.by_stmt_[stmt] = loop.get();
    plan_.loops_.push_back(std::move(loop));
  }

  size_t shape_of(Expr begin, Expr end, int64_t width) {
    for (size_t i = 0; i < plan_.shapes_.size(); ++i) {
      LoopShape& shape = plan_.shapes_[i];
      if (shape.begin != begin || shape.end != end) continue;
      shape.width = std::min(shape.width, width);
      return i;
    }
    plan_.shapes_.push_back({.begin = begin, .end = end, .width = width});
    return plan_.shapes_.size() - 1;
  }

  // The accesses of a vector loop's body; `names`: variables bound in it.
  void collect(VectorLoop& loop, const Block& block, bool is_own, std::set<std::string>& names) {
    if (is_own) certain_ = true;
    for (Stmt stmt : block) {
      const bool is_certain = is_own && certain_;
      for (Expr e : loop::operands(stmt)) collect_loads(loop, e, is_certain, names);
      if (const auto* let = loop::as<loop::Let>(stmt)) {
        offsets_.define(*let);
        names.insert(let->variable->name);
      }
      if (const auto* store = loop::as<loop::Store>(stmt)) {
        written_.insert(store->buffer);
        VectorAccess access{.buffer = store->buffer, .store = store};
        access.is_certain = is_certain && store->mask == nullptr;
        set_place(access, loop, store->indices, names);
        loop.accesses.push_back(std::move(access));
      }
      if (const auto* atomic = loop::as<loop::Atomic>(stmt)) touch_uniform(atomic->buffer, true);
      if (const auto* alloc = loop::as<loop::Alloc>(stmt)) plan_.private_.insert(alloc->buffer);
      if (stmt->kind == StmtKind::kCheck) {
        loop.has_checks = true;
        certain_ = false;
      }
      if (const auto* inner = loop::as<loop::For>(stmt)) {
        loop.has_inner_loops = true;
        names.insert(inner->variable->name);
      }
      if (const auto* inner = loop::as<loop::Reduce>(stmt)) {
        loop.has_inner_loops = true;
        names.insert(inner->variable->name);
        for (const loop::Carried& carried : inner->carried) {
          names.insert(carried.variable->name);
          names.insert(carried.result->name);
        }
      }
      for (const Block* inner : loop::blocks(stmt)) collect(loop, *inner, false, names);
    }
  }

  void collect_loads(VectorLoop& loop, Expr e, bool is_certain,
                     const std::set<std::string>& names) {
    if (e == nullptr) return;
    loop::for_each_expr({e}, [&](Expr each) {
      const auto* load = loop::as<loop::Load>(each);
      if (load == nullptr) return;
      VectorAccess access{.buffer = load->buffer, .load = load};
      access.is_certain = is_certain && load->mask == nullptr;
      set_place(access, loop, load->indices, names);
      loop.accesses.push_back(std::move(access));
    });
  }

  // The offset over kLane, and whether it stays the same whenever the loop runs.
  void set_place(VectorAccess& access, const VectorLoop& loop, const std::vector<Expr>& indices,
                 const std::set<std::string>& names) const {
    const auto offset = offsets_.offset(access.buffer, indices);
    if (!offset) return;
    access.is_early = true;
    loop::for_each_expr(indices, [&](Expr e) {
      const auto* variable = loop::as<loop::Variable>(e);
      access.is_early &= variable == nullptr || !names.contains(variable->name);
    });
    const std::string& own = loop.variable->name;
    const std::vector<std::string> used = offset->symbols();
    access.is_stable = std::none_of(used.begin(), used.end(), [&](const std::string& name) {
      return name != own && names.contains(name);
    });
    access.place = offset->substitute([&](std::string_view name) -> std::optional<SymExpr> {
      return name == own ? std::optional(SymExpr::symbol(kLane)) : std::nullopt;
    });
  }

  // -- widths
  // Neighbouring iterations touch neighbouring elements of memory. Where the accesses of all of
  // them stand in front of the body, the place must be known there.
  static bool is_unit(const VectorLoop& loop, const VectorAccess& access) {
    if (!access.place || is_local(access.buffer)) return false;
    if (!loop.has_inner_loops && !access.is_early) return false;
    const std::vector<std::string> used = access.place->symbols();
    for (const loop::Variable* variable : loop.varying)
      if (std::find(used.begin(), used.end(), variable->name) != used.end()) return false;
    const auto linear = access.place->linear_in(kLane);
    return linear && linear->coefficient.equals_constant(1);
  }

  // Whether each statement of the body can be written down once for all elements of a thread.
  static bool can_go_by_statement(const VectorLoop& loop) {
    return loop.stmt->kind == StmtKind::kFor && is_plain(*loop.body) &&
           has_uniform_ranges(loop, *loop.body);
  }

  static bool has_uniform_ranges(const VectorLoop& loop, const Block& block) {
    return std::all_of(block.begin(), block.end(), [&](Stmt stmt) {
      const auto* plain = loop::as<loop::For>(stmt);
      const auto* reduce = loop::as<loop::Reduce>(stmt);
      if (plain != nullptr && !is_uniform(loop, {plain->begin, plain->end})) return false;
      if (reduce != nullptr && !is_uniform(loop, {reduce->begin, reduce->end})) return false;
      const std::vector<const Block*> inner = loop::blocks(stmt);
      return std::all_of(inner.begin(), inner.end(),
                         [&](const Block* b) { return has_uniform_ranges(loop, *b); });
    });
  }

  static bool is_uniform(const VectorLoop& loop, const std::vector<Expr>& exprs) {
    bool is_uniform = true;
    loop::for_each_expr(exprs, [&](Expr e) {
      const auto* variable = loop::as<loop::Variable>(e);
      is_uniform &= variable == nullptr || !loop.varying.contains(variable);
    });
    return is_uniform;
  }

  bool is_width(size_t index, int64_t width, std::vector<SymExpr>& conditions) const {
    const LoopShape& shape = plan_.shapes_[index];
    const auto begin = offsets_.symbolic(shape.begin);
    if (!begin) return false;
    bool has_unit = false;
    for (const auto& loop : plan_.loops_) {
      if (loop->shape != index) continue;
      if (loop->has_inner_loops && !can_go_by_statement(*loop)) return false;
      for (const VectorAccess& access : loop->accesses) {
        if (!is_unit(*loop, access)) continue;
        has_unit = true;
        const SymExpr start = access.place->linear_in(kLane)->rest + *begin;
        const Offsets::Divides divides = offsets_.divides(width, start);
        if (divides == Offsets::Divides::kNever) return false;
        if (divides == Offsets::Divides::kIfSizesDo) conditions.push_back(start);
      }
    }
    return has_unit;
  }

  // Statements that can be written down once for several iterations, each with arrays for
  // variables.
  static bool is_plain(const Block& block) {
    return std::all_of(block.begin(), block.end(), [](Stmt stmt) {
      static constexpr std::array kPlain = {StmtKind::kLet, StmtKind::kStore, StmtKind::kFor,
                                            StmtKind::kReduce};
      if (std::find(kPlain.begin(), kPlain.end(), stmt->kind) == kPlain.end()) return false;
      const std::vector<const Block*> inner = loop::blocks(stmt);
      return std::all_of(inner.begin(), inner.end(), [](const Block* b) { return is_plain(*b); });
    });
  }

  void choose_width(size_t index) {
    LoopShape& shape = plan_.shapes_[index];
    if (options_.variant == Variant::kGeneral) shape.width = 1;
    std::vector<SymExpr> conditions;
    while (shape.width > 1 && !is_width(index, shape.width, conditions)) {
      shape.width /= 2;
      conditions.clear();
    }
    const auto begin = offsets_.symbolic(shape.begin), end = offsets_.symbolic(shape.end);
    const auto length = begin && end ? std::optional(*end - *begin) : std::nullopt;
    if (shape.width > 1) {
      for (const SymExpr& e : conditions)
        for (const std::string& name : e.symbols())
          if (offsets_.is_size(name)) require_divisible(name, shape.width);
      shape.has_tail = !length || !divides_now(shape.width, *length);
    }
    const int64_t step = group_ * shape.width;
    if (const auto longest = longest_length(shape)) {
      shape.rounds = std::max<int64_t>(1, (*longest + step - 1) / step);
      shape.is_full =
          *longest > 0 && length && length->as_constant() && *length->as_constant() % step == 0;
    }
  }

  bool divides_now(int64_t divisor, const SymExpr& e) const {
    const Offsets::Divides divides = offsets_.divides(divisor, e);
    if (divides != Offsets::Divides::kIfSizesDo) return divides == Offsets::Divides::kAlways;
    for (const std::string& name : e.symbols()) {
      if (!offsets_.is_size(name)) continue;
      const bool is_required = std::any_of(
          plan_.divisible_.begin(), plan_.divisible_.end(), [&](const Divisibility& known) {
            return known.expr == SymExpr::symbol(name) && known.divisor % divisor == 0;
          });
      if (!is_required) return false;
    }
    return true;
  }

  void require_divisible(const std::string& name, int64_t divisor) {
    const SymExpr size = SymExpr::symbol(name);
    for (Divisibility& known : plan_.divisible_) {
      if (!(known.expr == size)) continue;
      known.divisor = std::max(known.divisor, divisor);
      return;
    }
    plan_.divisible_.push_back({size, divisor});
  }

  // The most iterations that the range can have, if that is known: `end` is then a constant away
  // from `begin`, or the smaller one of something that is and something else.
  std::optional<int64_t> longest_length(const LoopShape& shape) const {
    const auto begin = offsets_.symbolic(shape.begin);
    if (!begin) return std::nullopt;
    Expr end = shape.end;
    if (const auto* variable = loop::as<loop::Variable>(end))
      if (const auto let = definitions_.find(variable); let != definitions_.end())
        end = let->second;
    std::vector<Expr> bounds{end};
    if (const auto* apply = loop::as<loop::Apply>(end); apply && apply->op == loop::ScalarOp::kMin)
      bounds = apply->args;
    std::optional<int64_t> best;
    for (Expr bound : bounds) {
      const auto value = offsets_.symbolic(bound);
      const auto length = value ? (*value - *begin).as_constant() : std::nullopt;
      if (length && (!best || *length < *best)) best = length;
    }
    return best;
  }

  // -- accesses
  void classify(VectorLoop& loop) {
    for (VectorAccess& access : loop.accesses) {
      access.is_unit = is_unit(loop, access);
      if (access.place && changes_between_rounds(*access.place)) access.is_stable = false;
      if (!access.is_stable) {
        irregular_.insert(access.buffer);
        continue;
      }
      const auto linear = access.place->linear_in(kLane);
      const bool is_injective =
          linear && linear->coefficient.is_constant() && !linear->coefficient.equals_constant(0);
      if (!is_injective) irregular_.insert(access.buffer);
      places_[access.buffer].insert({loop.shape, *access.place});
    }
  }

  bool changes_between_rounds(const SymExpr& place) const {
    const std::vector<std::string> names = place.symbols();
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return inner_names_.contains(name); });
  }

  // Buffers each element of which only ever one thread of the group touches.
  void find_aligned() {
    for (const auto& [buffer, places] : places_)
      if (places.size() == 1 && !uniform_.contains(buffer) && !irregular_.contains(buffer))
        aligned_.insert(buffer);
    plan_.exempt_ = aligned_;
  }

  struct Candidate {
    ElementCache cache;
    std::vector<VectorAccess*> accesses;  // in program order
    std::set<const VectorLoop*> loops;
  };

  void choose_caches(size_t index) {
    const LoopShape& shape = plan_.shapes_[index];
    if (!shape.rounds) return;
    std::vector<Candidate> candidates;
    for (auto& loop : plan_.loops_) {
      if (loop->shape != index || loop->has_inner_loops || nested_.contains(loop.get())) continue;
      for (VectorAccess& access : loop->accesses) add_candidate(candidates, *loop, access);
    }
    int64_t registers = 0;
    const auto take = [&](Candidate& candidate) {
      const int64_t needed = registers_of(shape, candidate.cache.buffer);
      candidate.cache.is_shared =
          registers + needed > cache_registers() || *shape.rounds > kMostRegisterRounds;
      if (!candidate.cache.is_shared) registers += needed;
      return !candidate.cache.is_shared;
    };
    for (Candidate& candidate : candidates) {
      const Buffer* buffer = candidate.cache.buffer;
      // Only ever touched here, and each element by one thread.
      const bool is_own = aligned_.contains(buffer) && has_all_accesses(candidate);
      const bool is_only = is_local(buffer) && is_own && !plan_.private_.contains(buffer);
      if (shape.has_tail || !(is_only || candidate.loops.size() > 1)) continue;
      if (is_local(buffer) ? !is_only : written_.contains(buffer) && !is_own) continue;
      if (!candidate.accesses.front()->is_certain) continue;
      const bool fits = take(candidate);
      if (!fits && is_only) continue;  // lies in shared memory as it is
      if (is_only) plan_.register_only_.insert(buffer);
      keep(candidate);
    }
    stage(index, candidates, registers);
  }

  // Loads of a loop with several rounds are made ahead of their use.
  void stage(size_t index, std::vector<Candidate>& candidates, int64_t registers) {
    const LoopShape& shape = plan_.shapes_[index];
    if (*shape.rounds < 2 || *shape.rounds > kMostStagedRounds) return;
    for (Candidate& candidate : candidates) {
      const Buffer* buffer = candidate.cache.buffer;
      if (candidate.accesses.front()->cache != nullptr || is_local(buffer)) continue;
      if (written_.contains(buffer) || candidate.loops.size() != 1) continue;
      if (!candidate.accesses.front()->is_certain) continue;
      registers += registers_of(shape, buffer);
      if (registers > std::min(kMostStagedRegisters, cache_registers())) return;
      keep(candidate);
    }
  }

  bool has_all_accesses(const Candidate& candidate) const {
    int64_t count = 0;
    for (const auto& loop : plan_.loops_)
      count += std::count_if(
          loop->accesses.begin(), loop->accesses.end(),
          [&](const VectorAccess& access) { return access.buffer == candidate.cache.buffer; });
    return count == static_cast<int64_t>(candidate.accesses.size());
  }

  // What a thread's elements of all rounds take; those of a round lie packed.
  static int64_t registers_of(const LoopShape& shape, const Buffer* buffer) {
    return *shape.rounds * ((shape.width * dtype_size(buffer->dtype) + 3) / 4);
  }

  // Registers of a thread that caches may take: what its work does not need if a block has the
  // multiprocessor for itself, and never so many that fewer than half the threads fit.
  int64_t cache_registers() const {
    const int64_t registers = options_.registers_per_multiprocessor;
    const int64_t threads = std::max<int64_t>(group_ * groups_, 1);
    return std::max<int64_t>(
        0, std::min(registers / (options_.threads_per_multiprocessor / kLeastPartOfThreads),
                    registers / threads - kWorkRegisters));
  }

  void add_candidate(std::vector<Candidate>& candidates, const VectorLoop& loop,
                     VectorAccess& access) const {
    if (!access.is_stable || access.buffer->access == loop::Access::kValue) return;
    if (access.load != nullptr && !access.is_early) return;
    if (!access.place->contains(kLane)) return;
    auto found = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.cache.buffer == access.buffer && c.cache.place == *access.place;
    });
    if (found == candidates.end()) {
      candidates.push_back({{access.buffer, *access.place, ""}, {}, {}});
      found = candidates.end() - 1;
      found->cache.first = loop.stmt;
      found->cache.is_loaded = access.load != nullptr;
    }
    found->accesses.push_back(&access);
    found->loops.insert(&loop);
  }

  void keep(Candidate& candidate) {
    candidate.cache.name = "c" + std::to_string(plan_.caches_.size());
    plan_.caches_.push_back(std::make_unique<ElementCache>(candidate.cache));
    for (VectorAccess* access : candidate.accesses) access->cache = plan_.caches_.back().get();
  }

  // -- shared memory
  std::optional<std::string> place_local_buffers() {
    for (const Buffer* buffer : local_buffers_) {
      if (plan_.register_only_.contains(buffer)) continue;
      const auto elements = elements_of(buffer);
      if (!elements) return "local buffer %" + buffer->name + ": its size is not a constant";
      const int64_t bytes = *elements * dtype_size(buffer->dtype);
      if (group_ == 1) {
        plan_.private_.insert(buffer);
        if (bytes > kMostPrivateBytes)
          return "local buffer %" + buffer->name + ": " + std::to_string(bytes) + " bytes a thread";
        continue;
      }
      if (!reserve_shared(bytes))
        return "local buffer %" + buffer->name + ": " + std::to_string(bytes) +
               " bytes do not fit shared memory";
      plan_.shared_buffers_.push_back(buffer);
    }
    return std::nullopt;
  }

  bool reserve_shared(int64_t bytes) {
    const int64_t padded = BodyPlan::padded(bytes);
    if ((plan_.shared_bytes_ + padded) * groups_ > options_.max_shared_bytes - reduction_scratch())
      return false;
    plan_.shared_bytes_ += padded;
    return true;
  }

  // The static arrays that groups of several warps combine their values in; they add up.
  int64_t reduction_scratch() const {
    if (group_ <= kWarpThreads) return 0;
    int64_t bytes = 0;
    for (const auto& loop : plan_.loops_)
      if (const auto* reduce = loop::as<loop::Reduce>(loop->stmt))
        for (const loop::Carried& carried : reduce->carried)
          bytes += BodyPlan::padded(group_ / kWarpThreads * dtype_size(carried.variable->dtype));
    return bytes;
  }

  // A cache that registers cannot hold goes to shared memory, or is given up.
  void place_caches() {
    for (auto& cache : plan_.caches_) {
      if (!cache->is_shared) continue;
      const VectorLoop* loop = plan_.find(cache->first);
      const LoopShape& shape = plan_.shape(*loop);
      cache->bytes = *shape.rounds * shape.width * group_ * dtype_size(cache->buffer->dtype);
      if (reserve_shared(cache->bytes)) continue;
      for (auto& each : plan_.loops_)
        for (VectorAccess& access : each->accesses)
          if (access.cache == cache.get()) access.cache = nullptr;
      cache.reset();
    }
    std::erase_if(plan_.caches_, [](const auto& cache) { return cache == nullptr; });
  }

  // -- packs
  void choose_packs(VectorLoop& loop) {
    const int64_t width = plan_.shapes_[loop.shape].width;
    if (width == 1) return;
    for (VectorAccess& access : loop.accesses) {
      if (!can_pack(loop, access)) continue;
      access.is_packed = true;
      int64_t& alignment = plan_.alignment_[access.buffer];
      alignment = std::max(
          alignment, std::min<int64_t>(kWidestAccess, width * dtype_size(access.buffer->dtype)));
    }
  }

  // A load made ahead sees no store of the same body; a store made afterwards is seen by no load.
  static bool can_pack(const VectorLoop& loop, const VectorAccess& access) {
    if (!access.is_unit) return false;
    const bool is_masked =
        access.load != nullptr ? access.load->mask != nullptr : access.store->mask != nullptr;
    // With inner loops each statement is written down once, for all elements: nothing moves.
    if (loop.has_inner_loops ? is_masked : !access.is_certain) return false;
    const int64_t stores = stores_in(loop, access.buffer);
    if (access.load != nullptr) return access.cache != nullptr || stores == 0;
    return stores == 1 && (access.cache != nullptr || !is_loaded_in(loop, access.buffer));
  }

  static int64_t stores_in(const VectorLoop& loop, const Buffer* buffer) {
    return std::count_if(loop.accesses.begin(), loop.accesses.end(), [&](const VectorAccess& a) {
      return a.store != nullptr && a.buffer == buffer;
    });
  }
  static bool is_loaded_in(const VectorLoop& loop, const Buffer* buffer) {
    return std::any_of(loop.accesses.begin(), loop.accesses.end(), [&](const VectorAccess& a) {
      return a.load != nullptr && a.buffer == buffer;
    });
  }

  Offsets offsets_;
  const int64_t group_, groups_;
  const bool has_widths_;
  const EmitOptions& options_;
  BodyPlan plan_;
  bool certain_ = true;
  std::unordered_map<const loop::Variable*, Expr> definitions_;
  std::set<std::string> inner_names_;  // bound in loops outside of vector loops
  std::unordered_set<const VectorLoop*> nested_;
  std::vector<const Buffer*> local_buffers_;
  std::unordered_set<const Buffer*> uniform_, written_, irregular_, aligned_;
  std::map<const Buffer*, std::set<std::pair<size_t, SymExpr>>> places_;
};

Result<BodyPlan> BodyPlan::make(const Block& body, const Offsets& offsets, int64_t group,
                                int64_t groups, bool has_widths, const EmitOptions& options) {
  return BodyPlanner(offsets, group, groups, has_widths, options).plan(body);
}

const VectorLoop* BodyPlan::find(Stmt stmt) const {
  const auto found = by_stmt_.find(stmt);
  return found == by_stmt_.end() ? nullptr : found->second;
}

int64_t BodyPlan::padded(int64_t bytes) {
  return (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
}

Footprint BodyPlan::footprint(Stmt stmt, const std::vector<Expr>& exprs) const {
  Footprint footprint;
  const auto is_seen = [&](const Buffer* buffer) {
    return buffer->access != loop::Access::kIn && buffer->access != loop::Access::kValue &&
           !exempt_.contains(buffer) && !private_.contains(buffer);
  };
  const auto read = [&](Expr e) {
    if (e == nullptr) return;
    loop::for_each_expr({e}, [&](Expr each) {
      const auto* load = loop::as<loop::Load>(each);
      if (load != nullptr && is_seen(load->buffer)) footprint.reads.insert(load->buffer);
    });
  };
  for (Expr e : exprs) read(e);
  if (stmt == nullptr) return footprint;
  loop::for_each_stmt({stmt}, [&](Stmt each) {
    for (Expr e : loop::operands(each)) read(e);
    const Buffer* written = nullptr;
    if (const auto* store = loop::as<loop::Store>(each)) written = store->buffer;
    if (const auto* atomic = loop::as<loop::Atomic>(each)) written = atomic->buffer;
    if (written != nullptr && is_seen(written)) footprint.writes.insert(written);
  });
  return footprint;
}

}  // namespace mlcc::codegen::cuda
