#include "loop/run_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "loop/mutator.h"
#include "loop/scalar_value.h"
#include "loop/text.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/lexer.h"

namespace mlcc::loop {
namespace {

constexpr int64_t kDefaultSize = 37;
constexpr std::byte kPattern{0xA5};

// ---- Directives ---------------------------------------------------------------------------------

// The text with everything but the directive's own blanked out, so that positions stay those of the
// file.
std::string blank_before(std::string_view text, size_t begin, size_t end) {
  std::string blank(text.substr(0, end));
  for (size_t i = 0; i < begin; ++i)
    if (blank[i] != '\n') blank[i] = ' ';
  return blank;
}

double parse_number(Lexer& lexer) {
  if (lexer.accept("true")) return 1;
  if (lexer.accept("false")) return 0;
  return lexer.expect_float("a number");
}

std::vector<double> parse_list(Lexer& lexer) {
  std::vector<double> values;
  lexer.expect("[");
  while (!lexer.is("]")) {
    if (!values.empty()) lexer.expect(",");
    values.push_back(parse_number(lexer));
  }
  lexer.expect("]");
  return values;
}

// The text up to the next ',' or ')' outside of parentheses.
std::string parse_bound(Lexer& lexer, std::string_view text) {
  const size_t begin = lexer.peek().begin;
  size_t end = begin;
  for (int depth = 0; depth > 0 || !(lexer.is(",") || lexer.is(")"));) {
    if (lexer.at_end()) lexer.fail("expected ')'");
    depth += lexer.is("(") ? 1 : lexer.is(")") ? -1 : 0;
    end = lexer.next().end;
  }
  return std::string(text.substr(begin, end - begin));
}

RunDirectives::Data parse_data(Lexer& lexer, std::string_view text) {
  RunDirectives::Data data;
  if (lexer.is("[")) {
    data.kind = "list";
    data.values = parse_list(lexer);
    if (data.values.empty()) lexer.fail("a list of data needs a value");
    return data;
  }
  const Token token = lexer.peek();
  data.kind = lexer.expect_identifier("a kind of data");
  const bool has_bounds = data.kind == "randint" || data.kind == "sorted";
  if (has_bounds) {
    lexer.expect("(");
    data.bounds.push_back(parse_bound(lexer, text));
    lexer.expect(",");
    data.bounds.push_back(parse_bound(lexer, text));
    lexer.expect(")");
  } else if (data.kind == "randn") {
    if (lexer.accept("(")) {
      data.values.push_back(parse_number(lexer));
      lexer.expect(")");
    }
  } else if (data.kind != "bool" && data.kind != "arange") {
    Lexer::fail_at(token, "unknown data '", data.kind,
                   "', expected randn, randint, sorted, bool, arange or a list");
  }
  return data;
}

Tolerance parse_tolerance(Lexer& lexer) {
  const double value = lexer.expect_float("a number");
  if (lexer.accept("ulps")) return {.ulps = value};
  lexer.expect("of");
  lexer.expect("max");
  return {.of_max = value};
}

void parse_directive(std::string_view word, Lexer& lexer, std::string_view text,
                     RunDirectives& into) {
  const auto parse_name = [&] {
    const std::string name = lexer.expect_value("a size or buffer (%name)");
    lexer.expect("=");
    return name;
  };
  if (word == "RUN-SIZE") {
    const std::string name = parse_name();
    into.sizes[name] = lexer.expect_integer();
  } else if (word == "RUN-DATA") {
    const std::string name = parse_name();
    into.data[name] = parse_data(lexer, text);
  } else if (word == "RUN-TOLERANCE") {
    into.tolerance = parse_tolerance(lexer);
  } else if (word == "EXPECT") {
    const std::string name = parse_name();
    into.expected[name] = parse_list(lexer);
  } else {
    into.expected_code = lexer.expect_integer("an error code");
  }
  if (!lexer.at_end()) lexer.fail("unexpected ", Lexer::describe(lexer.peek()));
}

constexpr std::string_view kDirectives[] = {"RUN-SIZE", "RUN-DATA", "RUN-TOLERANCE", "EXPECT-CODE",
                                            "EXPECT"};

// ---- Data ---------------------------------------------------------------------------------------

// SplitMix64 (Steele et al. 2014): the same numbers everywhere, unlike the standard library's
// distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Sum of twelve uniforms: near enough to normal, and exact arithmetic.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  int64_t integer(int64_t low, int64_t end) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(end - low));
  }

 private:
  uint64_t state_;
};

using SizeValues = std::unordered_map<Expr, int64_t>;

// The value of an expression of sizes.
int64_t evaluate_size(Expr root, const SizeValues& sizes) {
  std::unordered_map<Expr, uint64_t> values;
  for_each_expr({root}, [&](Expr e) {
    if (const auto* constant = as<Constant>(e)) values[e] = constant->bits;
    if (e->kind == ExprKind::kVariable) values[e] = static_cast<uint64_t>(sizes.at(e));
    MLCC_USER_CHECK(e->kind != ExprKind::kLoad, print(root), ": reads memory");
    if (const auto* cast = as<Cast>(e))
      values[e] = convert(cast->value->dtype, e->dtype, values.at(cast->value));
    if (const auto* apply = as<Apply>(e)) {
      std::vector<uint64_t> args;
      for (const Expr arg : apply->args) args.push_back(values.at(arg));
      const auto value = evaluate(apply->op, apply->args.back()->dtype, args);
      MLCC_USER_CHECK(value, print(root), ": divides by zero");
      values[e] = *value;
    }
  });
  return static_cast<int64_t>(values.at(root));
}

// Whether `e` is an i64 that reads no memory and no variable but those.
bool follows_from(Expr root, const SizeValues& values) {
  bool follows = root->dtype == DType::kI64;
  for_each_expr({root}, [&](Expr e) {
    follows &= e->kind != ExprKind::kLoad && (e->kind != ExprKind::kVariable || values.contains(e));
  });
  return follows;
}

uint64_t encode(DType dtype, double value) {
  if (is_float(dtype)) return encode_float(dtype, value);
  return encode_int(dtype, static_cast<int64_t>(value));
}

class DataMaker {
 public:
  DataMaker(const Kernel& kernel, const SizeValues& sizes, const RunDirectives& directives,
            uint64_t seed)
      : kernel_(kernel), sizes_(sizes), directives_(directives), seed_(seed) {}

  BufferData make(const Buffer& buffer) {
    BufferData data{.buffer = &buffer, .shape = {}, .strides = {}, .bytes = {}};
    for (const Expr extent : buffer.shape) data.shape.push_back(evaluate_size(extent, sizes_));
    data.strides.assign(data.shape.size(), 1);
    for (size_t d = data.shape.size(); d-- > 1;)
      data.strides[d - 1] = data.strides[d] * data.shape[d];
    for (size_t d = 0; d < buffer.strides.size(); ++d)
      data.strides[d] = evaluate_size(buffer.strides[d], sizes_);
    int64_t last = 0;
    for (size_t d = 0; d < data.shape.size(); ++d) {
      MLCC_USER_CHECK(data.shape[d] >= 0, "%", buffer.name, ": extent ", data.shape[d]);
      MLCC_USER_CHECK(data.strides[d] >= 0, "%", buffer.name, ": stride ", data.strides[d]);
      last += std::max<int64_t>(data.shape[d] - 1, 0) * data.strides[d];
    }
    const int64_t elements = data.count() == 0 ? 0 : last + 1;
    data.bytes.assign(static_cast<size_t>(elements * dtype_size(buffer.dtype)), kPattern);
    const bool has_content = buffer.access == Access::kIn || buffer.access == Access::kInOut ||
                             buffer.access == Access::kValue;
    if (has_content) fill(data);
    // No bool is anything but 0 or 1.
    if (buffer.dtype == DType::kBool)
      for (std::byte& byte : data.bytes) byte &= std::byte{1};
    return data;
  }

 private:
  void fill(BufferData& data) {
    const DType dtype = data.buffer->dtype;
    const auto found = directives_.data.find(data.buffer->name);
    const RunDirectives::Data plan =
        found != directives_.data.end() ? found->second : default_plan(dtype);
    const auto salt = hash_bytes(data.buffer->name);
    Random random(seed_ * 0x9E3779B97F4A7C15ULL + salt.low);
    std::vector<double> values(static_cast<size_t>(data.count()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = draw(plan, i, random);
    if (plan.kind == "sorted") std::sort(values.begin(), values.end());
    for (size_t i = 0; i < values.size(); ++i)
      data.set_element(static_cast<int64_t>(i), encode(dtype, values[i]));
  }

  static RunDirectives::Data default_plan(DType dtype) {
    if (dtype == DType::kBool) return {.kind = "bool", .bounds = {}, .values = {}};
    if (is_float(dtype)) return {.kind = "randn", .bounds = {}, .values = {}};
    return {.kind = "randint", .bounds = {"0", "8"}, .values = {}};
  }

  double draw(const RunDirectives::Data& plan, size_t i, Random& random) {
    if (plan.kind == "list") return plan.values[std::min(i, plan.values.size() - 1)];
    if (plan.kind == "arange") return static_cast<double>(i);
    if (plan.kind == "bool") return static_cast<double>(random.bits() & 1);
    if (plan.kind == "randn") return random.normal() * (plan.values.empty() ? 1.0 : plan.values[0]);
    const int64_t low = bound(plan.bounds[0]);
    const int64_t end = bound(plan.bounds[1]);
    MLCC_USER_CHECK(low < end, plan.kind, "(", plan.bounds[0], ", ", plan.bounds[1], "): is empty");
    return static_cast<double>(random.integer(low, end));
  }

  int64_t bound(const std::string& text) {
    const auto [found, is_new] = bounds_.emplace(text, 0);
    if (is_new)
      found->second =
          evaluate_size(parse_expr(arena_, text, own_sizes(), DType::kI64), own_values());
    return found->second;
  }

  // The kernel's sizes as variables of our own arena.
  std::vector<const Variable*> own_sizes() {
    std::vector<const Variable*> own;
    for (const Variable* size : kernel_.sizes)
      own.push_back(Variable::make(arena_, DType::kI64, size->name));
    return own;
  }
  SizeValues own_values() {
    SizeValues values;
    for (const Variable* size : kernel_.sizes)
      values[Variable::make(arena_, DType::kI64, size->name)] = sizes_.at(size);
    return values;
  }

  const Kernel& kernel_;
  const SizeValues& sizes_;
  const RunDirectives& directives_;
  const uint64_t seed_;
  Arena arena_;
  std::map<std::string, int64_t> bounds_;
};

// ---- Comparison ---------------------------------------------------------------------------------

double decode(DType dtype, uint64_t bits) {
  return is_float(dtype) ? decode_float(dtype, bits) : static_cast<double>(decode_int(dtype, bits));
}

double largest_magnitude(const BufferData& data) {
  double largest = 0;
  for (int64_t i = 0; i < data.count(); ++i) {
    const double value = std::abs(decode(data.buffer->dtype, data.element(i)));
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  return largest;
}

bool is_near(DType dtype, uint64_t found, uint64_t expected, const Tolerance& tolerance,
             double largest) {
  if (!is_float(dtype)) return found == expected;
  if (ulps_between(dtype, found, expected) <= tolerance.ulps) return true;
  return std::abs(decode_float(dtype, found) - decode_float(dtype, expected)) <=
         tolerance.of_max * largest;
}

std::string describe(const BufferData& data, int64_t number, uint64_t found, uint64_t expected) {
  const DType dtype = data.buffer->dtype;
  std::string text =
      detail::join("%", data.buffer->name, ": element ", number, " is ",
                   print_literal(dtype, found), ", expected ", print_literal(dtype, expected));
  const double ulps = is_float(dtype) ? ulps_between(dtype, found, expected) : 0;
  if (ulps > 0 && ulps < 0x1p53) text += detail::join(" (", static_cast<int64_t>(ulps), " ulps)");
  return text;
}

bool is_result(const Buffer& buffer) {
  return buffer.access == Access::kOut || buffer.access == Access::kInOut;
}

}  // namespace

RunDirectives parse_directives(std::string_view text) {
  RunDirectives directives;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    for (const std::string_view word : kDirectives) {
      const std::string head = "// " + std::string(word) + ":";
      const size_t indent = std::min(line.find_first_not_of(" \t"), line.size());
      if (!line.substr(indent).starts_with(head)) continue;
      Lexer lexer(blank_before(text, begin + indent + head.size(), end));
      parse_directive(word, lexer, text, directives);
    }
    begin = end + 1;
  }
  return directives;
}

int64_t BufferData::count() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

namespace {

size_t byte_offset(const BufferData& data, int64_t number) {
  int64_t offset = 0;
  for (size_t d = data.shape.size(); d-- > 0;) {
    offset += number % data.shape[d] * data.strides[d];
    number /= data.shape[d];
  }
  return static_cast<size_t>(offset * dtype_size(data.buffer->dtype));
}

}  // namespace

uint64_t BufferData::element(int64_t number) const {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + byte_offset(*this, number),
              static_cast<size_t>(dtype_size(buffer->dtype)));
  return bits;
}

void BufferData::set_element(int64_t number, uint64_t bits) {
  std::memcpy(bytes.data() + byte_offset(*this, number), &bits,
              static_cast<size_t>(dtype_size(buffer->dtype)));
}

std::vector<void*> KernelArguments::pointers() {
  std::vector<void*> list;
  for (BufferData& data : buffers) list.push_back(data.bytes.data());
  return list;
}

const BufferData& KernelArguments::find(std::string_view name) const {
  for (const BufferData& data : buffers)
    if (data.buffer->name == name) return data;
  throw Error(detail::join("%", name, ": the kernel has no such buffer"));
}

KernelArguments make_arguments(const Kernel& kernel, const RunDirectives& directives,
                               const std::map<std::string, int64_t, std::less<>>& sizes,
                               uint64_t seed) {
  KernelArguments arguments;
  SizeValues values;
  for (const Variable* size : kernel.sizes) {
    int64_t value = kDefaultSize;
    for (const auto* source : {&directives.sizes, &sizes})
      if (const auto found = source->find(size->name); found != source->end())
        value = found->second;
    values[size] = value;
    arguments.sizes.push_back(value);
  }
  DataMaker maker(kernel, values, directives, seed);
  for (const Buffer* buffer : kernel.buffers) arguments.buffers.push_back(maker.make(*buffer));
  return arguments;
}

std::optional<int64_t> phase_extent(const Kernel& kernel, size_t phase,
                                    const std::vector<int64_t>& sizes) {
  const For* range = parallel_loop(kernel.phases[phase]);
  if (range == nullptr) return std::nullopt;
  SizeValues values;
  for (size_t i = 0; i < sizes.size(); ++i) values[kernel.sizes[i]] = sizes[i];
  for (const Stmt stmt : kernel.phases[phase]) {
    const auto* let = as<Let>(stmt);
    if (let != nullptr && follows_from(let->value, values))
      values[let->variable] = evaluate_size(let->value, values);
  }
  return std::max<int64_t>(evaluate_size(range->end, values) - evaluate_size(range->begin, values),
                           0);
}

std::optional<std::string> find_difference(const KernelArguments& found,
                                           const KernelArguments& expected,
                                           const Tolerance& tolerance) {
  for (size_t b = 0; b < found.buffers.size(); ++b) {
    const BufferData& data = found.buffers[b];
    const BufferData& reference = expected.buffers[b];
    if (!is_result(*data.buffer)) continue;
    const double largest = largest_magnitude(reference);
    for (int64_t i = 0; i < data.count(); ++i)
      if (!is_near(data.buffer->dtype, data.element(i), reference.element(i), tolerance, largest))
        return describe(data, i, data.element(i), reference.element(i));
  }
  return std::nullopt;
}

std::optional<std::string> find_difference(const KernelArguments& found,
                                           const RunDirectives& directives,
                                           const Tolerance& tolerance) {
  for (const auto& [name, values] : directives.expected) {
    const BufferData& data = found.find(name);
    const DType dtype = data.buffer->dtype;
    if (static_cast<int64_t>(values.size()) != data.count())
      return detail::join("%", name, ": ", values.size(), " values expected, it has ",
                          data.count());
    double largest = 0;
    for (const double value : values)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    for (int64_t i = 0; i < data.count(); ++i) {
      const uint64_t expected = encode(dtype, values[static_cast<size_t>(i)]);
      if (!is_near(dtype, data.element(i), expected, tolerance, largest))
        return describe(data, i, data.element(i), expected);
    }
  }
  return std::nullopt;
}

double ulps_between(DType dtype, uint64_t a, uint64_t b) {
  const double x = decode_float(dtype, a);
  const double y = decode_float(dtype, b);
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<double>::infinity();
  const uint64_t sign = uint64_t{1} << (dtype_size(dtype) * 8 - 1);
  const uint64_t from_zero_a = a & ~sign;
  const uint64_t from_zero_b = b & ~sign;
  if ((a & sign) != (b & sign))
    return static_cast<double>(from_zero_a) + static_cast<double>(from_zero_b);
  return static_cast<double>(std::max(from_zero_a, from_zero_b) -
                             std::min(from_zero_a, from_zero_b));
}

}  // namespace mlcc::loop
