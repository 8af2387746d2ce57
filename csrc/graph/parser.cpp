#include <map>

#include "graph/attributes.h"
#include "graph/contraction.h"
#include "graph/inference.h"
#include "graph/text.h"
#include "support/error.h"
#include "support/lexer.h"
#include "types/interval.h"

namespace mlcc::graph {
namespace {

bool is_function(const Token& token) {
  return token.text == "floordiv" || token.text == "mod" || token.text == "min" ||
         token.text == "max";
}

class Parser {
 public:
  explicit Parser(Lexer& lexer) : lexer_(lexer) {}

  std::unique_ptr<Graph> parse() {
    lexer_.expect("graph");
    graph_ = std::make_unique<Graph>(lexer_.expect_global());
    parse_inputs();
    if (lexer_.accept("symbols")) parse_symbols();
    check_symbols();
    lexer_.expect("{");
    while (!lexer_.is("return")) parse_node();
    lexer_.expect("return");
    std::vector<Value*> outputs;
    if (lexer_.is(TokenKind::kValue)) outputs = parse_operands();
    lexer_.expect("}");
    graph_->set_outputs(std::move(outputs));
    return std::move(graph_);
  }

 private:
  // What stands left of a node's '='.
  struct Result {
    Token name;
    bool is_size = false;
    TensorType type;
    SymExpr size;
  };

  // Runs `make`; what it finds wrong is reported at `place`.
  template <typename Make>
  auto at(const Token& place, const Make& make) {
    try {
      return make();
    } catch (const Error& error) {
      Lexer::fail_at(place, error.what());
    }
  }

  // ---- header

  void parse_inputs() {
    lexer_.expect("(");
    while (!lexer_.accept(")")) {
      if (!graph_->inputs().empty()) lexer_.expect(",");
      const Result input = parse_result();
      const bool is_static = !input.is_size && lexer_.accept("static");
      std::optional<SymRange> range;
      if (is_static && lexer_.accept("in")) range = parse_range();
      at(input.name, [&] {
        Value* value = input.is_size
                           ? graph_->add_size_input(input.name.text, input.size)
                           : graph_->add_input(input.name.text, input.type, is_static, range);
        values_[input.name.text] = value;
      });
    }
  }

  SymRange parse_range() {
    SymRange range = kUnbounded;
    if (!lexer_.is("..")) range.low = lexer_.expect_integer("a bound");
    lexer_.expect("..");
    if (lexer_.is("-") || lexer_.is(TokenKind::kInteger))
      range.high = lexer_.expect_integer("a bound");
    return range;
  }

  void parse_symbols() {
    lexer_.expect("(");
    do {
      const Token place = lexer_.peek();
      Symbol symbol{lexer_.expect_identifier("a symbol"), kUnbounded, {}};
      if (lexer_.accept("in")) symbol.range = parse_range();
      if (lexer_.accept("hint")) symbol.hint = lexer_.expect_integer("a hint");
      if (is_declared(symbol.name))
        Lexer::fail_at(place, "symbol ", symbol.name, " is declared twice");
      at(place, [&] { graph_->add_symbol(symbol); });
    } while (lexer_.accept(","));
    lexer_.expect(")");
  }

  bool is_declared(std::string_view name) const {
    for (const Symbol& symbol : graph_->symbols())
      if (symbol.name == name) return true;
    return false;
  }

  // Input types stand before the declarations; from here on symbols are checked as they are read.
  void check_symbols() {
    for (const Token& symbol : early_symbols_) check_declared(symbol);
    header_done_ = true;
  }

  void check_declared(const Token& symbol) const {
    if (!is_declared(symbol.text))
      Lexer::fail_at(symbol, "symbol ", symbol.text, " is not declared");
  }

  // ---- types and expressions

  Result parse_result() {
    Result result{lexer_.peek(), false, {}, {}};
    lexer_.expect_value();
    lexer_.expect(":");
    result.is_size = lexer_.is("size");
    if (result.is_size) {
      lexer_.next();
      lexer_.expect("(");
      result.size = parse_expression();
      lexer_.expect(")");
    } else {
      result.type = parse_type();
    }
    return result;
  }

  TensorType parse_type() {
    const Token place = lexer_.peek();
    const std::string name = lexer_.expect_identifier("a dtype");
    const auto dtype = parse_dtype(name);
    if (!dtype) Lexer::fail_at(place, "unknown dtype '", name, "'");
    TensorType type{*dtype, {}, {}};
    lexer_.expect("[");
    type.shape = parse_expressions("]");
    if (lexer_.accept("strides")) {
      lexer_.expect("(");
      type.strides = parse_expressions(")");
      if (type.strides.size() != type.shape.size())
        Lexer::fail_at(place, "found ", type.strides.size(), " strides for ", type.shape.size(),
                       " dimensions");
    }
    if (lexer_.is(TokenKind::kGlobal)) type.device = parse_device();
    return type;
  }

  Device parse_device() {
    const Token place = lexer_.peek();
    std::string name = lexer_.expect_global();
    if (lexer_.accept(":"))
      name += ":" + std::to_string(lexer_.expect_integer("the number of a device"));
    const auto device = Device::parse(name);
    if (!device) Lexer::fail_at(place, "unknown device '", name, "'");
    return *device;
  }

  std::vector<SymExpr> parse_expressions(std::string_view close) {
    std::vector<SymExpr> list;
    while (!lexer_.accept(close)) {
      if (!list.empty()) lexer_.expect(",");
      list.push_back(parse_expression());
    }
    return list;
  }

  SymExpr parse_expression() {
    SymExpr sum = parse_term();
    while (lexer_.is("+") || lexer_.is("-")) {
      const bool is_plus = lexer_.next().text == "+";
      const SymExpr term = parse_term();
      sum = is_plus ? sum + term : sum - term;
    }
    return sum;
  }

  SymExpr parse_term() {
    SymExpr term = parse_factor();
    while (lexer_.accept("*")) term = term * parse_factor();
    return term;
  }

  SymExpr parse_factor() {
    if (lexer_.is(TokenKind::kInteger) || (lexer_.is("-") && lexer_.is(TokenKind::kInteger, 1)))
      return lexer_.expect_integer();
    if (lexer_.accept("-")) return SymExpr(0) - parse_factor();
    if (lexer_.accept("(")) {
      SymExpr e = parse_expression();
      lexer_.expect(")");
      return e;
    }
    const Token name = lexer_.peek();
    lexer_.expect_identifier("a size");
    if (lexer_.is("(")) return parse_function(name);
    if (in_index_ && is_axis_name(name.text)) return SymExpr::symbol(name.text);
    if (header_done_)
      check_declared(name);
    else
      early_symbols_.push_back(name);
    return SymExpr::symbol(name.text);
  }

  SymExpr parse_function(const Token& name) {
    if (!is_function(name)) Lexer::fail_at(name, "unknown function '", name.text, "'");
    lexer_.expect("(");
    const SymExpr a = parse_expression();
    lexer_.expect(",");
    const SymExpr b = parse_expression();
    lexer_.expect(")");
    return at(name, [&] {
      if (name.text == "floordiv") return SymExpr::floordiv(a, b);
      if (name.text == "mod") return SymExpr::mod(a, b);
      return name.text == "min" ? SymExpr::min(a, b) : SymExpr::max(a, b);
    });
  }

  // ---- nodes

  void parse_node() {
    const Token place = lexer_.peek();
    std::vector<Result> results;
    while (lexer_.is(TokenKind::kValue)) {
      results.push_back(parse_result());
      if (!lexer_.accept(",")) break;
    }
    if (!results.empty()) lexer_.expect("=");
    const Token op_token = lexer_.peek();
    const auto op = parse_op(lexer_.expect_identifier("an op"));
    if (!op) Lexer::fail_at(op_token, "unknown op '", op_token.text, "'");
    if (*op == Op::kExtern) return define(results, parse_extern(place, results));
    if (results.size() != 1)
      Lexer::fail_at(place, op_token.text, ": found ", results.size(), " results, expected one");
    const Result& result = results[0];
    if (result.is_size != (*op == Op::kSizeResult))
      Lexer::fail_at(result.name, op_token.text, " %", result.name.text, ": the result is ",
                     result.is_size ? "a size" : "a tensor");
    if (*op == Op::kSizeResult) return define(results, {graph_->size_result(result.size)});
    define(results, {parse_tensor_node(place, *op, result)});
  }

  void define(const std::vector<Result>& results, const std::vector<Value*>& values) {
    for (size_t i = 0; i < results.size(); ++i) {
      const Token& name = results[i].name;
      if (!values_.emplace(name.text, values[i]).second)
        Lexer::fail_at(name, "value %", name.text, " is defined twice");
      Node* node = values[i]->producer();
      node->set_source(detail::join(results[0].name.line, ":", results[0].name.column));
    }
  }

  Value* parse_tensor_node(const Token& place, Op op, const Result& result) {
    std::vector<Value*> operands;
    if (lexer_.is(TokenKind::kValue)) operands = parse_operands();
    AttrList attrs;
    if (lexer_.accept("{")) attrs = parse_attrs(op, result.type.dtype);
    Value* value = at(place, [&] {
      return graph_->build(op, operands, std::move(attrs), result.type, result.name.text);
    });
    const TensorType& type = value->type();
    if (!is_same_type(type, result.type))
      Lexer::fail_at(
          place, op_info(op).text, " %", result.name.text, ": result is ",
          print(TensorType{result.type.dtype, result.type.shape, {}, result.type.device}),
          ", expected ", print(type));
    graph_->set_strides(value, result.type.strides);
    return value;
  }

  std::vector<Value*> parse_operands() {
    std::vector<Value*> operands;
    do operands.push_back(parse_operand());
    while (lexer_.accept(","));
    return operands;
  }

  Value* parse_operand() {
    const Token name = lexer_.peek();
    const auto found = values_.find(lexer_.expect_value());
    if (found == values_.end()) Lexer::fail_at(name, "value %", name.text, " is not defined");
    return found->second;
  }

  AttrList parse_attrs(Op op, DType dtype) {
    AttrList attrs;
    while (!lexer_.accept("}")) {
      if (!attrs.empty()) lexer_.expect(",");
      const Token name = lexer_.peek();
      lexer_.expect_identifier("an attribute");
      const AttrSpec* spec = nullptr;
      for (const AttrSpec& candidate : attr_specs(op))
        if (candidate.name == name.text) spec = &candidate;
      if (spec == nullptr)
        Lexer::fail_at(name, op_info(op).text, " has no attribute '", name.text, "'");
      lexer_.expect("=");
      attrs.emplace_back(name.text, parse_attr(spec->kind, dtype));
    }
    return attrs;
  }

  Attr parse_attr(AttrKind kind, DType dtype) {
    switch (kind) {
    case AttrKind::kInt: return lexer_.expect_integer();
    case AttrKind::kInts: return parse_integers();
    case AttrKind::kBool: return parse_bool();
    case AttrKind::kString: return lexer_.expect_string();
    case AttrKind::kSymbolic: return parse_expression();
    case AttrKind::kSymbolics: return parse_list();
    case AttrKind::kIndex: {
      in_index_ = true;
      std::vector<SymExpr> index = parse_list();
      in_index_ = false;
      return index;
    }
    case AttrKind::kNumber:
      if (is_float(dtype)) return lexer_.expect_float();
      return lexer_.expect_integer();
    }
    MLCC_UNREACHABLE("attribute kind ", static_cast<int>(kind));
  }

  std::vector<SymExpr> parse_list() {
    lexer_.expect("[");
    return parse_expressions("]");
  }

  std::vector<int64_t> parse_integers() {
    std::vector<int64_t> list;
    lexer_.expect("[");
    while (!lexer_.accept("]")) {
      if (!list.empty()) lexer_.expect(",");
      list.push_back(lexer_.expect_integer());
    }
    return list;
  }

  bool parse_bool() {
    if (lexer_.accept("true")) return true;
    lexer_.expect("false");
    return false;
  }

  // ---- extern calls

  std::vector<Value*> parse_extern(const Token& place, const std::vector<Result>& results) {
    ExternCall call;
    std::vector<Value*> operands;
    call.name = lexer_.expect_string("the name of an overload");
    lexer_.expect("(");
    for (bool is_first = true; !lexer_.accept(")"); is_first = false) {
      if (!is_first) lexer_.expect(",");
      if (lexer_.is(TokenKind::kIdentifier) && lexer_.is("=", 1)) {
        const std::string name = lexer_.expect_identifier();
        lexer_.expect("=");
        call.kwargs.emplace_back(name, parse_argument(operands));
      } else if (!call.kwargs.empty()) {
        lexer_.fail("a positional argument after a keyword argument");
      } else {
        call.args.push_back(parse_argument(operands));
      }
    }
    call.facts = parse_facts(operands.size());
    if (lexer_.accept("regions")) call.regions = parse_regions();
    return at(place, [&] { return make_extern(std::move(call), std::move(operands), results); });
  }

  std::vector<Value*> make_extern(ExternCall call, std::vector<Value*> operands,
                                  const std::vector<Result>& results) {
    if (results.size() == 1 && results[0].is_size)
      return {graph_->extern_size(std::move(call), std::move(operands), results[0].size)};
    std::vector<TensorType> types;
    for (const Result& result : results) {
      MLCC_USER_CHECK(!result.is_size, "extern: a size is the only result or none");
      types.push_back(result.type);
    }
    return graph_->extern_call(std::move(call), std::move(operands), std::move(types));
  }

  std::vector<std::shared_ptr<Graph>> parse_regions() {
    std::vector<std::shared_ptr<Graph>> regions;
    lexer_.expect("{");
    while (!lexer_.accept("}")) regions.push_back(Parser(lexer_).parse());
    return regions;
  }

  ExternFacts parse_facts(size_t num_operands) {
    ExternFacts facts;
    if (lexer_.accept("mutates")) {
      lexer_.expect("(");
      do {
        const Token place = lexer_.peek();
        const int64_t operand = lexer_.expect_integer("an operand's number");
        if (operand < 0 || operand >= static_cast<int64_t>(num_operands))
          Lexer::fail_at(place, "mutates: there is no operand ", operand);
        facts.mutates.push_back(static_cast<int>(operand));
      } while (lexer_.accept(","));
      lexer_.expect(")");
    }
    facts.random = lexer_.accept("random");
    facts.effects = lexer_.accept("effects");
    facts.aliases = lexer_.accept("aliases");
    facts.begins = lexer_.accept("begins");
    facts.waits = lexer_.accept("waits");
    return facts;
  }

  Argument parse_argument(std::vector<Value*>& operands) {
    if (lexer_.is(TokenKind::kValue)) {
      operands.push_back(parse_operand());
      return ArgRef{static_cast<int>(operands.size()) - 1};
    }
    if (lexer_.is(TokenKind::kString)) return lexer_.expect_string();
    if (lexer_.accept("none")) return ArgNone{};
    if (lexer_.is("true") || lexer_.is("false")) return parse_bool();
    if (lexer_.accept("[")) {
      ArgList list;
      while (!lexer_.accept("]")) {
        if (!list.empty()) lexer_.expect(",");
        list.push_back(parse_argument(operands));
      }
      return list;
    }
    if (lexer_.is(TokenKind::kFloat) || (lexer_.is("-") && lexer_.is(TokenKind::kFloat, 1)))
      return lexer_.expect_float();
    if (lexer_.is("complex") && lexer_.is("(", 1)) return parse_complex();
    if (lexer_.is(TokenKind::kIdentifier) && lexer_.is("(", 1) && !is_function(lexer_.peek()))
      return parse_enum();
    return parse_expression();
  }

  std::complex<double> parse_complex() {
    lexer_.expect("complex");
    lexer_.expect("(");
    const double real = lexer_.expect_float();
    lexer_.expect(",");
    const double imaginary = lexer_.expect_float();
    lexer_.expect(")");
    return {real, imaginary};
  }

  ArgEnum parse_enum() {
    ArgEnum value;
    value.kind = lexer_.expect_identifier();
    lexer_.expect("(");
    value.name =
        lexer_.is(TokenKind::kString) ? lexer_.expect_string() : lexer_.expect_identifier();
    lexer_.expect(")");
    return value;
  }

  Lexer& lexer_;
  std::unique_ptr<Graph> graph_;
  std::map<std::string, Value*, std::less<>> values_;
  std::vector<Token> early_symbols_;
  bool header_done_ = false;
  bool in_index_ = false;
};

}  // namespace

std::unique_ptr<Graph> parse_graph(std::string_view text) {
  Lexer lexer(text);
  std::unique_ptr<Graph> graph = Parser(lexer).parse();
  if (!lexer.at_end()) lexer.fail("expected end of text, found ", Lexer::describe(lexer.peek()));
  return graph;
}

}  // namespace mlcc::graph
