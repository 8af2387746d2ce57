#include "loop/mutator.h"

#include <utility>

#include "support/error.h"

namespace mlcc::loop {

// ---- Expressions --------------------------------------------------------------------------------

Expr Mutator::mutate(Expr e) {
  if (e == nullptr) return nullptr;
  if (const auto found = done_.find(e); found != done_.end()) return found->second;
  const Expr result = rewrite(rebuild_expr(e));
  done_.emplace(e, result);
  return result;
}

std::vector<Expr> Mutator::mutate(const std::vector<Expr>& list) {
  std::vector<Expr> mutated;
  mutated.reserve(list.size());
  for (const Expr e : list) mutated.push_back(mutate(e));
  return mutated;
}

// Interning gives the same pointer back where nothing changed.
Expr Mutator::rebuild_expr(Expr e) {
  switch (e->kind) {
  case ExprKind::kConstant: return e;
  case ExprKind::kVariable: return replace(as<Variable>(e));
  case ExprKind::kApply: return Apply::make(arena_, as<Apply>(e)->op, mutate(as<Apply>(e)->args));
  case ExprKind::kCast: return Cast::make(arena_, e->dtype, mutate(as<Cast>(e)->value));
  case ExprKind::kLoad: {
    const auto* load = as<Load>(e);
    const Buffer* buffer = replace(load->buffer);
    std::vector<Expr> indices = mutate(load->indices);
    const Expr mask = mutate(load->mask);
    return Load::make(arena_, buffer, std::move(indices), mask, mutate(load->otherwise));
  }
  }
  MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
}

const Buffer* Mutator::rebuild(const Buffer* buffer) {
  std::vector<Expr> shape = mutate(buffer->shape);
  std::vector<Expr> strides = mutate(buffer->strides);
  if (shape == buffer->shape && strides == buffer->strides) return buffer;
  Buffer changed = *buffer;
  changed.shape = std::move(shape);
  changed.strides = std::move(strides);
  return arena_.make_buffer(std::move(changed));
}

// ---- Statements ---------------------------------------------------------------------------------

void Mutator::mutate_into(Block& out, Stmt stmt) { out.push_back(rebuild(stmt)); }

Block Mutator::mutate(const Block& block) {
  Block mutated;
  mutated.reserve(block.size());
  for (const Stmt stmt : block) mutate_into(mutated, stmt);
  return mutated;
}

Stmt Mutator::rebuild(Stmt stmt) {
  switch (stmt->kind) {
  case StmtKind::kLet: {
    const auto* let = as<Let>(stmt);
    const Expr value = mutate(let->value);
    const Variable* variable = replace(let->variable);
    if (value == let->value && variable == let->variable) return stmt;
    return Let::make(arena_, variable, value);
  }
  case StmtKind::kStore: {
    const auto* store = as<Store>(stmt);
    const Buffer* buffer = replace(store->buffer);
    std::vector<Expr> indices = mutate(store->indices);
    const Expr value = mutate(store->value);
    const Expr mask = mutate(store->mask);
    const Expr streams = mutate(store->streams);
    if (buffer == store->buffer && indices == store->indices && value == store->value &&
        mask == store->mask && streams == store->streams)
      return stmt;
    return Store::make(arena_, buffer, std::move(indices), value, mask, streams);
  }
  case StmtKind::kAtomic: {
    const auto* atomic = as<Atomic>(stmt);
    const Buffer* buffer = replace(atomic->buffer);
    std::vector<Expr> indices = mutate(atomic->indices);
    const Expr value = mutate(atomic->value);
    const Expr mask = mutate(atomic->mask);
    if (buffer == atomic->buffer && indices == atomic->indices && value == atomic->value &&
        mask == atomic->mask)
      return stmt;
    return Atomic::make(arena_, atomic->op, buffer, std::move(indices), value, mask);
  }
  case StmtKind::kPrefetch: {
    const auto* prefetch = as<Prefetch>(stmt);
    const Buffer* buffer = replace(prefetch->buffer);
    std::vector<Expr> indices = mutate(prefetch->indices);
    if (buffer == prefetch->buffer && indices == prefetch->indices) return stmt;
    return Prefetch::make(arena_, buffer, std::move(indices));
  }
  case StmtKind::kFor: {
    const auto* loop = as<For>(stmt);
    const Expr begin = mutate(loop->begin);
    const Expr end = mutate(loop->end);
    const Variable* variable = replace(loop->variable);
    Block body = mutate(loop->body);
    if (begin == loop->begin && end == loop->end && variable == loop->variable &&
        body == loop->body)
      return stmt;
    return For::make(arena_, variable, begin, end, loop->mode, std::move(body));
  }
  case StmtKind::kReduce: return rebuild_reduce(stmt);
  case StmtKind::kIf: {
    const auto* branch = as<If>(stmt);
    const Expr condition = mutate(branch->condition);
    Block then_body = mutate(branch->then_body);
    Block else_body = mutate(branch->else_body);
    if (condition == branch->condition && then_body == branch->then_body &&
        else_body == branch->else_body)
      return stmt;
    return If::make(arena_, condition, std::move(then_body), std::move(else_body));
  }
  case StmtKind::kCheck: {
    const auto* check = as<Check>(stmt);
    const Expr condition = mutate(check->condition);
    std::vector<Expr> details = mutate(check->details);
    if (condition == check->condition && details == check->details) return stmt;
    return Check::make(arena_, condition, check->code, std::move(details));
  }
  case StmtKind::kAlloc: {
    const Buffer* buffer = replace(as<Alloc>(stmt)->buffer);
    return buffer == as<Alloc>(stmt)->buffer ? stmt : Alloc::make(arena_, buffer);
  }
  case StmtKind::kContract: return rebuild_contract(stmt);
  }
  MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
}

Stmt Mutator::rebuild_reduce(Stmt stmt) {
  const auto* reduce = as<Reduce>(stmt);
  const Expr begin = mutate(reduce->begin);
  const Expr end = mutate(reduce->end);
  std::vector<Carried> carried = reduce->carried;
  for (Carried& c : carried) c.init = mutate(c.init);
  const Variable* variable = replace(reduce->variable);
  for (Carried& c : carried) c.variable = replace(c.variable);
  Block body = mutate(reduce->body);
  std::vector<Expr> yields = mutate(reduce->yields);
  std::optional<Combine> combine;
  if (reduce->combine) {
    combine = *reduce->combine;
    for (auto* side : {&combine->left, &combine->right})
      for (const Variable*& v : *side) v = replace(v);
    combine->body = mutate(combine->body);
    combine->values = mutate(combine->values);
  }
  for (Carried& c : carried) c.result = replace(c.result);
  const bool is_same = begin == reduce->begin && end == reduce->end &&
                       variable == reduce->variable && carried == reduce->carried &&
                       body == reduce->body && yields == reduce->yields &&
                       combine == reduce->combine;
  if (is_same) return stmt;
  return Reduce::make(arena_, variable, begin, end, reduce->mode, std::move(carried),
                      std::move(body), std::move(yields), std::move(combine));
}

TileRef Mutator::mutate(const TileRef& tile) {
  const Buffer* buffer = replace(tile.buffer);
  return {buffer, mutate(tile.origin), mutate(tile.steps), mutate(tile.rows), tile.low_columns};
}

Stmt Mutator::rebuild_contract(Stmt stmt) {
  const auto* contract = as<Contract>(stmt);
  TileRef c = mutate(contract->c);
  TileRef a = mutate(contract->a);
  TileRef b = mutate(contract->b);
  const Expr live_columns =
      contract->live_columns != nullptr ? mutate(contract->live_columns) : nullptr;
  std::vector<Expr> depths = mutate(contract->depths);
  LinesAhead ahead = contract->ahead;
  if (ahead.origin != nullptr) ahead.origin = mutate(ahead.origin);
  if (ahead.buffer != nullptr) ahead.buffer = replace(ahead.buffer);
  if (c == contract->c && a == contract->a && b == contract->b &&
      live_columns == contract->live_columns && depths == contract->depths &&
      ahead == contract->ahead)
    return stmt;
  return Contract::make(arena_, std::move(c), std::move(a), std::move(b), contract->rows,
                        contract->columns, live_columns, std::move(depths), contract->adds, ahead);
}

Kernel Mutator::mutate(const Kernel& kernel) {
  Kernel mutated = kernel;
  for (const Variable*& size : mutated.sizes) size = replace(size);
  for (const Buffer*& buffer : mutated.buffers) buffer = replace(buffer);
  for (Block& phase : mutated.phases) phase = mutate(phase);
  return mutated;
}

// ---- Walking ------------------------------------------------------------------------------------

std::vector<Expr> operands(Expr e) {
  switch (e->kind) {
  case ExprKind::kConstant:
  case ExprKind::kVariable: return {};
  case ExprKind::kApply: return as<Apply>(e)->args;
  case ExprKind::kCast: return {as<Cast>(e)->value};
  case ExprKind::kLoad: {
    std::vector<Expr> list = as<Load>(e)->indices;
    for (const Expr part : {as<Load>(e)->mask, as<Load>(e)->otherwise})
      if (part != nullptr) list.push_back(part);
    return list;
  }
  }
  MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
}

namespace {

std::vector<Expr> update_operands(const std::vector<Expr>& indices, Expr value, Expr mask) {
  std::vector<Expr> list = indices;
  list.push_back(value);
  if (mask != nullptr) list.push_back(mask);
  return list;
}

std::vector<Expr> contract_operands(const Contract& contract) {
  std::vector<Expr> list;
  for (const TileRef* tile : {&contract.c, &contract.a, &contract.b}) {
    list.insert(list.end(), tile->origin.begin(), tile->origin.end());
    list.insert(list.end(), tile->steps.begin(), tile->steps.end());
    list.insert(list.end(), tile->rows.begin(), tile->rows.end());
  }
  list.insert(list.end(), contract.depths.begin(), contract.depths.end());
  for (const Expr e : {contract.live_columns, contract.ahead.origin})
    if (e != nullptr) list.push_back(e);
  return list;
}

std::vector<Expr> reduce_operands(const Reduce& reduce) {
  std::vector<Expr> list = {reduce.begin, reduce.end};
  for (const Carried& carried : reduce.carried) list.push_back(carried.init);
  list.insert(list.end(), reduce.yields.begin(), reduce.yields.end());
  if (reduce.combine)
    list.insert(list.end(), reduce.combine->values.begin(), reduce.combine->values.end());
  return list;
}

std::vector<Expr> check_operands(const Check& check) {
  std::vector<Expr> list = {check.condition};
  list.insert(list.end(), check.details.begin(), check.details.end());
  return list;
}

}  // namespace

std::vector<Expr> operands(Stmt stmt) {
  switch (stmt->kind) {
  case StmtKind::kLet: return {as<Let>(stmt)->value};
  case StmtKind::kStore: {
    const auto* store = as<Store>(stmt);
    std::vector<Expr> list = update_operands(store->indices, store->value, store->mask);
    if (store->streams != nullptr) list.push_back(store->streams);
    return list;
  }
  case StmtKind::kAtomic: {
    const auto* atomic = as<Atomic>(stmt);
    return update_operands(atomic->indices, atomic->value, atomic->mask);
  }
  case StmtKind::kPrefetch: return as<Prefetch>(stmt)->indices;
  case StmtKind::kFor: return {as<For>(stmt)->begin, as<For>(stmt)->end};
  case StmtKind::kReduce: return reduce_operands(*as<Reduce>(stmt));
  case StmtKind::kIf: return {as<If>(stmt)->condition};
  case StmtKind::kCheck: return check_operands(*as<Check>(stmt));
  case StmtKind::kAlloc: return as<Alloc>(stmt)->buffer->shape;
  case StmtKind::kContract: return contract_operands(*as<Contract>(stmt));
  }
  MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
}

namespace {

class Substitution : public Mutator {
 public:
  Substitution(Arena& arena, const Variable* variable, Expr replacement)
      : Mutator(arena), variable_(variable), replacement_(replacement) {}

 protected:
  Expr rewrite(Expr e) override { return e == variable_ ? replacement_ : e; }

 private:
  const Variable* variable_;
  Expr replacement_;
};

class Copy : public Mutator {
 public:
  Copy(Arena& arena, const Block& block) : Mutator(arena) {
    for_each_stmt(block, [&](Stmt stmt) {
      for (const Variable* variable : bound_variables(stmt))
        own_[variable] = Variable::make(arena, variable->dtype, arena.fresh_name(variable->name));
    });
  }

 protected:
  const Variable* replace(const Variable* variable) override {
    const auto found = own_.find(variable);
    return found == own_.end() ? variable : found->second;
  }

 private:
  std::unordered_map<const Variable*, const Variable*> own_;
};

}  // namespace

Block copy_of(Arena& arena, const Block& block) { return Copy(arena, block).mutate(block); }

Expr substitute(Arena& arena, Expr e, const Variable* variable, Expr replacement) {
  return Substitution(arena, variable, replacement).mutate(e);
}

std::vector<const Variable*> bound_variables(Stmt stmt) {
  if (const auto* let = as<Let>(stmt)) return {let->variable};
  if (const auto* loop = as<For>(stmt)) return {loop->variable};
  std::vector<const Variable*> bound;
  const auto* reduce = as<Reduce>(stmt);
  if (reduce == nullptr) return bound;
  bound.push_back(reduce->variable);
  for (const Carried& carried : reduce->carried) {
    bound.push_back(carried.variable);
    bound.push_back(carried.result);
  }
  if (!reduce->combine) return bound;
  for (const auto* side : {&reduce->combine->left, &reduce->combine->right})
    bound.insert(bound.end(), side->begin(), side->end());
  return bound;
}

std::vector<const Block*> blocks(Stmt stmt) {
  switch (stmt->kind) {
  case StmtKind::kFor: return {&as<For>(stmt)->body};
  case StmtKind::kIf: return {&as<If>(stmt)->then_body, &as<If>(stmt)->else_body};
  case StmtKind::kReduce: {
    const auto* reduce = as<Reduce>(stmt);
    if (!reduce->combine) return {&reduce->body};
    return {&reduce->body, &reduce->combine->body};
  }
  case StmtKind::kLet:
  case StmtKind::kStore:
  case StmtKind::kAtomic:
  case StmtKind::kPrefetch:
  case StmtKind::kCheck:
  case StmtKind::kAlloc:
  case StmtKind::kContract: return {};
  }
  MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
}

}  // namespace mlcc::loop
