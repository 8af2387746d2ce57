#include "graph/inference.h"

#include <algorithm>

#include "graph/attributes.h"
#include "graph/combine.h"
#include "graph/contraction.h"
#include "graph/text.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// The draft under check, with the ways to look into it and to complain about it.
class Checker {
 public:
  explicit Checker(const NodeDraft& draft) : draft_(draft) {}

  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) fail(parts...);
  }
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(detail::join(op_info(draft_.op).text, " %", draft_.name, ": ", parts...));
  }

  Op op() const { return draft_.op; }
  const TensorType& declared() const { return draft_.declared; }
  size_t num_operands() const { return draft_.operands.size(); }
  const TensorType& type(size_t i) const { return draft_.operands[i]->type(); }
  const Shape& shape(size_t i) const { return type(i).shape; }
  int64_t rank(size_t i) const { return static_cast<int64_t>(shape(i).size()); }

  template <typename T>
  const T& attr(std::string_view name) const {
    for (const auto& [key, value] : draft_.attrs)
      if (key == name) return std::get<T>(value);
    MLCC_UNREACHABLE(op_info(op()).text, " has no attribute '", name, "'");
  }

  void check_operands() const {
    for (size_t i = 0; i < num_operands(); ++i) {
      require(draft_.operands[i] != nullptr, "operand ", i, " is null");
      require(draft_.operands[i]->kind() == ValueKind::kTensor, "operand ", i,
              " is a size, expected a tensor");
      require(!is_foreign(type(i).dtype), "operand ", i, " is ", dtype_name(type(i).dtype),
              ", which only extern calls take");
    }
  }

  void check_num_operands(size_t expected) const {
    require(num_operands() == expected, "found ", num_operands(), " operands, expected ", expected);
  }

  void check_attrs() const {
    const auto specs = attr_specs(op());
    for (const auto& [name, value] : draft_.attrs) {
      const auto spec = std::find_if(specs.begin(), specs.end(),
                                     [&](const AttrSpec& s) { return s.name == name; });
      require(spec != specs.end(), "unknown attribute '", name, "'");
      require(fits(value, spec->kind, draft_.declared.dtype), "attribute '", name,
              "' is of the wrong type");
    }
    for (const AttrSpec& spec : specs)
      require(std::any_of(draft_.attrs.begin(), draft_.attrs.end(),
                          [&](const auto& attr) { return attr.first == spec.name; }),
              "attribute '", spec.name, "' is missing");
    require(std::is_sorted(draft_.attrs.begin(), draft_.attrs.end(),
                           [](const auto& a, const auto& b) { return a.first <= b.first; }),
            "attributes are not in the order of their names");
  }

  void check_dim(int64_t dim, int64_t rank) const {
    require(dim >= 0 && dim < rank, "dim ", dim, " is out of range for ", rank, " dimensions");
  }

  void check_dims(const std::vector<int64_t>& dims, int64_t rank) const {
    std::vector<bool> seen(static_cast<size_t>(rank));
    for (const int64_t dim : dims) {
      check_dim(dim, rank);
      require(!seen[static_cast<size_t>(dim)], "dim ", dim, " stands twice in dims");
      seen[static_cast<size_t>(dim)] = true;
    }
  }

  void check_same_dtype(size_t first) const {
    for (size_t i = first + 1; i < num_operands(); ++i)
      require(type(i).dtype == type(first).dtype, "operand ", i, " is ", dtype_name(type(i).dtype),
              ", operand ", first, " is ", dtype_name(type(first).dtype));
  }

 private:
  const NodeDraft& draft_;
};

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (const SymExpr& size : shape) text += (text.size() > 1 ? ", " : "") + size.str();
  return text + "]";
}

// ---- pointwise

Shape broadcast(const Checker& check) {
  size_t rank = 0;
  for (size_t i = 0; i < check.num_operands(); ++i) rank = std::max(rank, check.shape(i).size());
  Shape result(rank, SymExpr(1));
  for (size_t i = 0; i < check.num_operands(); ++i) {
    const Shape& shape = check.shape(i);
    for (size_t d = 0; d < shape.size(); ++d) {
      SymExpr& size = result[rank - shape.size() + d];
      if (size.equals_constant(1)) size = shape[d];
      if (size == shape[d] || shape[d].equals_constant(1)) continue;
      check.fail("shapes do not broadcast: operand ", i, " has ", text_of(shape), ", size ",
                 shape[d].str(), " of dimension ", d, " meets ", size.str());
    }
  }
  return result;
}

DType pointwise_dtype(const Checker& check) {
  const OpInfo& info = op_info(check.op());
  const bool is_select = info.rule == DTypeRule::kSelect;
  if (is_select)
    check.require(check.type(0).dtype == DType::kBool, "operand 0 is ",
                  dtype_name(check.type(0).dtype), ", expected bool");
  const size_t first = is_select ? 1 : 0;
  check.check_same_dtype(first);
  const DType dtype = check.type(first).dtype;
  check.require(holds(info.domain, dtype), "operands are ", dtype_name(dtype), ", expected ",
                dtype_domain_name(info.domain));
  switch (info.rule) {
  case DTypeRule::kDefault:
  case DTypeRule::kIntToFloat:
  case DTypeRule::kSame:
  case DTypeRule::kSelect: return dtype;
  case DTypeRule::kCompare:
  case DTypeRule::kLogical:
  case DTypeRule::kTest: return DType::kBool;
  }
  MLCC_UNREACHABLE("dtype rule ", static_cast<int>(info.rule));
}

TensorType infer_pointwise(const Checker& check) {
  if (check.op() == Op::kCast) {
    check.check_num_operands(1);
    return {check.declared().dtype, check.shape(0), {}};
  }
  if (check.op() == Op::kPhilox) {
    check.check_num_operands(2);
    for (size_t i = 0; i < 2; ++i)
      check.require(check.type(i).dtype == DType::kI64, "operand ", i, " is ",
                    dtype_name(check.type(i).dtype), ", expected i64");
    return {DType::kI32, broadcast(check), {}};
  }
  check.check_num_operands(static_cast<size_t>(op_info(check.op()).arity));
  const DType dtype = pointwise_dtype(check);
  return {dtype, broadcast(check), {}};
}

// ---- index maps

TensorType infer_permute(const Checker& check) {
  const auto& dims = check.attr<std::vector<int64_t>>("dims");
  check.check_dims(dims, check.rank(0));
  check.require(static_cast<int64_t>(dims.size()) == check.rank(0), "found ", dims.size(),
                " dims, expected ", check.rank(0));
  TensorType result{check.type(0).dtype, {}, {}};
  for (const int64_t dim : dims) result.shape.push_back(check.shape(0)[static_cast<size_t>(dim)]);
  return result;
}

TensorType infer_expand(const Checker& check) {
  const Shape& from = check.shape(0);
  const Shape& to = check.declared().shape;
  check.require(from.size() <= to.size(), "operand ", text_of(from), " has more dimensions than ",
                text_of(to));
  const size_t lead = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d)
    check.require(from[d] == to[lead + d] || from[d].equals_constant(1), "operand ", text_of(from),
                  " does not expand to ", text_of(to));
  return {check.type(0).dtype, to, {}};
}

TensorType infer_reshape(const Checker& check) {
  const Shape& to = check.declared().shape;
  check.require(!have_different_products(check.shape(0), to), "operand ", text_of(check.shape(0)),
                " has ", product(check.shape(0)).str(), " elements, ", text_of(to), " has ",
                product(to).str());
  return {check.type(0).dtype, to, {}};
}

TensorType infer_slice(const Checker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  const int64_t step = check.attr<int64_t>("step");
  const SymExpr& start = check.attr<SymExpr>("start");
  check.check_dim(dim, check.rank(0));
  check.require(step >= 1, "step is ", step, ", expected at least 1");
  check.require(check.declared().shape.size() == check.shape(0).size(), "result ",
                text_of(check.declared().shape), " and operand ", text_of(check.shape(0)),
                " differ in the number of dimensions");
  TensorType result{check.type(0).dtype, check.shape(0), {}};
  const SymExpr size = result.shape[static_cast<size_t>(dim)];
  const SymExpr& length = check.declared().shape[static_cast<size_t>(dim)];
  const auto start_value = start.as_constant();
  const auto length_value = length.as_constant();
  check.require(!start_value || *start_value >= 0, "start is ", start.str(),
                ", expected at least 0");
  check.require(!length_value || *length_value >= 0, "length is ", length.str(),
                ", expected at least 0");
  const auto room = (size - 1 - start - (length - 1) * step).as_constant();
  check.require(!room || *room >= 0 || length.equals_constant(0), "elements ", start.str(), " to ",
                (start + (length - 1) * step).str(), " are out of range for size ", size.str());
  result.shape[static_cast<size_t>(dim)] = length;
  return result;
}

TensorType infer_flip(const Checker& check) {
  check.check_dims(check.attr<std::vector<int64_t>>("dims"), check.rank(0));
  return {check.type(0).dtype, check.shape(0), {}};
}

// The operand's type where nothing but dimension `dim` may have another extent: the declared one.
TensorType infer_resized(const Checker& check, int64_t dim) {
  check.check_dim(dim, check.rank(0));
  TensorType result{check.type(0).dtype, check.shape(0), {}};
  const Shape& declared = check.declared().shape;
  check.require(declared.size() >= result.shape.size(), "result ", text_of(declared),
                " has fewer dimensions than operand ", text_of(result.shape));
  result.shape[static_cast<size_t>(dim)] = declared[static_cast<size_t>(dim)];
  return result;
}

// As infer_resized, and a new last dimension as declared for the elements of windows along `dim`.
TensorType infer_windows(const Checker& check, int64_t dim) {
  TensorType result = infer_resized(check, dim);
  const Shape& declared = check.declared().shape;
  check.require(declared.size() == result.shape.size() + 1, "result ", text_of(declared),
                " has no dimension for windows of operand ", text_of(check.shape(0)));
  result.shape.push_back(declared.back());
  return result;
}

TensorType infer_window(const Checker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  const int64_t step = check.attr<int64_t>("step");
  const int64_t dilation = check.attr<int64_t>("dilation");
  TensorType result = infer_windows(check, dim);
  check.require(step >= 1, "step is ", step, ", expected at least 1");
  check.require(dilation >= 1, "dilation is ", dilation, ", expected at least 1");
  const SymExpr &count = result.shape[static_cast<size_t>(dim)], &size = result.shape.back();
  const SymExpr last = (count - 1) * step + (size - 1) * dilation;
  const SymExpr& extent = check.shape(0)[static_cast<size_t>(dim)];
  const auto room = (extent - 1 - last).as_constant();
  check.require(!room || *room >= 0 || count.equals_constant(0), "element ", last.str(),
                " is out of range for size ", extent.str());
  return result;
}

TensorType infer_spread(const Checker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  TensorType result = infer_windows(check, dim);
  const SymExpr& count = result.shape[static_cast<size_t>(dim)];
  check.require(!count.equals_constant(0), "found no windows, expected at least 1");
  return result;
}

TensorType infer_extend(const Checker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  const int64_t before = check.attr<int64_t>("before");
  const std::string& mode = check.attr<std::string>("mode");
  check.require(mode == "reflect" || mode == "replicate" || mode == "circular",
                "mode is unknown: ", mode);
  TensorType result = infer_resized(check, dim);
  const SymExpr& extent = check.shape(0)[static_cast<size_t>(dim)];
  const auto room = extent.as_constant();
  const auto behind = (result.shape[static_cast<size_t>(dim)] - before - extent).as_constant();
  const int64_t most = std::max(before, behind.value_or(0));
  check.require(!room || *room > (mode == "reflect" ? most : 0), "operand has ", extent.str(),
                " elements, ", most, " are wanted beyond its ends");
  check.require(!room || mode != "circular" || *room >= most, "operand has ", extent.str(),
                " elements, ", most, " are wanted beyond its ends");
  return result;
}

TensorType infer_cat(const Checker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  check.require(check.num_operands() > 0, "found no operands, expected at least one");
  check.check_same_dtype(0);
  check.check_dim(dim, check.rank(0));
  TensorType result{check.type(0).dtype, check.shape(0), {}};
  SymExpr& length = result.shape[static_cast<size_t>(dim)];
  for (size_t i = 1; i < check.num_operands(); ++i) {
    const Shape& shape = check.shape(i);
    bool fits = shape.size() == result.shape.size();
    for (size_t d = 0; fits && d < shape.size(); ++d)
      fits = static_cast<int64_t>(d) == dim || shape[d] == result.shape[d];
    check.require(fits, "operand ", i, " has ", text_of(shape), ", operand 0 has ",
                  text_of(check.shape(0)), ": they may differ in dim ", dim, " only");
    length = length + shape[static_cast<size_t>(dim)];
  }
  return result;
}

TensorType infer_index_map(const Checker& check) {
  if (check.op() == Op::kCat) return infer_cat(check);
  check.check_num_operands(1);
  if (check.op() == Op::kPermute) return infer_permute(check);
  if (check.op() == Op::kExpand) return infer_expand(check);
  if (check.op() == Op::kReshape) return infer_reshape(check);
  if (check.op() == Op::kSlice) return infer_slice(check);
  if (check.op() == Op::kWindow) return infer_window(check);
  if (check.op() == Op::kSpread) return infer_spread(check);
  if (check.op() == Op::kExtend) return infer_extend(check);
  if (check.op() == Op::kPad) return infer_resized(check, check.attr<int64_t>("dim"));
  MLCC_CHECK(check.op() == Op::kFlip, "index map ", op_info(check.op()).text, " without inference");
  return infer_flip(check);
}

// ---- reductions

DType reduced_dtype(const Checker& check) {
  const DType dtype = check.type(0).dtype;
  if (check.op() == Op::kAny || check.op() == Op::kAll) {
    check.require(dtype == DType::kBool, "operand is ", dtype_name(dtype), ", expected bool");
    return DType::kBool;
  }
  check.require(dtype != DType::kBool, "operand is bool, expected a number");
  return check.op() == Op::kArgMax || check.op() == Op::kArgMin ? DType::kI64 : dtype;
}

TensorType infer_reduction(const Checker& check) {
  check.check_num_operands(1);
  const auto& dims = check.attr<std::vector<int64_t>>("dims");
  check.check_dims(dims, check.rank(0));
  check.require(std::is_sorted(dims.begin(), dims.end()), "dims are not in ascending order");
  const bool is_index = check.op() == Op::kArgMax || check.op() == Op::kArgMin;
  check.require(!is_index || dims.size() == 1, "found ", dims.size(), " dims, expected one");
  TensorType result{reduced_dtype(check), {}, {}};
  for (int64_t d = 0; d < check.rank(0); ++d) {
    if (!std::binary_search(dims.begin(), dims.end(), d))
      result.shape.push_back(check.shape(0)[static_cast<size_t>(d)]);
    else if (check.attr<bool>("keepdim"))
      result.shape.push_back(1);
  }
  return result;
}

// ---- creation, gather

bool is_in_range(DType dtype, int64_t value) {
  if (dtype == DType::kBool) return value == 0 || value == 1;
  const int64_t bits = 8 * dtype_size(dtype);
  if (bits == 64) return true;
  if (dtype == DType::kU8) return value >= 0 && value <= 255;
  return value >= -(int64_t{1} << (bits - 1)) && value < int64_t{1} << (bits - 1);
}

TensorType infer_creation(const Checker& check) {
  check.check_num_operands(0);
  if (check.op() == Op::kSizeValue) return {DType::kI64, {}, {}};
  const DType dtype = check.declared().dtype;
  if (check.op() == Op::kFull) {
    if (!is_float(dtype)) {
      const int64_t value = check.attr<int64_t>("value");
      check.require(is_in_range(dtype, value), "value ", value, " does not fit ",
                    dtype_name(dtype));
    }
    return {dtype, check.declared().shape, {}};
  }
  MLCC_CHECK(check.op() == Op::kIota, "creation ", op_info(check.op()).text, " without inference");
  check.require(is_integer(dtype), "result is ", dtype_name(dtype), ", expected an integer dtype");
  check.require(check.declared().shape.size() == 1, "result ", text_of(check.declared().shape),
                " is not one-dimensional");
  return {dtype, check.declared().shape, {}};
}

// Operands 1 to `count` index the dimensions of operand 0 from `dim` on.
void check_indices(const Checker& check, size_t count) {
  check.require(count > 0, "found no index");
  const int64_t dim = check.attr<int64_t>("dim");
  check.check_dim(dim, check.rank(0));
  check.require(dim + static_cast<int64_t>(count) <= check.rank(0), "found ", count,
                " indices from dim ", dim, " on, operand 0 has ", check.rank(0), " dimensions");
  for (size_t i = 1; i <= count; ++i) {
    check.require(is_integer(check.type(i).dtype), "index is ", dtype_name(check.type(i).dtype),
                  ", expected an integer dtype");
    check.require(check.shape(i) == check.shape(1), "index ", i - 1, " is ",
                  text_of(check.shape(i)), ", index 0 is ", text_of(check.shape(1)));
  }
}

// The shape of operand 0 with the index's in place of `count` dimensions from `dim` on.
Shape indexed_shape(const Checker& check, size_t count) {
  const Shape& x = check.shape(0);
  const auto begin = x.begin() + check.attr<int64_t>("dim");
  Shape result(x.begin(), begin);
  result.insert(result.end(), check.shape(1).begin(), check.shape(1).end());
  result.insert(result.end(), begin + static_cast<int64_t>(count), x.end());
  return result;
}

TensorType infer_gather(const Checker& check) {
  check.require(check.num_operands() >= 2, "found ", check.num_operands(),
                " operands, expected at least 2");
  const bool is_take = check.op() == Op::kTake;
  if (!is_take) check.check_num_operands(2);
  const size_t count = check.num_operands() - 1;
  check_indices(check, count);
  if (is_take) return {check.type(0).dtype, indexed_shape(check, count), {}};
  const int64_t dim = check.attr<int64_t>("dim");
  const Shape& x = check.shape(0);
  const Shape& index = check.shape(1);
  TensorType result{check.type(0).dtype, {}, {}};
  check.require(x.size() == index.size(), "operand ", text_of(x), " and index ", text_of(index),
                " differ in the number of dimensions");
  for (size_t d = 0; d < x.size(); ++d) {
    const auto room = (x[d] - index[d]).as_constant();
    check.require(static_cast<int64_t>(d) == dim || !room || *room >= 0, "index ", text_of(index),
                  " is larger than operand ", text_of(x), " in dimension ", d);
  }
  result.shape = index;
  return result;
}

// ---- updates, scans

Combine combine_of(const Checker& check) {
  const std::string& text = check.attr<std::string>("combine");
  const std::optional<Combine> combine = parse_combine(text);
  check.require(combine.has_value(), "combine is unknown: ", text);
  return *combine;
}

TensorType infer_update(const Checker& check) {
  check.require(check.num_operands() >= 3, "found ", check.num_operands(),
                " operands, expected at least 3");
  if (check.op() == Op::kScatter) check.check_num_operands(3);
  const size_t source = check.num_operands() - 1;
  check_indices(check, source - 1);
  const int64_t dim = check.attr<int64_t>("dim");
  const Shape &base = check.shape(0), &index = check.shape(1), &src = check.shape(source);
  const DType dtype = check.type(0).dtype;
  check.require(check.type(source).dtype == dtype, "operand ", source, " is ",
                dtype_name(check.type(source).dtype), ", operand 0 is ", dtype_name(dtype));
  check.require(can_update(combine_of(check), dtype), "combine ",
                check.attr<std::string>("combine"), " is not for ", dtype_name(dtype));
  if (check.op() == Op::kIndexPut) {
    const Shape expected = indexed_shape(check, source - 1);
    check.require(src == expected, "operand ", source, " is ", text_of(src), ", expected ",
                  text_of(expected));
    return {dtype, base, {}};
  }
  check.require(src == index, "operand 2 is ", text_of(src), ", index is ", text_of(index));
  check.require(base.size() == index.size(), "operand ", text_of(base), " and index ",
                text_of(index), " differ in the number of dimensions");
  for (size_t d = 0; d < base.size(); ++d) {
    const auto room = (base[d] - index[d]).as_constant();
    check.require(static_cast<int64_t>(d) == dim || !room || *room >= 0, "index ", text_of(index),
                  " is larger than operand ", text_of(base), " in dimension ", d);
  }
  return {dtype, base, {}};
}

TensorType infer_scan(const Checker& check) {
  check.check_num_operands(1);
  check.check_dim(check.attr<int64_t>("dim"), check.rank(0));
  const DType dtype = check.type(0).dtype;
  const Combine combine = combine_of(check);
  check.require(can_scan(combine, dtype), "combine ", check.attr<std::string>("combine"),
                " is not for ", dtype_name(dtype));
  const bool is_place = combine == Combine::kArgMax || combine == Combine::kArgMin;
  return {is_place ? DType::kI64 : dtype, check.shape(0), {}};
}

// ---- contractions

// An index over the axes: an axis alone runs over the whole dimension, numbers lie inside.
void check_index(const Checker& check, size_t operand, const Shape& index, const Shape& extents) {
  const Shape& shape = check.shape(operand);
  check.require(index.size() == shape.size(), "the index of operand ", operand, " has ",
                index.size(), " places, expected ", shape.size());
  Assumptions axes;
  for (size_t d = 0; d < extents.size(); ++d) axes.set_index(axis_name(d), extents[d]);
  for (size_t d = 0; d < index.size(); ++d) {
    for (const std::string& name : index[d].symbols())
      check.require(!is_axis_name(name) || std::stoul(name.substr(1)) < extents.size(),
                    "the index of operand ", operand, " names axis ", name, " of ", extents.size());
    const auto size = shape[d].as_constant();
    const auto axis = index[d].as_symbol();
    if (axis && is_axis_name(*axis)) {
      const SymExpr& extent = extents[std::stoul(axis->substr(1))];
      check.require(extent == shape[d], "operand ", operand, " has size ", shape[d].str(),
                    " in dimension ", d, ", axis ", *axis, " has ", extent.str());
    } else if (size) {
      const SymRange range = axes.range(index[d]);
      check.require(range.low >= 0 && range.high < *size, "operand ", operand, " has size ", *size,
                    " in dimension ", d, ", index ", index[d].str(), " lies in [", range.low, ", ",
                    range.high, "]");
    }
  }
}

// What the 3x3 filters of a convolution are transformed to, see passes/winograd.h.
void check_transformed(const Checker& check) {
  static constexpr int64_t kProducts = 16;
  const TensorType& type = check.type(2);
  const Shape& shape = check.declared().shape;
  const auto& reduced = check.attr<Shape>("reduced");
  const bool is_convolution =
      shape.size() == 4 &&
      dims_of_3x3_filters(check.attr<Shape>("lhs"), check.attr<Shape>("rhs"), reduced);
  check.require(is_convolution && type.dtype == DType::kF32 && check.type(0).dtype == type.dtype &&
                    check.type(1).dtype == type.dtype,
                "transformed filters, but no 3x3 convolution of f32");
  const bool is_fit =
      type.shape.size() == 4 && type.shape[1].equals_constant(kProducts) &&
      type.shape[2] == reduced[2] && type.shape[3].is_constant() &&
      type.shape[0] == SymExpr::floordiv(shape[3] + (type.shape[3] - 1), type.shape[3]);
  check.require(is_fit,
                "transformed filters do not have the shape (panels, 16, channels, columns)");
}

TensorType infer_contraction(const Checker& check) {
  if (check.num_operands() == 3)
    check_transformed(check);
  else
    check.check_num_operands(2);
  const auto accumulator = accumulator_dtype(check.type(0).dtype, check.type(1).dtype);
  check.require(accumulator.has_value(), "no products of ", dtype_name(check.type(0).dtype),
                " and ", dtype_name(check.type(1).dtype));
  const DType dtype = check.declared().dtype;
  const bool is_operands = check.type(0).dtype == dtype && check.type(1).dtype == dtype;
  check.require(dtype == *accumulator || is_operands, "result is ", dtype_name(dtype),
                ", expected ", dtype_name(*accumulator), " or the operands' dtype");
  Shape extents = check.declared().shape;
  for (const SymExpr& extent : check.attr<Shape>("reduced")) extents.push_back(extent);
  check_index(check, 0, check.attr<Shape>("lhs"), extents);
  check_index(check, 1, check.attr<Shape>("rhs"), extents);
  return {dtype, check.declared().shape, {}};
}

// ---- attention

// The bounds of the reduced axis are over the others.
void check_range(const Checker& check, size_t rank) {
  const auto& range = check.attr<Shape>("range");
  check.require(range.size() == 2, "the range has ", range.size(), " bounds, expected 2");
  for (const SymExpr& bound : range)
    for (const std::string& name : bound.symbols())
      check.require(!is_axis_name(name) || std::stoul(name.substr(1)) < rank,
                    "the range names axis ", name, " of ", rank);
}

TensorType infer_attention_gradients(const Checker& check) {
  check.check_num_operands(5);
  const TensorType& weights = check.type(0);
  const size_t rank = weights.shape.size();
  check.require(weights.dtype == DType::kF32 || weights.dtype == DType::kF64, "weights are ",
                dtype_name(weights.dtype), ", expected f32 or f64");
  check.require(rank >= 2, "weights have ", rank, " dimensions, expected 2 at least");
  check_range(check, rank - 1);
  const Shape outer(weights.shape.begin(), weights.shape.end() - 2);
  for (size_t i = 0; i < check.num_operands(); ++i) {
    const TensorType& type = check.type(i);
    check.require(type.dtype == weights.dtype, "operand ", i, " is ", dtype_name(type.dtype),
                  ", expected ", dtype_name(weights.dtype));
    Shape wanted = weights.shape;
    if (i >= 2) {
      check.require(type.shape.size() == rank, "operand ", i, " has ", type.shape.size(),
                    " dimensions, expected ", rank);
      if (i == 4) wanted[rank - 2] = wanted[rank - 1];
      wanted[rank - 1] = check.type(i == 4 ? 3 : i).shape[rank - 1];
    }
    check.require(type.shape == wanted, "the shape of operand ", i, " is not as expected");
  }
  const SymExpr keys = product(outer) * weights.shape[rank - 1];
  const SymExpr elements = product(check.type(3).shape) + product(check.type(4).shape) +
                           keys * check.type(2).shape[rank - 1];
  return {weights.dtype, {elements}, {}};
}

TensorType infer_attention(const Checker& check) {
  if (check.op() == Op::kAttendGradients) return infer_attention_gradients(check);
  const bool has_values = check.op() == Op::kAttend;
  const bool has_factors = has_values && check.num_operands() == 3;
  check.check_num_operands(has_factors ? 3 : has_values ? 2 : 1);
  const DType accumulator = check.type(0).dtype, dtype = check.declared().dtype;
  check.require(accumulator == DType::kF32 || accumulator == DType::kF64, "scores are ",
                dtype_name(accumulator), ", expected f32 or f64");
  const auto& reduced = check.attr<Shape>("reduced");
  check.require(reduced.size() == 1, reduced.size(), " axes are reduced, expected 1");
  Shape extents = check.declared().shape;
  check_range(check, extents.size());
  extents.push_back(reduced[0]);
  check_index(check, 0, check.attr<Shape>("lhs"), extents);
  if (!has_values) {
    check.require(dtype == accumulator, "result is ", dtype_name(dtype), ", expected ",
                  dtype_name(accumulator));
    return {dtype, check.declared().shape, {}};
  }
  const DType values = check.type(1).dtype;
  check.require(accumulator_dtype(accumulator, values) == accumulator, "no products of ",
                dtype_name(accumulator), " and ", dtype_name(values));
  check.require(dtype == accumulator || dtype == values, "result is ", dtype_name(dtype),
                ", expected ", dtype_name(accumulator), " or ", dtype_name(values));
  check_index(check, 1, check.attr<Shape>("rhs"), extents);
  if (has_factors) {
    check.require(check.type(2).dtype == accumulator, "factors are ",
                  dtype_name(check.type(2).dtype), ", expected ", dtype_name(accumulator));
    check_index(check, 2, check.attr<Shape>("lhs"), extents);
  }
  return {dtype, check.declared().shape, {}};
}

// ---- devices

// The operands' device. Tensors of the CPU without dimensions may stand beside another one's.
Device infer_device(const Checker& check) {
  if (check.num_operands() == 0) return check.declared().device;
  const auto device_of = [&](size_t i) { return check.type(i).device; };
  Device device = device_of(0);
  for (size_t i = 1; i < check.num_operands() && device.kind == DeviceKind::kCpu; ++i)
    device = device_of(i);
  for (size_t i = 0; i < check.num_operands(); ++i) {
    const bool is_number = device_of(i).kind == DeviceKind::kCpu && check.rank(i) == 0;
    check.require(device_of(i) == device || is_number,
                  "expected all tensors to be on the same device, but found at least two devices, ",
                  device.str(), " and ", device_of(i).str(), "!");
  }
  return device;
}

TensorType infer_on_any_device(const Checker& check) {
  switch (op_info(check.op()).op_class) {
  case OpClass::kPointwise: return infer_pointwise(check);
  case OpClass::kIndexMap: return infer_index_map(check);
  case OpClass::kReduction: return infer_reduction(check);
  case OpClass::kCreation: return infer_creation(check);
  case OpClass::kGather: return infer_gather(check);
  case OpClass::kUpdate: return infer_update(check);
  case OpClass::kScan: return infer_scan(check);
  case OpClass::kContraction: return infer_contraction(check);
  case OpClass::kAttention: return infer_attention(check);
  case OpClass::kExtern: break;
  }
  MLCC_UNREACHABLE("the result of ", op_info(check.op()).text, " cannot be inferred");
}

}  // namespace

TensorType infer(const NodeDraft& draft) {
  const Checker check(draft);
  MLCC_CHECK(draft.op != Op::kSizeResult, "size_result has no tensor type");
  check.check_operands();
  check.check_attrs();
  TensorType type = infer_on_any_device(check);
  check.require(!is_foreign(type.dtype), "result is ", dtype_name(type.dtype),
                ", which only extern calls make");
  type.device = infer_device(check);
  return type;
}

bool is_same_type(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.device == b.device;
}

std::vector<SymExpr> dense_strides(const std::vector<SymExpr>& shape) {
  std::vector<SymExpr> strides(shape.size());
  SymExpr stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride = stride * shape[d];
  }
  return strides;
}

TensorType normalize(TensorType type) {
  if (type.strides.empty()) return type;
  MLCC_USER_CHECK(type.strides.size() == type.shape.size(), "tensor type: found ",
                  type.strides.size(), " strides for ", type.shape.size(), " dimensions");
  if (type.strides == dense_strides(type.shape) || type.strides == contiguous_strides(type.shape))
    type.strides.clear();
  return type;
}

bool have_different_products(const std::vector<SymExpr>& a, const std::vector<SymExpr>& b) {
  const SymExpr left = product(a);
  const SymExpr right = product(b);
  if (left == right) return false;
  const auto difference = (left - right).as_constant();
  if (difference) return *difference != 0;
  // With floordiv, mod, min or max inside, equality may hold by what is known of the symbols
  // elsewhere.
  using Plain = SymExpr::Visitor<bool>;
  const auto both = [](bool x, bool y) { return x && y; };
  const auto never = [](bool, bool) { return false; };
  const Plain is_plain{[](int64_t) { return true; },
                       [](std::string_view) { return true; },
                       both,
                       both,
                       never,
                       never,
                       never,
                       never};
  return left.visit(is_plain) && right.visit(is_plain);
}

}  // namespace mlcc::graph
