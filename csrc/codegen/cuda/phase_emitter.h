// One phase of a kernel as a __global__ function.
#pragma once

#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "codegen/cuda/body_plan.h"
#include "codegen/cuda/emitter.h"
#include "codegen/cuda/expressions.h"
#include "codegen/cuda/offsets.h"
#include "loop/ir.h"
#include "loop/varying.h"
#include "support/result.h"

namespace mlcc::codegen::cuda {

// Lines of C++, indented by the braces that are open.
class TextWriter {
 public:
  void line(const std::string& text);
  void open(const std::string& text);  // "for (...) {"
  void close();
  void unroll() { line("MLCC_UNROLL"); }
  void unroll_by(int64_t rounds) { line("MLCC_UNROLL_BY(" + std::to_string(rounds) + ")"); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  int depth_ = 0;
};

class PhaseEmitter {
 public:
  PhaseEmitter(const loop::Kernel& kernel, const EmitOptions& options, bool wide_index,
               bool has_checks);

  struct Output {
    std::string text;
    PhaseInfo info;
    std::vector<Divisibility> divisible;
    std::vector<SymExpr> below_2_30;
    std::set<std::string> nonnegative;  // sizes
    std::map<const loop::Buffer*, int64_t> alignment;
  };
  Result<Output> emit(const loop::Block& phase, const std::string& function);

 private:
  // How many iterations at once, and whether each statement stands once for all of them.
  struct Elements {
    int64_t count = 1;
    bool by_statement = false;
    loop::VariableSet varying;
  };

  void emit_signature(const std::string& function);
  void emit_prologue();
  void emit_iterations(const loop::Block& body, const loop::For* parallel);

  // -- statements that all threads of the group run together
  void emit_group(const loop::Block& block);
  void emit_group(loop::Stmt stmt);
  void emit_group_loop(const loop::For& loop);
  void emit_group_reduce(const loop::Reduce& reduce);
  void emit_group_if(const loop::If& branch);
  void emit_group_check(const loop::Check& check);
  void emit_vector(const VectorLoop& loop);
  void emit_rounds(const VectorLoop& loop);
  void open_rounds(const VectorLoop& loop);
  void close_rounds(const VectorLoop& loop);
  std::string last_start(const LoopShape& shape) const;
  void emit_fill(const VectorLoop& loop);
  void emit_tail(const VectorLoop& loop);
  void emit_elements(const VectorLoop& loop, int64_t count);
  void define_loads(const VectorLoop& loop, int64_t count);
  void emit_packed_stores(const VectorLoop& loop);
  void emit_combine(const loop::Reduce& reduce);
  void emit_butterfly(const loop::Reduce& reduce, int64_t lanes, const std::string& mask);
  void emit_step(const loop::Reduce& reduce);
  void declare_carried(const loop::Carried& carried);

  // -- statements of one thread
  void emit_thread(const loop::Block& block);
  void emit_thread(loop::Stmt stmt);
  void emit_let(const loop::Let& let);
  void emit_store(const loop::Store& store);
  void emit_atomic(const loop::Atomic& atomic);
  void emit_thread_for(const loop::For& loop);
  void emit_thread_reduce(const loop::Reduce& reduce);
  void emit_thread_check(const loop::Check& check);
  void emit_private(const loop::Buffer* buffer);
  void emit_report(const loop::Check& check);

  // -- order among threads
  void order(const Footprint& footprint);
  void barrier();
  void remember_all(const loop::Block& block);
  using PendingSet = std::unordered_set<const void*>;
  void keep_pending(const PendingSet& reads, const PendingSet& writes);

  std::string range_for(const loop::Variable* variable, loop::Expr begin, loop::Expr end);
  std::string declare(DType dtype, const std::string& name) const;
  std::string cache_element(const ElementCache& cache, const std::string& element) const;
  bool is_by_statement(const loop::Variable* variable) const;
  template <typename Body>
  void for_elements(Body&& body);  // once per element where statements stand for all
  void pack_loads(const std::vector<loop::Expr>& roots);
  void forget_packed_loads();
  void collect_data_variables(const loop::Block& block);
  void find_data_uses(loop::Expr e, bool is_index);

  const loop::Kernel& kernel_;
  const EmitOptions& options_;
  Offsets offsets_;
  Expressions text_;
  TextWriter out_;
  const bool has_checks_;
  std::string index_type_;
  std::optional<BodyPlan> plan_;
  int64_t group_ = 1, groups_ = 1;
  const VectorLoop* current_ = nullptr;  // the vector loop whose body is written
  Elements elements_;
  bool is_tail_ = false;
  std::vector<const loop::Load*> packed_loads_;  // of the statement that is written by elements
  std::string fail_label_;
  int64_t next_name_ = 0;
  PendingSet pending_reads_, pending_writes_;  // since the last barrier
  std::unordered_set<const loop::Variable*> data_variables_;
};

}  // namespace mlcc::codegen::cuda
