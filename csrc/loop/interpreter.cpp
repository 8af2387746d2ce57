#include "loop/interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "loop/interpreter_program.h"
#include "loop/scalar_value.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

// A buffer at run time.
struct Memory {
  const Buffer* buffer = nullptr;
  std::byte* data = nullptr;
  std::vector<int64_t> shape, strides;
  std::vector<std::byte> owned;  // of a local buffer
  bool is_tracked = false;       // begins uninitialized
  std::vector<bool> is_written;  // by dense index, if tracked
};

uint64_t read_bits(const std::byte* from, DType dtype) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(dtype_size(dtype)));  // little endian
  return bits;
}

void write_bits(std::byte* to, DType dtype, uint64_t bits) {
  std::memcpy(to, &bits, static_cast<size_t>(dtype_size(dtype)));
}

class Interpreter {
 public:
  Interpreter(const Kernel& kernel, const InterpreterOptions& options)
      : kernel_(kernel), options_(options), program_(prepare(kernel)), frame_(program_.frame),
        memories_(program_.buffers.size()), random_(options.seed) {}

  const CheckDetails& details() const { return details_; }

  int64_t run(std::span<const int64_t> sizes, std::span<void* const> buffers) {
    MLCC_CHECK(sizes.size() == kernel_.sizes.size(), "kernel @", kernel_.name, ": ", sizes.size(),
               " sizes given, expected ", kernel_.sizes.size());
    MLCC_CHECK(buffers.size() == kernel_.buffers.size(), "kernel @", kernel_.name, ": ",
               buffers.size(), " buffers given, expected ", kernel_.buffers.size());
    for (size_t i = 0; i < sizes.size(); ++i)
      value(program_.sizes[i]) = static_cast<uint64_t>(sizes[i]);
    for (size_t i = 0; i < buffers.size(); ++i)
      bind_parameter(i, static_cast<std::byte*>(buffers[i]));
    for (const auto& phase : program_.phases)
      if (const int64_t code = run_block(phase); code != 0) return code;
    return 0;
  }

 private:
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    std::string where = "kernel @" + kernel_.name + ": ";
    if (current_ != nullptr) {
      const std::string text = print(current_);
      where += "'" + text.substr(0, text.find('\n')) + "': ";
    }
    throw Error(detail::join(where, parts...));
  }

  uint64_t& value(int slot) { return frame_[static_cast<size_t>(slot)]; }
  int64_t integer(int slot) { return static_cast<int64_t>(value(slot)); }

  // ---- Memory

  void set_shape(Memory& memory, const Code& shape) {
    run_code(shape);
    memory.shape.clear();
    int64_t count = 1;
    for (const int slot : shape.slots) {
      memory.shape.push_back(integer(slot));
      if (integer(slot) < 0) fail("%", memory.buffer->name, ": extent ", integer(slot));
      count *= integer(slot);
    }
    memory.strides.assign(memory.shape.size(), 1);
    for (size_t d = memory.shape.size(); d-- > 1;)
      memory.strides[d - 1] = memory.strides[d] * memory.shape[d];
    if (memory.is_tracked) memory.is_written.assign(static_cast<size_t>(count), false);
  }

  void bind_parameter(size_t i, std::byte* data) {
    Memory& memory = memories_[i];
    memory.buffer = program_.buffers[i];
    memory.data = data;
    memory.is_tracked =
        memory.buffer->access == Access::kOut || memory.buffer->access == Access::kScratch;
    set_shape(memory, program_.shapes[i]);
    if (memory.buffer->strides.empty()) return;
    run_code(program_.strides[i]);
    for (size_t d = 0; d < memory.strides.size(); ++d)
      memory.strides[d] = integer(program_.strides[i].slots[d]);
  }

  void run_alloc(const Step& step) {
    Memory& memory = memories_[static_cast<size_t>(step.buffers[0])];
    memory.buffer = as<Alloc>(step.stmt)->buffer;
    memory.is_tracked = true;
    set_shape(memory, step.operands);
    const auto bytes =
        memory.is_written.size() * static_cast<size_t>(dtype_size(memory.buffer->dtype));
    memory.owned.assign(bytes, std::byte{0xA5});
    memory.data = memory.owned.data();
  }

  // Where an element is: its address, and its number in dense order.
  struct Place {
    std::byte* address;
    size_t number;
  };

  Place locate(const Memory& memory, std::span<const int64_t> index) {
    int64_t offset = 0;
    int64_t number = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      if (index[d] < 0 || index[d] >= memory.shape[d])
        fail("%", memory.buffer->name, ": index ", index[d], " in dimension ", d, " is outside 0..",
             memory.shape[d]);
      offset += index[d] * memory.strides[d];
      number = number * memory.shape[d] + index[d];
    }
    return {memory.data + offset * dtype_size(memory.buffer->dtype), static_cast<size_t>(number)};
  }

  // The element `offset` elements in memory behind the first one. Taking from the longest stride
  // on finds its index, wherever elements do not overlap.
  Place locate_at(const Memory& memory, int64_t offset) {
    const size_t rank = memory.shape.size();
    int64_t rest = offset;
    index_.assign(rank, 0);
    for (int64_t above = std::numeric_limits<int64_t>::max(); above > 0;) {
      int64_t stride = 0;
      for (size_t d = 0; d < rank; ++d)
        if (memory.strides[d] < above) stride = std::max(stride, memory.strides[d]);
      above = stride;
      for (size_t d = 0; stride > 0 && d < rank; ++d) {
        if (memory.strides[d] != stride) continue;
        index_[d] =
            std::clamp<int64_t>(rest / stride, 0, std::max<int64_t>(memory.shape[d], 1) - 1);
        rest -= index_[d] * stride;
      }
    }
    if (rest != 0) fail("%", memory.buffer->name, ": no element is at place ", offset);
    return locate(memory, index_);
  }

  uint64_t load(const Memory& memory, const Place& place) {
    if (memory.is_tracked && !memory.is_written[place.number])
      fail("%", memory.buffer->name, ": element ", place.number, " is read before it is written");
    return read_bits(place.address, memory.buffer->dtype);
  }

  uint64_t load(const Memory& memory, std::span<const int64_t> index) {
    return load(memory, locate(memory, index));
  }

  void store(Memory& memory, const Place& place, uint64_t bits) {
    if (memory.is_tracked) memory.is_written[place.number] = true;
    write_bits(place.address, memory.buffer->dtype, bits);
  }

  void store(Memory& memory, std::span<const int64_t> index, uint64_t bits) {
    store(memory, locate(memory, index), bits);
  }

  std::span<const int64_t> gather(std::span<const int> slots) {
    index_.clear();
    for (const int slot : slots) index_.push_back(integer(slot));
    return index_;
  }

  // ---- Expressions

  void run_code(const Code& code) {
    for (const Instruction& instruction : code.instructions)
      value(instruction.out) = run_instruction(instruction);
  }

  uint64_t run_instruction(const Instruction& instruction) {
    if (const auto* apply = as<Apply>(instruction.expr)) return run_apply(*apply, instruction);
    if (const auto* cast = as<Cast>(instruction.expr))
      return convert(cast->value->dtype, cast->dtype, value(instruction.args[0]));
    if (instruction.mask != kNoSlot && value(instruction.mask) == 0)
      return instruction.otherwise == kNoSlot ? 0 : value(instruction.otherwise);
    return load(memories_[static_cast<size_t>(instruction.buffer)], gather(instruction.indices));
  }

  uint64_t run_apply(const Apply& apply, const Instruction& instruction) {
    const size_t n = apply.args.size();
    std::array<uint64_t, 3> args{};
    for (size_t i = 0; i < n; ++i) args[i] = value(instruction.args[i]);
    const DType dtype = apply.args.back()->dtype;
    const auto result = evaluate(apply.op, dtype, std::span(args).first(n));
    if (!result)
      fail(scalar_op_name(apply.op), " of ", decode_int(dtype, args[0]), " by ",
           decode_int(dtype, args[1]));
    return options_.has_inexact_functions && is_function(apply.op) ? moved(dtype, *result)
                                                                   : *result;
  }

  // Whole numbers are most often exact: the sine of 0, powers.
  uint64_t moved(DType dtype, uint64_t bits) {
    const double number = decode_float(dtype, bits);
    if (!std::isfinite(number) || number == std::floor(number)) return bits;
    const double epsilon = dtype == DType::kF64 ? 0x1p-52 : 0x1p-23;
    return encode_float(dtype, number * (random_() % 2 == 0 ? 1 + epsilon : 1 - epsilon));
  }

  // ---- Statements: each returns 0, or the code of the check that failed

  int64_t run_block(const std::vector<Step>& block) {
    for (const Step& step : block)
      if (const int64_t code = run_step(step); code != 0) return code;
    return 0;
  }

  int64_t run_step(const Step& step) {
    current_ = step.stmt;
    if (step.stmt->kind == StmtKind::kAlloc) return run_alloc(step), 0;
    run_code(step.operands);
    const std::vector<int>& operands = step.operands.slots;
    switch (step.stmt->kind) {
    case StmtKind::kLet: value(step.variable) = value(operands[0]); return 0;
    case StmtKind::kStore: run_store(step); return 0;
    case StmtKind::kAtomic: run_atomic(step); return 0;
    case StmtKind::kPrefetch: return 0;
    case StmtKind::kFor: return run_for(step);
    case StmtKind::kReduce: return run_reduce(step);
    case StmtKind::kIf: return run_block(step.blocks[value(operands[0]) != 0 ? 0 : 1]);
    case StmtKind::kCheck: return run_check(step);
    case StmtKind::kAlloc: break;
    case StmtKind::kContract: run_contract(step); return 0;
    }
    MLCC_UNREACHABLE("statement kind ", static_cast<int>(step.stmt->kind));
  }

  int64_t run_check(const Step& step) {
    const std::vector<int>& operands = step.operands.slots;
    if (value(operands[0]) != 0) return 0;
    for (size_t i = 1; i < operands.size(); ++i)
      details_[i - 1] = decode_int(DType::kI64, value(operands[i]));
    return as<Check>(step.stmt)->code;
  }

  // Of a store or an atomic update: the indices, the value and whether the mask lets it happen.
  struct Update {
    std::span<const int64_t> index;
    uint64_t bits;
    bool is_masked_off;
  };

  Update update_of(const Step& step, size_t rank, Expr mask) {
    const std::span<const int> operands = step.operands.slots;
    return {gather(operands.first(rank)), value(operands[rank]),
            mask != nullptr && value(operands[rank + 1]) == 0};
  }

  void run_store(const Step& step) {
    const auto* stmt = as<Store>(step.stmt);
    const Update update = update_of(step, stmt->indices.size(), stmt->mask);
    if (update.is_masked_off) return;
    store(memories_[static_cast<size_t>(step.buffers[0])], update.index, update.bits);
  }

  void run_atomic(const Step& step) {
    const auto* atomic = as<Atomic>(step.stmt);
    const Update update = update_of(step, atomic->indices.size(), atomic->mask);
    if (update.is_masked_off) return;
    Memory& memory = memories_[static_cast<size_t>(step.buffers[0])];
    const std::array<uint64_t, 2> args = {load(memory, update.index), update.bits};
    store(memory, update.index, *evaluate(atomic->op, memory.buffer->dtype, args));
  }

  // The iterations of [begin, end), out of order where the loop allows it and a seed asks for it.
  std::vector<int64_t> iterations(int64_t begin, int64_t end, LoopKind kind) {
    std::vector<int64_t> list(static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
    std::iota(list.begin(), list.end(), begin);
    const bool is_ordered = kind == LoopKind::kSerial || kind == LoopKind::kUnrolled;
    if (!is_ordered && options_.seed != 0) std::shuffle(list.begin(), list.end(), random_);
    return list;
  }

  int64_t run_for(const Step& step) {
    const std::vector<int>& operands = step.operands.slots;
    const LoopKind kind = as<For>(step.stmt)->mode.kind;
    for (const int64_t i : iterations(integer(operands[0]), integer(operands[1]), kind)) {
      value(step.variable) = static_cast<uint64_t>(i);
      if (const int64_t code = run_block(step.blocks[0]); code != 0) return code;
    }
    return 0;
  }

  using Tuple = std::vector<uint64_t>;

  Tuple read_slots(std::span<const int> slots) {
    Tuple tuple;
    for (const int slot : slots) tuple.push_back(value(slot));
    return tuple;
  }
  void write_slots(std::span<const int> slots, const Tuple& tuple) {
    for (size_t i = 0; i < slots.size(); ++i) value(slots[i]) = tuple[i];
  }

  // One partial reduction: starts from `carried` and leaves its result there.
  int64_t run_partial(const Step& step, const std::vector<int64_t>& list, Tuple& carried) {
    for (const int64_t i : list) {
      value(step.variable) = static_cast<uint64_t>(i);
      write_slots(step.carried, carried);
      if (const int64_t code = run_block(step.blocks[0]); code != 0) return code;
      current_ = step.stmt;
      run_code(step.yields);
      carried = read_slots(step.yields.slots);
    }
    return 0;
  }

  int64_t run_reduce(const Step& step) {
    const auto* reduce = as<Reduce>(step.stmt);
    const std::span<const int> operands = step.operands.slots;
    const int64_t begin = integer(operands[0]);
    const int64_t end = integer(operands[1]);
    const Tuple init = read_slots(operands.subspan(2));
    const bool may_split = reduce->combine && reduce->mode.kind != LoopKind::kScan;
    const int64_t n = may_split ? std::max<int64_t>(options_.partials, 1) : 1;
    std::vector<Tuple> partials(static_cast<size_t>(n), init);
    const std::vector<int64_t> all = iterations(begin, end, LoopKind::kSerial);
    for (int64_t p = 0; p < n; ++p) {
      const std::vector<int64_t> own = n == 1 ? all : share_of(all, p, n);
      if (const int64_t code = run_partial(step, own, partials[static_cast<size_t>(p)]); code != 0)
        return code;
    }
    while (partials.size() > 1) merge_two(step, partials);
    write_slots(step.results, partials[0]);
    return 0;
  }

  // The iterations of partial p of n: every n-th one, as lanes do, or one piece, as threads do.
  std::vector<int64_t> share_of(const std::vector<int64_t>& all, int64_t p, int64_t n) const {
    std::vector<int64_t> own;
    const auto count = static_cast<int64_t>(all.size());
    const bool is_strided = options_.seed % 2 == 0;
    for (int64_t i = 0; i < count; ++i)
      if ((is_strided ? i % n : i * n / count) == p) own.push_back(all[static_cast<size_t>(i)]);
    return own;
  }

  // Replaces two partial results by their combination: the first two in order, or any two under a
  // seed.
  void merge_two(const Step& step, std::vector<Tuple>& partials) {
    if (options_.seed != 0) std::shuffle(partials.begin(), partials.end(), random_);
    write_slots(step.left, partials[0]);
    write_slots(step.right, partials[1]);
    run_block(step.blocks[1]);
    current_ = step.stmt;
    run_code(step.combined);
    partials[0] = read_slots(step.combined.slots);
    partials.erase(partials.begin() + 1);
  }

  // A tile in memory: the place of its first element, the distance of neighbours along each axis,
  // in elements, and where each row begins, if that is told.
  struct Tile {
    int64_t origin = 0;
    std::vector<int64_t> steps;
    std::vector<int64_t> rows;
    int64_t at(int64_t line) const {
      return origin + (rows.empty() ? line * steps[0] : rows[static_cast<size_t>(line)]);
    }
  };

  // Takes the operands of a tile off the front of `slots`.
  Tile take_tile(const TileRef& ref, const Memory& memory, std::span<const int>& slots) {
    Tile tile;
    for (size_t d = 0; d < ref.origin.size(); ++d)
      tile.origin += integer(slots[d]) * memory.strides[d];
    for (const int slot : slots.subspan(ref.origin.size(), ref.steps.size()))
      tile.steps.push_back(integer(slot));
    slots = slots.subspan(ref.origin.size() + ref.steps.size());
    for (const int slot : slots.first(ref.rows.size())) tile.rows.push_back(integer(slot));
    slots = slots.subspan(ref.rows.size());
    return tile;
  }

  static uint64_t multiply_add(DType dtype, DType dtype_a, DType dtype_b, uint64_t a, uint64_t b,
                               uint64_t c) {
    const std::array<uint64_t, 3> args = {convert(dtype_a, dtype, a), convert(dtype_b, dtype, b),
                                          c};
    if (is_float(dtype)) return *evaluate(ScalarOp::kFma, dtype, args);
    const std::array<uint64_t, 2> sum = {*evaluate(ScalarOp::kMul, dtype, std::span(args).first(2)),
                                         c};
    return *evaluate(ScalarOp::kAdd, dtype, sum);
  }

  // The distance from a line's first element to each element along depth, outermost axis first.
  static std::vector<int64_t> depth_offsets(const Tile& tile, std::span<const int64_t> depths) {
    std::vector<int64_t> offsets = {0};
    for (size_t axis = 0; axis < depths.size(); ++axis) {
      std::vector<int64_t> next;
      for (const int64_t offset : offsets)
        for (int64_t k = 0; k < depths[axis]; ++k)
          next.push_back(offset + k * tile.steps[axis + 1]);
      offsets = std::move(next);
    }
    return offsets;
  }

  uint64_t load_of_b(const Memory& b, int64_t low_columns, const Tile& tile, int64_t column,
                     int64_t along_depth) {
    if (low_columns == 0) return load(b, locate_at(b, tile.at(column) + along_depth));
    const uint64_t byte = load(b, locate_at(b, tile.at(column % low_columns) + along_depth));
    return column < low_columns ? byte & 0xf : byte >> 4;
  }

  void run_contract(const Step& step) {
    const auto* contract = as<Contract>(step.stmt);
    std::span<const int> slots = step.operands.slots;
    Memory& c = memories_[static_cast<size_t>(step.buffers[0])];
    const Memory& a = memories_[static_cast<size_t>(step.buffers[1])];
    const Memory& b = memories_[static_cast<size_t>(step.buffers[2])];
    const Tile tile_c = take_tile(contract->c, c, slots);
    const Tile tile_a = take_tile(contract->a, a, slots);
    const Tile tile_b = take_tile(contract->b, b, slots);
    std::vector<int64_t> depths;
    for (const int slot : slots.first(contract->depths.size())) depths.push_back(integer(slot));
    const int64_t live =
        contract->live_columns != nullptr ? integer(slots[depths.size()]) : contract->columns;
    if (live < 1 || live > contract->columns)
      fail("live columns: found ", live, ", expected 1 to ", contract->columns);
    const std::vector<int64_t> along_a = depth_offsets(tile_a, depths);
    const std::vector<int64_t> along_b = depth_offsets(tile_b, depths);
    const DType dtype = c.buffer->dtype;
    for (int64_t m = 0; m < contract->rows; ++m) {
      for (int64_t n = 0; n < contract->columns; ++n) {
        const Place place = locate_at(c, tile_c.at(m) + n * tile_c.steps[1]);
        if (n >= live) {
          c.is_written[place.number] = false;
          continue;
        }
        uint64_t sum = 0;
        for (size_t k = 0; k < along_a.size(); ++k) {
          const uint64_t left = load(a, locate_at(a, tile_a.at(m) + along_a[k]));
          const uint64_t right = load_of_b(b, contract->b.low_columns, tile_b, n, along_b[k]);
          sum = multiply_add(dtype, a.buffer->dtype, b.buffer->dtype, left, right, sum);
        }
        if (contract->adds) sum = *evaluate(ScalarOp::kAdd, dtype, std::array{sum, load(c, place)});
        store(c, place, sum);
      }
    }
  }

  const Kernel& kernel_;
  const InterpreterOptions options_;
  const Program program_;
  std::vector<uint64_t> frame_;
  std::vector<Memory> memories_;
  std::mt19937_64 random_;
  std::vector<int64_t> index_;  // of the element being addressed
  Stmt current_ = nullptr;      // for messages
  CheckDetails details_{};      // of the check that failed
};

}  // namespace

int64_t interpret(const Kernel& kernel, std::span<const int64_t> sizes,
                  std::span<void* const> buffers, const InterpreterOptions& options,
                  CheckDetails* details) {
  Interpreter interpreter(kernel, options);
  const int64_t code = interpreter.run(sizes, buffers);
  if (details != nullptr) *details = interpreter.details();
  return code;
}

}  // namespace mlcc::loop
