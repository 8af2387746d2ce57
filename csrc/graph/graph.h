// The graph IR: tensor ops in SSA form with symbolic shapes. Mutable.
//
// SEMANTICS
// Graph       Inputs, nodes in program order, outputs. Nodes without effects may be reordered
//             along data dependences; nodes with effects (extern that mutates, draws random
//             numbers or has other effects) keep their order among each other, and a write
//             into an input comes after every read of it that stands before it. Work of a group
//             of processes is freer: see fusion/units.h.
// Values      A value is a tensor (dtype, shape, strides) or a size (a SymExpr as an i64
//             scalar, e.g. a SymInt input). Strides say how the value lies in memory *if it is
//             materialized*; empty strides mean row-major dense. They do not change what a
//             value is: only extern calls and graph outputs see them.
// Dtypes      Pointwise ops take operands of one dtype and give that dtype, or bool (compare,
//             test); `where` takes (bool, T, T). Promotion stands in the graph as explicit
//             `cast` nodes. A cast always rounds.
// Shapes      Pointwise operands broadcast as in NumPy. Two dimensions are the same only if
//             their expressions are equal.
// Static      A fact of inputs that changes no result: their tensors live for many calls.
// Devices     Operands of a node lie on one device, and so does its result; tensors of the CPU
// without
//             dimensions may stand beside those of another device, as numbers. Copies between
//             devices are extern calls.
// Index maps  permute, expand, reshape, slice, flip, window, spread, extend, cat, pad: move no data
//             by themselves; they fold into index expressions of whoever reads them. Whether the
//             result aliases the operand is not expressed: values are immutable.
// Floats      As in the loop IR; reductions may be reassociated, nothing else.
// Extern      Any other dispatcher op, called below autograd. Its facts (pure, random,
//             mutates, ...) stand on the node. Operand i is what the i-th reference in its
//             arguments names.
// Regions     Control flow (cond, while_loop, scan, ...) is an extern node that holds graphs of
//             its own: to all passes a call like any other. A region sees nothing of the graph
//             around it but its inputs; its symbols are its own, bound by its inputs.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "types/argument.h"
#include "types/device.h"
#include "types/dtype.h"
#include "types/symbolic.h"

namespace mlcc::graph {

enum class Op : uint8_t {
#define POINTWISE(enumerator, text, arity, rule, domain, formula, aten) enumerator,
#define STRUCTURED(enumerator, text, op_class, meaning) enumerator,
#include "graph/ops.def"
#undef POINTWISE
#undef STRUCTURED
};

enum class OpClass : uint8_t {
  kPointwise,
  kIndexMap,
  kReduction,
  kCreation,
  kGather,
  kUpdate,
  kScan,
  kContraction,
  kAttention,
  kExtern
};

// How operand dtypes lead to the dtype a pointwise op is computed in, and to its result's (torch's
// names of the rules).
enum class DTypeRule : uint8_t {
  kDefault,     // promoted; computed in it (f16, bf16 in f32), result in it
  kIntToFloat,  // as default, but integers and bool become the default float dtype
  kSame,        // promoted, computed in exactly that dtype
  kCompare,     // promoted operands, bool result
  kLogical,     // operands become bool, bool result
  kTest,        // one float operand, bool result
  kSelect,      // (bool, T, T) -> T, T promoted
};

// The dtypes that a pointwise op may be computed in (`where`: of its second and third operand).
enum class DTypeDomain : uint8_t {
  kAny,
  kNumber,  // integers and floats
  kFloat,
  kInteger,   // without bool
  kIntegral,  // integers and bool
  kBool,
};
bool holds(DTypeDomain domain, DType dtype);
std::string_view dtype_rule_name(DTypeRule rule);        // "default", "int_to_float", ...
std::string_view dtype_domain_name(DTypeDomain domain);  // "any", "number", "float", ...

struct OpInfo {
  Op op;
  std::string_view text;
  OpClass op_class;
  // Of pointwise ops; cast counts as structured: arity -1, the rest without meaning.
  int arity;
  DTypeRule rule;
  DTypeDomain domain;
  std::string_view formula;  // a loop-IR expression over a, b, c, ... (operand i is 'a' + i)
  std::string_view aten;     // overloads it stands for, separated by spaces; see ops.def
  // Of structured ops: in words.
  std::string_view meaning;
};
const OpInfo& op_info(Op op);
std::optional<Op> parse_op(std::string_view text);
std::span<const OpInfo> all_ops();

enum class ValueKind : uint8_t { kTensor, kSize };

struct TensorType {
  DType dtype = DType::kF32;
  std::vector<SymExpr> shape;
  std::vector<SymExpr> strides;  // empty: row-major dense
  Device device{};
  std::vector<SymExpr> dense_or_strides() const;  // strides, made explicit
};

class Node;
class Graph;

class Value {
 public:
  // Unique in the graph, never reused. Texts of a graph number its values anew.
  int id() const { return id_; }
  const std::string& name() const { return name_; }  // of inputs; else empty
  // Of an input: the caller's promise that the tensor lives for many calls and seldom changes. What
  // is computed from such inputs alone may be kept (graph/static_values.h).
  bool is_static() const { return is_static_; }
  // Of a static input of integers: the caller's promise that its elements lie within.
  const std::optional<SymRange>& range() const { return range_; }
  ValueKind kind() const { return kind_; }
  const TensorType& type() const { return type_; }
  const SymExpr& size() const { return size_; }  // of kSize
  Node* producer() const { return producer_; }   // null for inputs
  int result_index() const { return result_index_; }
  // One entry per use: a node that uses a value twice stands twice. Outputs of the graph are not
  // listed here.
  const std::vector<Node*>& users() const { return users_; }

 private:
  friend class Graph;
  int id_ = 0;
  std::string name_;
  ValueKind kind_ = ValueKind::kTensor;
  bool is_static_ = false;
  std::optional<SymRange> range_;
  TensorType type_;
  SymExpr size_;
  Node* producer_ = nullptr;
  int result_index_ = 0;
  std::vector<Node*> users_;
};

using Attr = std::variant<int64_t, double, bool, std::string, DType, SymExpr, std::vector<int64_t>,
                          std::vector<SymExpr>>;

using AttrList = std::vector<std::pair<std::string, Attr>>;  // sorted by name

// What an extern op does beside computing its results.
struct ExternFacts {
  bool random = false;
  bool effects = false;      // must run, in order
  std::vector<int> mutates;  // operand indices that it writes into
  bool aliases = false;      // a result may share memory with an operand
  // Of a collective, also an effect. A call that begins it returns at once, and the operands are
  // read until a call waits for its results; one that does both is the whole collective.
  bool begins = false;
  bool waits = false;
  friend bool operator==(const ExternFacts&, const ExternFacts&) = default;
};

struct ExternCall {
  std::string name;            // "aten.addmm.default"
  std::vector<Argument> args;  // in schema order; ArgRef counts the node's operands
  std::vector<std::pair<std::string, Argument>> kwargs;
  ExternFacts facts;
  // Graphs that the call runs. Calls that have any are no ops of the dispatcher but control flow,
  // see graph/control_flow.h.
  std::vector<std::shared_ptr<Graph>> regions;
};

class Node {
 public:
  Op op() const { return op_; }
  const std::vector<Value*>& operands() const { return operands_; }
  Value* operand(size_t i) const { return operands_[i]; }
  const std::vector<std::unique_ptr<Value>>& results() const { return results_; }
  Value* result(size_t i = 0) const { return results_[i].get(); }

  const AttrList& attrs() const { return attrs_; }
  bool has_attr(std::string_view name) const;
  const Attr& attr(std::string_view name) const;  // InternalError if absent
  template <typename T>
  const T& attr(std::string_view name) const;  // or of another type
  const ExternCall& extern_call() const;       // of extern nodes

  // Where the user wrote it ("model.py:31"), for logs; may be empty. No part of text or keys.
  const std::string& source() const { return source_; }
  void set_source(std::string source) { source_ = std::move(source); }

 private:
  friend class Graph;
  Op op_{};
  std::vector<Value*> operands_;
  std::vector<std::unique_ptr<Value>> results_;
  AttrList attrs_;
  std::unique_ptr<ExternCall> extern_;
  std::string source_;
  std::list<std::unique_ptr<Node>>::iterator position_;
};

// A size symbol: its range, the value seen when tracing (for cost models only).
struct Symbol {
  std::string name;
  SymRange range{0, kUnboundedHigh};
  std::optional<int64_t> hint;
};

class Graph {
 public:
  explicit Graph(std::string name = "graph") : name_(std::move(name)) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const std::string& name() const { return name_; }

  // -- symbols
  void add_symbol(Symbol symbol);  // again with the same name: narrows the range
  const std::vector<Symbol>& symbols() const { return symbols_; }
  // What a size symbol is taken to be where speed, never a result, depends on it.
  int64_t size_hint(std::string_view name) const;
  int64_t expected(const SymExpr& size) const;  // by these
  int64_t read_input_bytes() const;  // of inputs that nodes read, each as a whole; expected
  Assumptions assumptions() const;

  // -- reading
  const std::vector<std::unique_ptr<Value>>& inputs() const { return inputs_; }
  const std::vector<Value*>& outputs() const { return outputs_; }
  std::vector<Node*> nodes() const;  // in program order, a copy: safe while editing
  size_t num_nodes() const { return nodes_.size(); }
  bool is_output(const Value* value) const;

  // -- building: nodes are added at the insertion point (the end unless set)
  Value* add_input(std::string name, TensorType type, bool is_static = false,
                   std::optional<SymRange> range = std::nullopt);
  Value* add_size_input(std::string name, SymExpr size);
  // Promises of inputs' ranges: of those that a predicate is true of.
  void drop_promises(const std::function<bool(const Value&)>& of);
  void set_insertion_point(Node* before);  // null: the end
  // Each infers its result's dtype, shape and device and checks its operands; Error naming the op
  // where they do not fit.
  Value* pointwise(Op op, std::vector<Value*> operands);
  Value* cast(Value* value, DType dtype);  // the value itself if it has that dtype
  Value* permute(Value* value, std::vector<int64_t> dims);
  Value* expand(Value* value, std::vector<SymExpr> shape);  // NumPy broadcasting to exactly `shape`
  Value* reshape(Value* value, std::vector<SymExpr> shape);
  Value* slice(Value* value, int64_t dim, SymExpr start, SymExpr length, int64_t step);
  Value* flip(Value* value, std::vector<int64_t> dims);
  // result[.., o, .., k] = value[.., o * step + k * dilation, ..] for o < count, k < size: windows
  // along `dim`, their elements along a new last dimension. All of them lie inside.
  Value* window(Value* value, int64_t dim, SymExpr count, SymExpr size, int64_t step,
                int64_t dilation);
  // The windows of adaptive pooling: result[.., o, .., k] is element k, for k < size, of the window
  // [floor(o * extent / count), ceil((o + 1) * extent / count)) of value's dimension `dim`, the
  // last one again where the window is shorter.
  Value* spread(Value* value, int64_t dim, SymExpr count, SymExpr size);
  // result[.., i, ..] = value[.., i - before, ..] for i < extent. Beyond the ends: "reflect" turns
  // around at the last element (beyond by less than the operand is long), "replicate" repeats it,
  // "circular" begins again (by no more than the operand is long).
  Value* extend(Value* value, int64_t dim, int64_t before, SymExpr extent, std::string mode);
  // The same with a number beyond the ends: a double for float dtypes, else an int64_t. What does
  // not reach into [0, extent) is cut off.
  Value* pad(Value* value, int64_t dim, int64_t before, SymExpr extent, Attr number);
  Value* cat(std::vector<Value*> values, int64_t dim);
  // sum, prod, max, min, any, all: over `dims`, in the operand's dtype (any, all: bool). argmax,
  // argmin: one dim, i64 result, the first of equal ones, NaN counts as extreme.
  Value* reduce(Op op, Value* value, std::vector<int64_t> dims, bool keepdim);
  // For i64 beyond 2^53 there is full_int. Either takes any dtype that has the number.
  Value* full(std::vector<SymExpr> shape, DType dtype, double value, Device device = {});
  Value* full_int(std::vector<SymExpr> shape, DType dtype, int64_t value, Device device = {});
  Value* iota(SymExpr length, DType dtype, SymExpr start, SymExpr step,
              Device device = {});                      // integer dtype, 1-d
  Value* size_value(SymExpr size, Device device = {});  // a 0-d i64 tensor holding a size
  // out[i.., j.., k..] = x[i.., a[j..], b[j..], .., k..]: dimensions of x from `dim` on, one for
  // each of the indices a, b, .., which are of one shape, are replaced by the indices' dims.
  // Negative indices count from the end if `wrap`. An index out of range raises what eager raises
  // for `error` ("embedding", "index_select", "index"); "none": all are known to be in range.
  Value* take(Value* x, std::vector<Value*> indices, int64_t dim, bool wrap, std::string error);
  Value* gather(Value* x, Value* index, int64_t dim, std::string error);  // torch.gather
  // base with result[.., index[i..], ..] = combine(result[.., index[i..], ..], src[i..]) for each
  // element of src, in row-major order if `ordered` or if floats are added on a CPU; otherwise in
  // any. scatter: index has src's shape and stands for dim `dim` of it (torch.scatter,
  // scatter_reduce). index_put: src has the indices' dims in place of those from `dim` on, as in
  // take. combine.h says what combine may be; `wrap` and `error` are as in take.
  Value* scatter(Value* base, Value* index, Value* src, int64_t dim, std::string combine,
                 bool ordered, std::string error);
  Value* index_put(Value* base, std::vector<Value*> indices, Value* src, int64_t dim,
                   std::string combine, bool ordered, bool wrap, std::string error);
  // result[.., i, ..] = combine of x[.., 0..i, ..]; see combine.h.
  Value* scan(Value* x, int64_t dim, std::string combine);
  // result[d0, ..] = sum over the reduced axes of lhs[lhs_index] * rhs[rhs_index], added up in the
  // accumulator's dtype (contraction.h), which the result has, or else that of both operands. The
  // indices are over the axes d0, d1, ..: the dimensions of the result, then those of `reduced`.
  // All places lie inside of the operands. `transformed`: the filters of a 3x3 convolution once
  // more, as Winograd's algorithm reads them (passes/winograd.h): 16 matrices, in panels of columns
  // (panels, 16, channels, columns). It changes nothing but how sums round.
  Value* contract(Value* lhs, Value* rhs, std::vector<SymExpr> lhs_index,
                  std::vector<SymExpr> rhs_index, std::vector<SymExpr> reduced,
                  std::vector<SymExpr> shape, DType dtype, Value* transformed = nullptr);
  // Of bytes whose scales change along the sums:
  //
  //   result[d0, ..] = sum over groups of lhs_scales[..] * rhs_scales[..] *
  //                    (starts[..] + sum over terms of lhs[..] * rhs[..])
  //
  // The indices are over the axes of the result, then that of the groups and that of the terms.
  // Terms are added up in i32, groups in f32.
  struct GroupOperands {
    Value *lhs = nullptr, *rhs = nullptr;                // of i8 or u8
    Value *lhs_scales = nullptr, *rhs_scales = nullptr;  // of f32, f16 or bf16
    Value* starts = nullptr;                             // of i32; null: there are none
    std::vector<SymExpr> lhs_index, rhs_index, lhs_scales_index, rhs_scales_index, starts_index;
    // Of an element of rhs. Where there are 4, the last dimension but one is half as long as its
    // index says: the second half stands in the upper bits of the first one's bytes (u8).
    int64_t bits = 0;
  };
  Value* contract_groups(GroupOperands operands, SymExpr groups, SymExpr terms,
                         std::vector<SymExpr> shape);
  // result[d0, ..] = sum over k of w[k] * values[rhs], divided by the sum of all w[k], where w[k]
  // is exp(scores[lhs]), for the reduced axis k in range [range[0], range[1]): two expressions over
  // the axes without k, monotone along each. The axes are as in contract, k is the last one. Where
  // no w counts (there is no k, or all scores are -inf) the result is NaN; 0 if `empty_is_zero`.
  // Of the first sum, not of the divisor, w[k] is multiplied with factors[lhs], if there are any.
  // The result has the dtype of the scores, in which sums are added up, or that of the values.
  Value* attend(Value* scores, Value* values, Value* factors, std::vector<SymExpr> lhs,
                std::vector<SymExpr> rhs, SymExpr keys, std::vector<SymExpr> range,
                bool empty_is_zero, std::vector<SymExpr> shape, DType dtype);
  // Of the same, by the op: log(sum of all w[k]), where none counts -inf, or 0 likewise; the
  // largest score, else -inf; the sum of exp(scores[lhs] - largest), else 0.
  Value* score_norm(Op op, Value* scores, std::vector<SymExpr> lhs, SymExpr keys,
                    std::vector<SymExpr> range, bool empty_is_zero, std::vector<SymExpr> shape);
  // Three sums of products over scores, one behind the other in a result of one dimension. With
  // outer dimensions (.., h), q queries and k keys:
  //   of queries [.., q, h, width]: of_scores[.., h, q, k] * keys[.., h, k, width] over k
  //   of keys [.., k, h, width]: of_scores[.., h, q, k] * queries[.., h, q, width] over q
  //   of values [.., k, h, columns]: weights[.., h, q, k] * of_means[.., h, q, columns] over q
  // Weights and `of_scores` count for k in range [range[0], range[1]), two expressions over the
  // axes of all dimensions of the weights but the last one, monotone along each; all of them if
  // there is none.
  //
  // All have one dtype, f32 or f64.
  Value* attend_gradients(Value* weights, Value* of_scores, Value* of_means, Value* queries,
                          Value* keys, std::vector<SymExpr> range = {});
  // Operands are brought into the order of their references in the arguments, one per reference.
  std::vector<Value*> extern_call(ExternCall call, std::vector<Value*> operands,
                                  std::vector<TensorType> results);
  // A call whose result is a number, e.g. item(): may define a symbol.
  Value* extern_size(ExternCall call, std::vector<Value*> operands, SymExpr result);
  Value* size_result(SymExpr size);  // a kSize value for an output
  void set_outputs(std::vector<Value*> outputs);

  // Any op but extern and size_result, by its attributes. `declared` counts where the operands do
  // not decide, see inference.h. Messages call the result `name`, or by its id.
  Value* build(Op op, std::vector<Value*> operands, AttrList attrs, TensorType declared = {},
               std::string name = {});

  // -- editing (the only way)
  void set_strides(Value* value, std::vector<SymExpr> strides);
  // Also in outputs. Types must agree but for strides. Passes use Rewriter, which looks after
  // these.
  void replace_all_uses(Value* from, Value* to);
  void replace_operand(Node* node, size_t index, Value* to);
  void erase(Node* node);  // no uses may remain

  // A deep copy (values keep their order and ids).
  std::unique_ptr<Graph> clone() const;

 private:
  Node* insert_node(Op op, std::vector<Value*> operands, AttrList attrs);
  Value* add_result(Node* node);
  void check_input_name(const std::string& name) const;
  std::string name_;
  std::vector<Symbol> symbols_;
  std::vector<std::unique_ptr<Value>> inputs_;
  std::list<std::unique_ptr<Node>> nodes_;
  std::list<std::unique_ptr<Node>>::iterator insertion_ = nodes_.end();
  std::vector<Value*> outputs_;
  int next_id_ = 0;
};

}  // namespace mlcc::graph
