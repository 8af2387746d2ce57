// The loop IR: loop nests over buffers with scalar expressions. Immutable.
//
// SEMANTICS
// Kernel      A list of phases with a barrier between them. A phase that is one `parallel` loop,
//             after nothing but lets, is a range that the runtime splits over threads in any way
//             and order (every part runs the lets); its bounds follow from the sizes. Any other
//             phase runs once, on one thread.
// Sizes       i64 symbols, arguments of the kernel. Sizes and index arithmetic never overflow (the
//             caller's duty).
// Buffers     Two parameters never overlap in memory, except those only read (`in`, `value`) with
//             each other. A multi-index
//             addresses element sum(index[d] * stride[d]); without strides a buffer is row-major
//             dense. An access outside the shape is an error (the interpreter reports it; compiled
//             code does not check): mask or check what may lie outside.
// Evaluation  Expressions have no effects; a load reads the memory as it is when its statement
//             begins. Statements of a block run in order. `select` evaluates both sides; a masked
//             load or store touches nothing where its mask is false, a masked-off load gives its
//             `otherwise` value (0 where none is given). Masks guard memory alone: an integer
//             division beside one is evaluated for all iterations.
// Loops       serial, unrolled: in order. vector: iterations are independent of each other, or meet
//             only in the carried values of a `reduce`; any order, any grouping; none inside
//             another. parallel (only as above): iterations are independent. block, thread: as
//             parallel, for GPUs. A loop's bounds are evaluated once, before it.
// Locals      An `alloc` makes a new uninitialized buffer each time it is executed, also in each
//             iteration of a vector loop.
// Reduce      A loop with carried values: init, a step (`yield` gives the next values), and for
//             vector/parallel loops a `combine` of two partial tuples. With a combine the loop may
//             be split into any number of partial reductions, each starting at init (the identity)
//             and taking its iterations in order, combined in any order. Without one it runs in
//             order.
// Scan        A reduce whose mode is `scan` runs in order, as its body sees the carried values, and
//             may take the tuple of an iteration from any tree of combines over the iterations up
//             to it, in their order, each of them starting at init. The yields are variables of
//             lets in the body, each its own; what depends on the carried values before the last of
//             these lets is lets that nothing reads behind it.
// Floats      IEEE, round to nearest even, NaN and denormals kept; nothing is reassociated or
//             contracted except by a combine. min and max propagate NaN and give either one of two
//             zeros. The sign and payload of a NaN that arithmetic makes are unspecified; a NaN
//             literal has none. f16 and bf16 are storage: loads, stores, select and casts take
//             them, arithmetic does not. Casts round to nearest even; to f16 and bf16 from f64 and
//             from integers they go through f32, as eager's do. Float to integer truncates, out of
//             range is unspecified but harmless; integer to integer wraps; to bool is != 0.
// Integers    wrap in two's complement. bool holds 0 or 1.
// Check       if the condition is false for any executed iteration the kernel stops and returns the
//             code and the check's details; memory written so far is unspecified.
// Atomic      an update that is indivisible among the iterations of parallel loops; order
//             unspecified.
//
// Expressions are interned in an Arena: structurally equal expressions are the same pointer (equal
// loads still need equal memory states to be equal values). Every make() checks its operands: an
// ill-typed node cannot exist.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "types/dtype.h"
#include "types/symbolic.h"

namespace mlcc::loop {

enum class ScalarOp : uint8_t {
#define SCALAR_OP(enumerator, text, arity, op_class, meaning) enumerator,
#include "loop/scalar_ops.def"
#undef SCALAR_OP
};

// Which dtypes an op takes and gives; scalar_ops.def describes the classes.
enum class OpClass : uint8_t {
  kArith,
  kInteger,
  kFloat,
  kFunction,
  kCompare,
  kLogic,
  kTest,
  kSelect
};

std::string_view scalar_op_name(ScalarOp op);
std::optional<ScalarOp> parse_scalar_op(std::string_view name);
int scalar_op_arity(ScalarOp op);
OpClass scalar_op_class(ScalarOp op);

class Arena;
struct Buffer;

// ---- Expressions --------------------------------------------------------------------------------

enum class ExprKind : uint8_t { kConstant, kVariable, kLoad, kApply, kCast };

struct ExprNode {
  const ExprKind kind;
  const DType dtype;
};
using Expr = const ExprNode*;

// A literal; `bits` is the value's bit pattern, zero-extended (an i64 is itself, f32 its 32 bits).
struct Constant : ExprNode {
  static constexpr ExprKind kKind = ExprKind::kConstant;
  const uint64_t bits;

  static Expr make(Arena& arena, DType dtype, uint64_t bits);
  // Any dtype: an integer one wraps, bool is != 0, a float one rounds.
  static Expr make_int(Arena& arena, DType dtype, int64_t value);
  // A float dtype, rounded.
  static Expr make_float(Arena& arena, DType dtype, double value);
  int64_t as_int() const;
  double as_double() const;
};

// A loop variable, a let, a carried value or a size. Names are unique within a kernel.
struct Variable : ExprNode {
  static constexpr ExprKind kKind = ExprKind::kVariable;
  const std::string name;

  static const Variable* make(Arena& arena, DType dtype, std::string_view name);
};

struct Load : ExprNode {
  static constexpr ExprKind kKind = ExprKind::kLoad;
  const Buffer* const buffer;
  const std::vector<Expr> indices;  // i64, one per dimension
  const Expr mask;                  // bool or null
  const Expr otherwise;             // of the buffer's dtype or null; only with a mask

  static Expr make(Arena& arena, const Buffer* buffer, std::vector<Expr> indices,
                   Expr mask = nullptr, Expr otherwise = nullptr);
};

struct Apply : ExprNode {
  static constexpr ExprKind kKind = ExprKind::kApply;
  const ScalarOp op;
  const std::vector<Expr> args;

  static Expr make(Arena& arena, ScalarOp op, std::vector<Expr> args);
};

struct Cast : ExprNode {
  static constexpr ExprKind kKind = ExprKind::kCast;
  const Expr value;

  // `value` itself if it has that dtype.
  static Expr make(Arena& arena, DType dtype, Expr value);
};

// Checked downcast by kind; null if it is another kind, or null already.
template <typename T>
const T* as(Expr e) {
  return e != nullptr && e->kind == T::kKind ? static_cast<const T*>(e) : nullptr;
}

// ---- Buffers ------------------------------------------------------------------------------------

enum class Scope : uint8_t { kGlobal, kShared, kStack, kRegister };
// Of global buffers; scratch is uninitialized, the runtime's. A value is one element (rank 0) that
// is only read: whoever launches the kernel has its address on the host and hands a GPU kernel the
// number itself.
enum class Access : uint8_t { kIn, kOut, kInOut, kScratch, kValue };

struct Buffer {
  std::string name;
  DType dtype;
  Scope scope;
  Access access;              // kInOut for local buffers
  std::vector<Expr> shape;    // i64 expressions of sizes; constants for stack and register buffers
  std::vector<Expr> strides;  // in elements; empty: row-major dense
};

// ---- Statements ---------------------------------------------------------------------------------

enum class StmtKind : uint8_t {
  kLet,
  kStore,
  kAtomic,
  kPrefetch,
  kFor,
  kReduce,
  kIf,
  kCheck,
  kAlloc,
  kContract
};
enum class LoopKind : uint8_t { kSerial, kParallel, kVector, kUnrolled, kBlock, kThread, kScan };

// Whether a loop of this kind runs several iterations at once in the lanes of vectors.
constexpr bool has_lanes(LoopKind kind) {
  return kind == LoopKind::kVector || kind == LoopKind::kScan;
}

struct StmtNode {
  const StmtKind kind;
};
using Stmt = const StmtNode*;
using Block = std::vector<Stmt>;

struct Let : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kLet;
  const Variable* const variable;
  const Expr value;
  static Stmt make(Arena& arena, const Variable* variable, Expr value);
};

struct Store : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kStore;
  const Buffer* const buffer;
  const std::vector<Expr> indices;
  const Expr value;
  const Expr mask;  // bool or null
  // bool, the same in all iterations of the kernel: the data will not be read again soon, so that
  // it may go past the caches. Null: it will.
  const Expr streams;
  static Stmt make(Arena& arena, const Buffer* buffer, std::vector<Expr> indices, Expr value,
                   Expr mask = nullptr, Expr streams = nullptr);
};

// buffer[indices] = op(buffer[indices], value), indivisibly. op is add, min, max, and, or, xor.
struct Atomic : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kAtomic;
  const ScalarOp op;
  const Buffer* const buffer;
  const std::vector<Expr> indices;
  const Expr value;
  const Expr mask;
  static Stmt make(Arena& arena, ScalarOp op, const Buffer* buffer, std::vector<Expr> indices,
                   Expr value, Expr mask = nullptr);
};

// Asks memory for the element, which is read soon. Has no effect; it may be any place, even beside
// the buffer.
struct Prefetch : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kPrefetch;
  const Buffer* const buffer;
  const std::vector<Expr> indices;
  static Stmt make(Arena& arena, const Buffer* buffer, std::vector<Expr> indices);
};

constexpr int64_t kMostGroupThreads = 1024;

// How a loop runs: what a schedule decides. Printed with the loop.
struct LoopMode {
  LoopKind kind = LoopKind::kSerial;
  int64_t width = 0;  // vector, scan: lanes (0: the backend's natural width)
  // Vector, scan: vectors per iteration (accumulators of a reduce); else: copies of the body.
  int64_t unroll = 1;
  int64_t grain = 1;  // parallel: least iterations a thread should get
  // Parallel: threads of a GPU that run one iteration together, a power of two up to
  // kMostGroupThreads; 0: not decided. Without meaning on a CPU.
  int64_t group = 0;
  friend bool operator==(const LoopMode&, const LoopMode&) = default;
};

struct For : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kFor;
  const Variable* const variable;  // i64
  const Expr begin, end;           // half open; empty if end <= begin
  const LoopMode mode;
  const Block body;
  static Stmt make(Arena& arena, const Variable* variable, Expr begin, Expr end, LoopMode mode,
                   Block body);
};

struct Carried {
  const Variable* variable;  // visible in the body
  Expr init;
  const Variable* result;  // visible after the loop
  friend bool operator==(const Carried&, const Carried&) = default;
};

// Merges two partial tuples: `left` and `right` are bound, `values` is the merged tuple.
struct Combine {
  std::vector<const Variable*> left, right;
  Block body;  // lets only
  std::vector<Expr> values;
  friend bool operator==(const Combine&, const Combine&) = default;
};

struct Reduce : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kReduce;
  const Variable* const variable;
  const Expr begin, end;
  const LoopMode mode;  // not parallel
  const std::vector<Carried> carried;
  const Block body;
  const std::vector<Expr> yields;  // next value of each carried variable
  const std::optional<Combine> combine;
  static Stmt make(Arena& arena, const Variable* variable, Expr begin, Expr end, LoopMode mode,
                   std::vector<Carried> carried, Block body, std::vector<Expr> yields,
                   std::optional<Combine> combine);
};

struct If : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kIf;
  const Expr condition;
  const Block then_body, else_body;
  static Stmt make(Arena& arena, Expr condition, Block then_body, Block else_body = {});
};

constexpr size_t kMaxCheckDetails = 2;
using CheckDetails = std::array<int64_t, kMaxCheckDetails>;

// Returns `code` (> 0) from the kernel where the condition is false. What a code means stands in
// Kernel::errors; `details` (i64, at most kMaxCheckDetails) are the numbers in its text.
struct Check : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kCheck;
  const Expr condition;
  const int64_t code;
  const std::vector<Expr> details;
  static Stmt make(Arena& arena, Expr condition, int64_t code, std::vector<Expr> details = {});
};

// A local buffer, uninitialized, alive to the end of the enclosing block.
struct Alloc : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kAlloc;
  const Buffer* const buffer;
  static Stmt make(Arena& arena, const Buffer* buffer);
};

// Where a tile lies in a buffer: its first element, and how far apart in memory, in elements,
// neighbours are along each axis of the tile. The elements must be some of the buffer; steps need
// not follow its dimensions.
struct TileRef {
  const Buffer* buffer;
  std::vector<Expr> origin;  // i64, one per dimension of the buffer
  // i64. Of C: along rows, along columns. Of A: along rows, then along each depth axis. Of B: along
  // columns, then along each depth axis.
  std::vector<Expr> steps;
  // i64, of A only. Where its rows are not equally far apart: how far behind the origin each of
  // them begins, in elements; the step along rows counts for nothing then.
  std::vector<Expr> rows = {};
  // Of B only, of u8. Not 0: two elements stand in a byte, of a column below these in its lower
  // half, and in its upper half that of the column which is so many behind.
  int64_t low_columns = 0;
  friend bool operator==(const TileRef&, const TileRef&) = default;
};

// A hint: with what lies e behind the origin of B's tile, the line at about origin + (e >> shift)
// of a buffer of the same dtype may be asked for, for later.
struct LinesAhead {
  Expr origin = nullptr;  // i64, in elements; null: there is none. The buffer has one dimension
  int64_t shift = 0;
  const Buffer* buffer = nullptr;  // null: that of B
  bool is_soon = false;            // whether first-level caches are to have it, else second-level
  friend bool operator==(const LinesAhead&, const LinesAhead&) = default;
};

// The tile contraction: C[m, n] (+)= sum over all k of A[m, k] * B[k, n], m < rows, n < columns,
// where k runs over the depth axes, outermost first; an extent that is not positive gives an empty
// sum. The sum starts at 0, may be associated in any way that is the same for every run of the
// code, and is then added to C or takes its place. A product of floats may be rounded before it is
// added; of two bf16, what is smaller than the least normal f32 may count as 0.
// C is a stack or register buffer: f32 (A and B each f32, bf16 or f16), f64 (f64), i32 (A and B
// each u8, i8, i16 or i32) or i64 (i64); integers wrap.
struct Contract : StmtNode {
  static constexpr StmtKind kKind = StmtKind::kContract;
  const TileRef c, a, b;
  const int64_t rows, columns;
  // Null: all; else in [1, columns]: columns behind it are not read from B; those of C are
  // unspecified.
  const Expr live_columns;
  const std::vector<Expr> depths;  // i64, at least one
  const bool adds;
  const LinesAhead ahead;
  static Stmt make(Arena& arena, TileRef c, TileRef a, TileRef b, int64_t rows, int64_t columns,
                   Expr live_columns, std::vector<Expr> depths, bool adds, LinesAhead ahead = {});
};

template <typename T>
const T* as(Stmt s) {
  return s != nullptr && s->kind == T::kKind ? static_cast<const T*>(s) : nullptr;
}

// ---- Kernels ------------------------------------------------------------------------------------

// What the runtime raises when a check fails: eager's exception type and text, where {0} and {1}
// stand for the details of the check.
struct ErrorText {
  int64_t code;
  std::string exception;  // "IndexError", "RuntimeError", ...
  std::string text;
};

// The loop whose iterations the runtime splits, if the phase is a range: lets, then one parallel
// loop. Else null.
const For* parallel_loop(const Block& phase);

struct Kernel {
  std::string name;                    // an identifier
  std::vector<const Variable*> sizes;  // i64, in argument order
  std::vector<const Buffer*> buffers;  // global, in argument order
  std::vector<Block> phases;
  std::vector<ErrorText> errors;
};

// Owns and interns the nodes of any number of kernels. Handed in by reference; not thread safe;
// never global.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const Buffer* make_buffer(Buffer buffer);
  // A name that no variable of this arena has: base, base.1, base.2, ...
  std::string fresh_name(std::string_view base);

 private:
  friend struct ArenaAccess;
  struct Storage;
  std::unique_ptr<Storage> storage_;
};

// Shorthands used throughout lowering and passes.
Expr int_constant(Arena& arena, int64_t value);  // i64
Expr apply(Arena& arena, ScalarOp op,
           std::vector<Expr> args);  // folds integer constants and the identities of + and *
Expr from_symbolic(Arena& arena,
                   const SymExpr& e);        // symbols become i64 variables of the same name
std::optional<SymExpr> to_symbolic(Expr e);  // nothing if it holds loads or other ops

}  // namespace mlcc::loop
