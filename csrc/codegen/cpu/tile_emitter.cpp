#include "codegen/cpu/tile_emitter.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>

#include "codegen/cpu/counted_loop.h"
#include "codegen/cpu/product.h"
#include "codegen/cpu/tile_registers.h"
#include "schedule/machine.h"

namespace mlcc::codegen::cpu {
namespace {

// An innermost depth axis up to this is written out whole.
constexpr int64_t kMostWrittenOut = 4;
// Multiply-adds that a round of the innermost loop should have, so that its counting is hidden.
constexpr int64_t kProductsOfRound = 48;
constexpr int64_t kMostCopies = 8;  // steps of depth in such a round
// Rows whose pointers are formed from one register and a multiple of their distance.
constexpr int64_t kRowsOfPointer = 4;
constexpr int64_t kLineBytes = 64;  // of a cache
// LLVM's numbers of the levels that a prefetch brings a line to: all of them, all but the first.
constexpr uint32_t kIntoFirstLevel = 3, kIntoSecondLevel = 2;

// Pointers into A and B for one step of depth: of every kRowsOfPointer-th row, and of the first
// column.
struct Cursor {
  Parts a;
  llvm::Value* b;
};

class TileEmitter {
 public:
  TileEmitter(const OpContext& c, int64_t vector_bits, const Contraction& contraction)
      : c_(c), ir_(c.ir), tile_(contraction), product_(choose_product(c, vector_bits, contraction)),
        depths_(contraction.depths), needs_(product_->needs()) {
    if (product_->depth() > 1) {
      terms_ = llvm::cast<llvm::ConstantInt>(depths_.back())->getSExtValue();
      depths_.pop_back();
    }
    word_bytes_ = product_->depth() * dtype_size(tile_.b.dtype);
    is_contiguous_ = is_constant(tile_.b.steps[0], word_bytes_);
    lanes_ = std::max<int64_t>(vector_bits / (8 * dtype_size(tile_.c.dtype)), 1);
    needs_.registers = schedule::vector_registers(vector_bits);
    if (tile_.b.low_columns > 0) ++needs_.constants;  // a mask
  }

  // `live` null: all columns are.
  void emit_tile(llvm::Value* live) {
    if (live != nullptr && c_.has.neon) return emit_live_columns(live);
    live_ = live;
    RegisterNeeds needs = needs_;
    // Masks of AVX2 are vectors.
    if (live != nullptr && !c_.has.avx512) ++needs.per_group;
    for (const ColumnBlocks& columns : blocks_of_columns(needs))
      emit_columns(columns, integer(columns.first), end_of(columns), needs);
  }

 private:
  llvm::Value* integer(int64_t value) { return ir_.getInt64(static_cast<uint64_t>(value)); }
  llvm::Value* times(llvm::Value* step, int64_t count) {
    return ir_.CreateMul(step, integer(count));
  }
  llvm::Value* behind(llvm::Value* pointer, llvm::Value* bytes) {
    return is_constant(bytes, 0) ? pointer : ir_.CreateGEP(ir_.getInt8Ty(), pointer, bytes);
  }

  // ---- Blocks

  // Two halves of one block share their loads.
  std::vector<ColumnBlocks> blocks_of_columns(const RegisterNeeds& needs) const {
    if (tile_.b.low_columns == 0) return cut_columns(tile_.rows, tile_.columns, lanes_, needs);
    std::vector<ColumnGroup> groups = group_columns(tile_.columns, lanes_);
    if (fits_registers(static_cast<int64_t>(groups.size()), needs))
      return {{0, 1, tile_.columns, std::move(groups)}};
    std::vector<ColumnBlocks> blocks;
    for (const ColumnGroup& group : groups)
      blocks.push_back({group.first, 1, group.width, {{0, group.width}}});
    return blocks;
  }

  // Where blocks whose first column is live end.
  llvm::Value* end_of(const ColumnBlocks& columns) {
    llvm::Value* end = integer(columns.first + columns.count * columns.columns);
    if (live_ == nullptr || columns.first + columns.count == 1) return end;
    return ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, live_);
  }

  // Without masks: as many whole vectors as are live, then column by column.
  void emit_live_columns(llvm::Value* live) {
    live_ = nullptr;
    llvm::Value* whole = ir_.CreateAnd(live, integer(-lanes_));
    const auto emit = [&](int64_t width, llvm::Value* begin, llvm::Value* end) {
      const ColumnBlocks columns{0, 1, width, {{0, static_cast<unsigned>(width)}}};
      emit_columns(columns, begin, end, needs_);
    };
    if (tile_.columns > lanes_) emit(lanes_, integer(0), whole);
    emit(1, whole, live);
  }

  void emit_columns(const ColumnBlocks& columns, llvm::Value* begin, llvm::Value* end,
                    const RegisterNeeds& needs) {
    groups_ = columns.groups;
    first_column_ = columns.first;
    emit_counted_loop(ir_, begin, end, columns.columns, {},
                      [&](llvm::Value* column, llvm::ArrayRef<llvm::Value*>) {
                        make_masks(column);
                        for (const RowBlocks& rows :
                             cut_rows(tile_.rows, static_cast<int64_t>(groups_.size()), needs))
                          emit_rows(rows, column, needs);
                        return Parts{};
                      });
  }

  void emit_rows(const RowBlocks& rows, llvm::Value* column, const RegisterNeeds& needs) {
    rows_ = rows.rows;
    sets_ = count_sets(rows_, static_cast<int64_t>(groups_.size()), product_->latency(), needs);
    if (has_row_table()) {
      for (int64_t block = 0; block < rows.count; ++block)
        emit_block(integer(rows.first + block * rows.rows), column);
      return;
    }
    emit_counted_loop(ir_, integer(rows.first), integer(rows.first + rows.count * rows.rows),
                      rows.rows, {}, [&](llvm::Value* row, llvm::ArrayRef<llvm::Value*>) {
                        emit_block(row, column);
                        return Parts{};
                      });
  }

  void emit_block(llvm::Value* row, llvm::Value* column) {
    llvm::Value* a = has_row_table() ? tile_.a.origin
                                     : behind(tile_.a.origin, ir_.CreateMul(tile_.a.steps[0], row));
    llvm::Value* b = behind(tile_.b.origin, ir_.CreateMul(tile_.b.steps[0], column));
    find_row_offsets(row);
    Parts sums;
    for (int64_t set = 0; set < sets_; ++set)
      for (int64_t row_of = 0; row_of < rows_; ++row_of)
        for (const ColumnGroup& group : groups_)
          sums.push_back(llvm::Constant::getNullValue(sum_type(group)));
    sums = emit_axis(0, a, b, std::move(sums));
    store_sums(row, column, total(sums));
  }

  bool has_row_table() const { return !tile_.a.rows.empty(); }

  // Of the rows from `row` on: of all of them, or of those that share a pointer.
  void find_row_offsets(llvm::Value* row) {
    row_offsets_.clear();
    if (has_row_table()) {
      const auto first = llvm::cast<llvm::ConstantInt>(row)->getZExtValue();
      for (uint64_t r = first; r < first + static_cast<uint64_t>(rows_); ++r)
        row_offsets_.push_back(tile_.a.rows[r]);
      return;
    }
    for (int64_t r = 0; r < kRowsOfPointer; ++r) row_offsets_.push_back(times(tile_.a.steps[0], r));
  }

  size_t sums_of_set() const { return static_cast<size_t>(rows_) * groups_.size(); }
  llvm::Type* sum_type(const ColumnGroup& group) {
    return with_lanes(memory_type(ir_.getContext(), tile_.c.dtype), group.width);
  }
  llvm::Value* plus(llvm::Value* left, llvm::Value* right) {
    return is_float(tile_.c.dtype) ? ir_.CreateFAdd(left, right) : ir_.CreateAdd(left, right);
  }

  // The sets of sums become one, rows by groups.
  Parts total(const Parts& sums) {
    const size_t count = sums_of_set();
    Parts totals(llvm::ArrayRef<llvm::Value*>(sums).take_front(count));
    for (size_t i = count; i < sums.size(); ++i)
      totals[i % count] = plus(totals[i % count], sums[i]);
    return totals;
  }

  // ---- Depth

  // Runs the depth axes from `axis` on.
  Parts emit_axis(size_t axis, llvm::Value* a, llvm::Value* b, Parts sums) {
    if (axis >= depths_.size()) return emit_step(cursor_of(a, b), 0, std::move(sums));
    llvm::Value* step_a = tile_.a.steps[axis + 1];
    llvm::Value* step_b = tile_.b.steps[axis + 1];
    if (axis + 1 == depths_.size()) return emit_innermost(a, b, step_a, step_b, std::move(sums));
    sums.push_back(a);
    sums.push_back(b);
    sums = emit_counted_loop(ir_, integer(0), depths_[axis], 1, sums,
                             [&](llvm::Value*, llvm::ArrayRef<llvm::Value*> carried) {
                               llvm::Value *at_a = carried[carried.size() - 2],
                                           *at_b = carried.back();
                               Parts next =
                                   emit_axis(axis + 1, at_a, at_b, Parts(carried.drop_back(2)));
                               next.push_back(behind(at_a, step_a));
                               next.push_back(behind(at_b, step_b));
                               return next;
                             });
    sums.resize(sums.size() - 2);
    return sums;
  }

  Parts emit_innermost(llvm::Value* a, llvm::Value* b, llvm::Value* step_a, llvm::Value* step_b,
                       Parts sums) {
    Cursor cursor = cursor_of(a, b);
    llvm::Value* depth = depths_.back();
    if (const auto* known = llvm::dyn_cast<llvm::ConstantInt>(depth);
        known != nullptr && known->getSExtValue() <= kMostWrittenOut)
      return emit_steps(std::max<int64_t>(known->getSExtValue(), 0), cursor, step_a, step_b,
                        std::move(sums));
    depth = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, depth, integer(0));
    const int64_t copies = count_copies();
    llvm::Value* rest = ir_.CreateAnd(depth, integer(copies - 1));
    llvm::Value* whole = ir_.CreateSub(depth, rest);
    sums = emit_rounds(integer(0), whole, copies, cursor, step_a, step_b, std::move(sums));
    if (copies == 1) return sums;
    return emit_rounds(whole, depth, 1, cursor, step_a, step_b, std::move(sums));
  }

  // Steps of depth in a round of the innermost loop. Where an element takes several instructions to
  // prepare, counting is hidden behind these, and longer rounds make the scheduler spill, as they
  // do where a step takes all registers there are.
  int64_t count_copies() const {
    const int64_t products = rows_ * static_cast<int64_t>(groups_.size());
    int64_t copies = 1;
    while (copies < sets_) copies *= 2;
    const bool takes_all =
        products + needs_.of_step(static_cast<int64_t>(groups_.size())) >= needs_.registers;
    if (needs_.per_row > 1 || takes_all || (c_.has.neon && product_->widens_elements()))
      return copies;
    while (copies < kMostCopies && 2 * copies * products <= kProductsOfRound) copies *= 2;
    return copies;
  }

  // Moves the cursor on.
  Parts emit_rounds(llvm::Value* begin, llvm::Value* end, int64_t copies, Cursor& cursor,
                    llvm::Value* step_a, llvm::Value* step_b, Parts sums) {
    const size_t count = sums.size();
    sums.append(cursor.a.begin(), cursor.a.end());
    sums.push_back(cursor.b);
    auto take_cursor = [&](llvm::ArrayRef<llvm::Value*> values) {
      return Cursor{Parts(values.drop_front(count).drop_back()), values.back()};
    };
    sums = emit_counted_loop(
        ir_, begin, end, copies, sums, [&](llvm::Value*, llvm::ArrayRef<llvm::Value*> carried) {
          Cursor at = take_cursor(carried);
          Parts next = emit_steps(copies, at, step_a, step_b, Parts(carried.take_front(count)));
          next.append(at.a.begin(), at.a.end());
          next.push_back(at.b);
          return next;
        });
    cursor = take_cursor(sums);
    sums.resize(count);
    return sums;
  }

  // `count` steps, one after the other; moves the cursor on.
  Parts emit_steps(int64_t count, Cursor& cursor, llvm::Value* step_a, llvm::Value* step_b,
                   Parts sums) {
    const Cursor first = cursor;
    for (int64_t k = 0; k < count; ++k) {
      ask_ahead(cursor.b, k);
      sums = emit_step(cursor, static_cast<size_t>(k % sets_), std::move(sums));
      cursor.b = moved(first.b, cursor.b, step_b, k + 1);
      for (size_t i = 0; i < cursor.a.size(); ++i)
        cursor.a[i] = moved(first.a[i], cursor.a[i], step_a, k + 1);
    }
    return sums;
  }

  // Lines for the k-th of the steps that stand together.
  void ask_ahead(llvm::Value* b, int64_t k) {
    if (tile_.ahead == nullptr || live_ != nullptr) return;
    const int64_t bytes = (groups_.back().first + groups_.back().width) * word_bytes_;
    const int64_t steps_of_line = std::max<int64_t>(1, (kLineBytes << tile_.ahead_shift) / bytes);
    if (k % steps_of_line == 0) emit_lines_ahead(ir_, tile_, b, bytes);
  }

  // `first` moved by `count` steps, that is `last` by one: a displacement where the step is known,
  // else one addition.
  llvm::Value* moved(llvm::Value* first, llvm::Value* last, llvm::Value* step, int64_t count) {
    if (llvm::isa<llvm::ConstantInt>(step)) return behind(first, times(step, count));
    return behind(last, step);
  }

  Cursor cursor_of(llvm::Value* a, llvm::Value* b) {
    Cursor cursor{{a}, b};
    if (has_row_table() || llvm::isa<llvm::ConstantInt>(tile_.a.steps[0])) return cursor;
    for (int64_t row = kRowsOfPointer; row < rows_; row += kRowsOfPointer)
      cursor.a.push_back(behind(a, times(tile_.a.steps[0], row)));
    return cursor;
  }

  llvm::Value* row_pointer(const Cursor& cursor, int64_t row) {
    if (has_row_table()) return behind(cursor.a[0], row_offsets_[static_cast<size_t>(row)]);
    if (llvm::isa<llvm::ConstantInt>(tile_.a.steps[0]))
      return behind(cursor.a[0], times(tile_.a.steps[0], row));
    return behind(cursor.a[static_cast<size_t>(row / kRowsOfPointer)],
                  row_offsets_[static_cast<size_t>(row % kRowsOfPointer)]);
  }

  Parts emit_step(const Cursor& cursor, size_t set, Parts sums) {
    const size_t groups = groups_.size();
    llvm::SmallVector<Parts, 4> b;
    for (size_t g = 0; g < groups; ++g) b.push_back(product_->prepare_b(c_, load_b(g, cursor.b)));
    llvm::Value** sum = sums.data() + set * sums_of_set();
    for (int64_t row = 0; row < rows_; ++row) {
      llvm::Value* word = load_a(row_pointer(cursor, row));
      Parts a;
      for (size_t g = 0; g < groups; ++g, ++sum) {
        if (g == 0 || groups_[g].width != groups_[g - 1].width)
          a = product_->prepare_a(c_, word, groups_[g].width);
        *sum = product_->add(c_, a, b[g], *sum);
      }
    }
    return sums;
  }

  bool has_whole_words() const { return terms_ == product_->depth(); }

  llvm::Value* load_a(llvm::Value* pointer) {
    llvm::Type* type = product_->word_a(ir_.getContext());
    const auto load = [&](llvm::Type* of, llvm::Value* at) {
      llvm::LoadInst* part = ir_.CreateAlignedLoad(of, at, alignment(tile_.a));
      tile_.a.annotate(part);
      return part;
    };
    if (has_whole_words()) return load(type, pointer);
    llvm::Value* word = nullptr;
    for (int64_t i = 0; i < terms_; ++i) {
      const int64_t bytes = i * dtype_size(tile_.a.dtype);
      llvm::Type* element = ir_.getIntNTy(static_cast<unsigned>(8 * dtype_size(tile_.a.dtype)));
      llvm::Value* part = ir_.CreateZExt(load(element, behind(pointer, integer(bytes))), type);
      part = ir_.CreateShl(part, static_cast<uint64_t>(8 * bytes));
      word = word == nullptr ? part : ir_.CreateOr(word, part);
    }
    return word;
  }

  // ---- B

  llvm::Align alignment(const TileOperand& operand) const {
    return llvm::Align(static_cast<uint64_t>(dtype_size(operand.dtype)));
  }

  // Of each group, of a block that begins with `column`: which lanes are live, and the same in sign
  // bits.
  void make_masks(llvm::Value* column) {
    masks_.clear();
    if (live_ == nullptr) return;
    llvm::Value* live = ir_.CreateTrunc(ir_.CreateSub(live_, column), ir_.getInt32Ty());
    for (const ColumnGroup& group : groups_) {
      llvm::Type* type = ir_.getInt32Ty();
      llvm::Value* left = ir_.CreateSub(live, ir_.getInt32(group.first));
      llvm::Value* numbers = lane_numbers(type, group.width);
      llvm::Value* is_live = ir_.CreateICmpSLT(numbers, splat(c_, group.width, left));
      llvm::Value* signs = nullptr;
      if (has_sign_mask(group)) {
        type = ir_.getIntNTy(static_cast<unsigned>(8 * word_bytes_));
        left = ir_.CreateSExtOrTrunc(left, type);
        signs = ir_.CreateSub(lane_numbers(type, group.width), splat(c_, group.width, left));
      }
      masks_.push_back({is_live, signs});
    }
  }

  bool has_sign_mask(const ColumnGroup& group) const {
    return c_.has.avx2 && !c_.has.avx512 && is_contiguous_ && word_bytes_ >= 4 &&
           group.width * word_bytes_ >= 16;
  }

  bool has_masked_load() const { return word_bytes_ >= 4 ? c_.has.avx512 : c_.has.avx512bw; }

  llvm::Value* load_b(size_t g, llvm::Value* pointer) {
    const int64_t low = tile_.b.low_columns;
    if (low == 0) return load_words(g, pointer);
    const bool is_low = first_column_ + groups_[g].first < low;
    if (!is_low) pointer = behind(pointer, times(tile_.b.steps[0], -low));
    llvm::Value* words = load_words(g, pointer);
    if (!is_low) words = ir_.CreateLShr(words, 4);
    const llvm::APInt mask =
        llvm::APInt::getSplat(static_cast<unsigned>(8 * word_bytes_), llvm::APInt(8, 0x0f));
    return ir_.CreateAnd(words, llvm::ConstantInt::get(words->getType(), mask));
  }

  llvm::Value* load_words(size_t g, llvm::Value* pointer) {
    const ColumnGroup& group = groups_[g];
    llvm::Type* word = product_->word_b(ir_.getContext());
    llvm::Type* type = with_lanes(word, group.width);
    llvm::Value* first = behind(pointer, times(tile_.b.steps[0], group.first));
    if (!has_whole_words()) return load_parts_of_words(group, first, type);
    if (!is_contiguous_ || (live_ != nullptr && group.width == 1))
      return load_lanes(g, pointer, word);
    llvm::Instruction* load = nullptr;
    if (live_ == nullptr)
      load = ir_.CreateAlignedLoad(type, first, alignment(tile_.b));
    else if (has_masked_load())
      load = ir_.CreateMaskedLoad(type, first, alignment(tile_.b), masks_[g].is_live,
                                  llvm::Constant::getNullValue(type));
    else if (masks_[g].signs != nullptr)
      return load_by_signs(g, first, type);
    else
      return load_lanes(g, pointer, word);
    tile_.b.annotate(load);
    return load;
  }

  // The elements that each word has, and zeros; nothing behind them is read.
  llvm::Value* load_parts_of_words(const ColumnGroup& group, llvm::Value* pointer,
                                   llvm::Type* words) {
    const auto depth = static_cast<unsigned>(product_->depth());
    llvm::SmallVector<llvm::Constant*, 64> is_there;
    for (unsigned i = 0; i < group.width * depth; ++i)
      is_there.push_back(ir_.getInt1(static_cast<int64_t>(i % depth) < terms_));
    llvm::Type* element = ir_.getIntNTy(static_cast<unsigned>(8 * dtype_size(tile_.b.dtype)));
    llvm::Type* type = llvm::FixedVectorType::get(element, group.width * depth);
    llvm::Instruction* load =
        ir_.CreateMaskedLoad(type, pointer, alignment(tile_.b), llvm::ConstantVector::get(is_there),
                             llvm::Constant::getNullValue(type));
    tile_.b.annotate(load);
    return ir_.CreateBitCast(load, words);
  }

  // AVX2's masked load. Not LLVM's, whose mask of bits would be widened at each use.
  llvm::Value* load_by_signs(size_t g, llvm::Value* pointer, llvm::Type* type) {
    const bool is_wide = groups_[g].width * word_bytes_ == 32;
    llvm::Intrinsic::ID id = llvm::Intrinsic::not_intrinsic;
    if (type->getScalarType()->isFloatTy())
      id =
          is_wide ? llvm::Intrinsic::x86_avx_maskload_ps_256 : llvm::Intrinsic::x86_avx_maskload_ps;
    else if (type->getScalarType()->isDoubleTy())
      id =
          is_wide ? llvm::Intrinsic::x86_avx_maskload_pd_256 : llvm::Intrinsic::x86_avx_maskload_pd;
    else if (word_bytes_ == 4)
      id =
          is_wide ? llvm::Intrinsic::x86_avx2_maskload_d_256 : llvm::Intrinsic::x86_avx2_maskload_d;
    else
      id =
          is_wide ? llvm::Intrinsic::x86_avx2_maskload_q_256 : llvm::Intrinsic::x86_avx2_maskload_q;
    llvm::CallInst* load = ir_.CreateIntrinsic(id, {}, {pointer, masks_[g].signs});
    tile_.b.annotate(load);
    return load;
  }

  // Words that do not lie side by side, or that no instruction loads under a mask. Lanes that are
  // not live read the block's first column.
  llvm::Value* load_lanes(size_t g, llvm::Value* pointer, llvm::Type* word) {
    const ColumnGroup& group = groups_[g];
    llvm::Type* type = with_lanes(word, group.width);
    if (c_.has.avx512 && word_bytes_ >= 4 && group.width > 1) {
      llvm::Value* numbers = ir_.CreateAdd(lane_numbers(ir_.getInt64Ty(), group.width),
                                           splat(c_, group.width, integer(group.first)));
      llvm::Value* offsets = ir_.CreateMul(numbers, splat(c_, group.width, tile_.b.steps[0]));
      llvm::Instruction* load = ir_.CreateMaskedGather(
          type, ir_.CreateGEP(ir_.getInt8Ty(), pointer, offsets), alignment(tile_.b),
          live_ == nullptr ? nullptr : masks_[g].is_live, llvm::Constant::getNullValue(type));
      tile_.b.annotate(load);
      return load;
    }
    llvm::Value* words = llvm::PoisonValue::get(type);
    for (unsigned lane = 0; lane < group.width; ++lane) {
      llvm::Value* at = behind(pointer, times(tile_.b.steps[0], group.first + lane));
      if (live_ != nullptr) {
        llvm::Value* is_live = masks_[g].is_live;
        if (group.width > 1) is_live = ir_.CreateExtractElement(is_live, lane);
        at = ir_.CreateSelect(is_live, at, pointer);
      }
      llvm::LoadInst* element = ir_.CreateAlignedLoad(word, at, alignment(tile_.b));
      tile_.b.annotate(element);
      words = group.width == 1 ? element : ir_.CreateInsertElement(words, element, lane);
    }
    return words;
  }

  // ---- C

  void store_sums(llvm::Value* row, llvm::Value* column, const Parts& sums) {
    llvm::Value* origin = behind(tile_.c.origin, ir_.CreateMul(tile_.c.steps[0], row));
    origin = behind(origin, ir_.CreateMul(tile_.c.steps[1], column));
    for (size_t i = 0; i < sums.size(); ++i) {
      const ColumnGroup& group = groups_[i % groups_.size()];
      const auto row_of = static_cast<int64_t>(i / groups_.size());
      llvm::Value* first = behind(origin, times(tile_.c.steps[0], row_of));
      first = behind(first, times(tile_.c.steps[1], group.first));
      if (group.width == 1 || is_constant(tile_.c.steps[1], dtype_size(tile_.c.dtype))) {
        store_sum(first, sums[i]);
        continue;
      }
      for (unsigned lane = 0; lane < group.width; ++lane)
        store_sum(behind(first, times(tile_.c.steps[1], lane)),
                  ir_.CreateExtractElement(sums[i], lane));
    }
  }

  void store_sum(llvm::Value* pointer, llvm::Value* sum) {
    if (tile_.adds) {
      llvm::LoadInst* old = ir_.CreateAlignedLoad(sum->getType(), pointer, alignment(tile_.c));
      tile_.c.annotate(old);
      sum = plus(old, sum);
    }
    tile_.c.annotate(ir_.CreateAlignedStore(sum, pointer, alignment(tile_.c)));
  }

  struct Mask {
    llvm::Value* is_live;  // i1 per lane
    llvm::Value* signs;    // null unless the machine masks by them
  };

  const OpContext& c_;
  llvm::IRBuilder<>& ir_;
  const Contraction& tile_;
  const std::unique_ptr<Product> product_;
  Parts depths_;       // but for the axis that is a word
  int64_t terms_ = 1;  // of a word
  RegisterNeeds needs_;
  int64_t word_bytes_;  // of B
  bool is_contiguous_;  // B's words
  int64_t lanes_;       // of a vector of sums
  llvm::Value* live_ = nullptr;
  // Of the block that is emitted.
  std::vector<ColumnGroup> groups_;
  std::vector<Mask> masks_;
  Parts row_offsets_;
  int64_t first_column_ = 0;
  int64_t rows_ = 0;
  int64_t sets_ = 1;
};

// All columns are live.
void emit_whole(const OpContext& c, int64_t vector_bits, const Contraction& contraction) {
  const auto emit = [&](const Contraction& any) {
    TileEmitter(c, vector_bits, any).emit_tile(nullptr);
  };
  if (!emit_tile_registers(c, contraction, emit)) emit(contraction);
}

}  // namespace

void emit_lines_ahead(llvm::IRBuilder<>& ir, const Contraction& tile, llvm::Value* b,
                      int64_t bytes) {
  llvm::Type* byte = ir.getInt8Ty();
  llvm::Value* first = nullptr;
  if (tile.ahead_shift == 0) {
    // A displacement of B's pointer, the same for all steps.
    first = ir.CreateGEP(byte, b, ir.CreatePtrDiff(byte, tile.ahead, tile.b.origin));
  } else {
    llvm::Value* place = ir.CreatePtrDiff(byte, b, tile.b.origin);
    place = ir.CreateLShr(place, static_cast<uint64_t>(tile.ahead_shift));
    first = ir.CreateGEP(byte, tile.ahead, place);
  }
  const int64_t lines = ((bytes >> tile.ahead_shift) + kLineBytes - 1) / kLineBytes;
  const uint32_t locality = tile.is_ahead_soon ? kIntoFirstLevel : kIntoSecondLevel;
  for (int64_t line = 0; line < lines; ++line) {
    llvm::Value* pointer =
        ir.CreateGEP(byte, first, ir.getInt64(static_cast<uint64_t>(line * kLineBytes)));
    ir.CreateIntrinsic(llvm::Intrinsic::prefetch, {pointer->getType()},
                       {pointer, ir.getInt32(0), ir.getInt32(locality), ir.getInt32(1)});
  }
}

void emit_contraction(const OpContext& c, int64_t vector_bits, Contraction contraction) {
  llvm::Value* live = contraction.live_columns;
  if (live != nullptr && llvm::isa<llvm::ConstantInt>(live)) {
    contraction.columns = llvm::cast<llvm::ConstantInt>(live)->getSExtValue();
    live = nullptr;
  }
  if (live == nullptr) return emit_whole(c, vector_bits, contraction);
  llvm::IRBuilder<>& ir = c.ir;
  llvm::Function* function = ir.GetInsertBlock()->getParent();
  llvm::BasicBlock* whole = llvm::BasicBlock::Create(ir.getContext(), "whole", function);
  llvm::BasicBlock* partial = llvm::BasicBlock::Create(ir.getContext(), "partial", function);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(ir.getContext(), "after", function);
  llvm::Value* all = ir.getInt64(static_cast<uint64_t>(contraction.columns));
  ir.CreateCondBr(ir.CreateICmpSGE(live, all), whole, partial);
  ir.SetInsertPoint(whole);
  emit_whole(c, vector_bits, contraction);
  ir.CreateBr(after);
  ir.SetInsertPoint(partial);
  TileEmitter(c, vector_bits, contraction).emit_tile(live);
  ir.CreateBr(after);
  ir.SetInsertPoint(after);
}

}  // namespace mlcc::codegen::cpu
