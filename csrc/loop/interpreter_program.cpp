#include "loop/interpreter_program.h"

#include <utility>

#include "loop/mutator.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

class Preparer {
 public:
  Program run(const Kernel& kernel) {
    for (const Variable* size : kernel.sizes) program_.sizes.push_back(slot_of(size));
    for (const Buffer* buffer : kernel.buffers) {
      index_of(buffer);
      program_.shapes.push_back(compile(buffer->shape));
      program_.strides.push_back(compile(buffer->strides));
    }
    for (const Block& phase : kernel.phases) program_.phases.push_back(prepare_block(phase));
    return std::move(program_);
  }

 private:
  int new_slot(uint64_t value = 0) {
    program_.frame.push_back(value);
    return static_cast<int>(program_.frame.size()) - 1;
  }

  int index_of(const Buffer* buffer) {
    const auto [found, is_new] =
        buffers_.emplace(buffer, static_cast<int>(program_.buffers.size()));
    if (is_new) program_.buffers.push_back(buffer);
    return found->second;
  }

  // The one slot of a variable or constant.
  int slot_of(Expr e) {
    const auto [found, is_new] = fixed_.emplace(e, 0);
    if (is_new)
      found->second = new_slot(e->kind == ExprKind::kConstant ? as<Constant>(e)->bits : 0);
    return found->second;
  }

  std::vector<int> slots_of(const std::vector<const Variable*>& variables) {
    std::vector<int> slots;
    for (const Variable* variable : variables) slots.push_back(slot_of(variable));
    return slots;
  }

  Code compile(const std::vector<Expr>& roots) {
    Code code;
    std::unordered_map<Expr, int> slots;
    const auto slot = [&](Expr e) { return e == nullptr ? kNoSlot : slots.at(e); };
    for_each_expr(roots, [&](Expr e) {
      if (e->kind == ExprKind::kConstant || e->kind == ExprKind::kVariable) {
        slots.emplace(e, slot_of(e));
        return;
      }
      Instruction instruction{.expr = e,
                              .out = new_slot(),
                              .args = {kNoSlot, kNoSlot, kNoSlot},
                              .buffer = 0,
                              .indices = {}};
      if (const auto* load = as<Load>(e)) {
        instruction.buffer = index_of(load->buffer);
        for (const Expr index : load->indices) instruction.indices.push_back(slot(index));
        instruction.mask = slot(load->mask);
        instruction.otherwise = slot(load->otherwise);
      } else {
        const std::vector<Expr> args = operands(e);
        for (size_t i = 0; i < args.size(); ++i) instruction.args[i] = slot(args[i]);
      }
      slots.emplace(e, instruction.out);
      code.instructions.push_back(std::move(instruction));
    });
    for (const Expr root : roots) code.slots.push_back(slot(root));
    return code;
  }

  std::vector<Step> prepare_block(const Block& block) {
    std::vector<Step> steps;
    steps.reserve(block.size());
    for (const Stmt stmt : block) steps.push_back(prepare_step(stmt));
    return steps;
  }

  Step prepare_step(Stmt stmt) {
    Step step{.stmt = stmt,
              .operands = {},
              .buffers = {},
              .blocks = {},
              .carried = {},
              .results = {},
              .left = {},
              .right = {},
              .yields = {},
              .combined = {}};
    if (stmt->kind == StmtKind::kReduce) {
      prepare_reduce(step, *as<Reduce>(stmt));
    } else {
      step.operands = compile(operands(stmt));
    }
    if (const auto* let = as<Let>(stmt)) step.variable = slot_of(let->variable);
    if (const auto* loop = as<For>(stmt)) step.variable = slot_of(loop->variable);
    if (const auto* store = as<Store>(stmt)) step.buffers = {index_of(store->buffer)};
    if (const auto* atomic = as<Atomic>(stmt)) step.buffers = {index_of(atomic->buffer)};
    if (const auto* alloc = as<Alloc>(stmt)) step.buffers = {index_of(alloc->buffer)};
    if (const auto* contract = as<Contract>(stmt))
      step.buffers = {index_of(contract->c.buffer), index_of(contract->a.buffer),
                      index_of(contract->b.buffer)};
    for (const Block* block : blocks(stmt)) step.blocks.push_back(prepare_block(*block));
    return step;
  }

  void prepare_reduce(Step& step, const Reduce& reduce) {
    std::vector<Expr> starts = {reduce.begin, reduce.end};
    step.variable = slot_of(reduce.variable);
    for (const Carried& carried : reduce.carried) {
      starts.push_back(carried.init);
      step.carried.push_back(slot_of(carried.variable));
      step.results.push_back(slot_of(carried.result));
    }
    step.operands = compile(starts);
    step.yields = compile(reduce.yields);
    if (!reduce.combine) return;
    step.left = slots_of(reduce.combine->left);
    step.right = slots_of(reduce.combine->right);
    step.combined = compile(reduce.combine->values);
  }

  Program program_;
  std::unordered_map<Expr, int> fixed_;
  std::unordered_map<const Buffer*, int> buffers_;
};

}  // namespace

Program prepare(const Kernel& kernel) { return Preparer().run(kernel); }

}  // namespace mlcc::loop
