// Reads kernels: parameters, statements and blocks. Expressions in them are expr_parser.h's.
#include <array>
#include <optional>
#include <span>
#include <string>

#include "loop/expr_parser.h"
#include "loop/names.h"
#include "loop/syntax.h"
#include "loop/text.h"
#include "loop/type_rules.h"
#include "support/error.h"
#include "support/lexer.h"

namespace mlcc::loop {
namespace {

class KernelParser {
 public:
  KernelParser(Arena& arena, Lexer& lexer)
      : arena_(arena), lexer_(lexer), exprs_(arena, lexer, names_, std::nullopt) {}

  Kernel parse() {
    Kernel kernel;
    lexer_.expect("kernel");
    kernel.name = lexer_.expect_global("a kernel name (@name)");
    names_.open();
    parse_parameters(kernel);
    if (lexer_.accept("errors")) parse_errors(kernel);
    lexer_.expect("{");
    do {
      names_.open();
      kernel.phases.push_back(parse_statements());
      names_.close();
    } while (lexer_.accept("barrier"));
    lexer_.expect("}");
    return kernel;
  }

 private:
  static constexpr int kMaxDepth = 200;  // of nested blocks

  // ---- Parameters

  void parse_parameters(Kernel& kernel) {
    lexer_.expect("(");
    const auto is_size = [&] {
      return lexer_.is(TokenKind::kValue) && lexer_.is(":", 1) && lexer_.is("i64", 2);
    };
    while (is_size()) {
      kernel.sizes.push_back(parse_size());
      if (!lexer_.accept(",")) break;
    }
    if (!kernel.sizes.empty() && !lexer_.is(")")) lexer_.expect(";");
    while (!lexer_.is(")")) {
      if (!kernel.buffers.empty()) lexer_.expect(",");
      kernel.buffers.push_back(parse_parameter());
    }
    lexer_.expect(")");
  }

  const Variable* parse_size() {
    const Token token = lexer_.peek();
    const std::string name = lexer_.expect_value();
    lexer_.expect(":");
    lexer_.expect("i64");
    return define_variable(token, DType::kI64, name);
  }

  const Buffer* parse_parameter() {
    const Token token = lexer_.peek();
    Buffer buffer{.name = lexer_.expect_value("a parameter (%name)"),
                  .dtype = {},
                  .scope = Scope::kGlobal,
                  .access = {},
                  .shape = {},
                  .strides = {}};
    lexer_.expect(":");
    buffer.access = expect_word<Access>(kAccessNames, "in, out, inout, scratch or value");
    buffer.dtype = expect_dtype();
    buffer.shape = exprs_.parse_indices();
    if (lexer_.accept("strides")) buffer.strides = exprs_.parse_indices();
    return define_buffer(token, std::move(buffer));
  }

  void parse_errors(Kernel& kernel) {
    lexer_.expect("(");
    do {
      ErrorText error;
      error.code = lexer_.expect_integer("an error code");
      lexer_.expect(":");
      error.exception = lexer_.expect_identifier("an exception type");
      error.text = lexer_.expect_string("the exception's text");
      kernel.errors.push_back(std::move(error));
    } while (lexer_.accept(","));
    lexer_.expect(")");
  }

  // ---- Names

  template <typename Enum, size_t n>
  Enum expect_word(const std::array<std::string_view, n>& words, std::string_view what) {
    for (size_t i = 0; i < n; ++i)
      if (lexer_.accept(words[i])) return static_cast<Enum>(i);
    lexer_.fail("expected ", what, ", found ", Lexer::describe(lexer_.peek()));
  }

  DType expect_dtype() {
    const Token token = lexer_.peek();
    const auto dtype = kernel_dtype(lexer_.expect_identifier("a dtype"));
    if (!dtype) Lexer::fail_at(token, "unknown dtype '", token.text, "'");
    return *dtype;
  }

  const Variable* define_variable(const Token& token, DType dtype, const std::string& name) {
    const Variable* variable = Variable::make(arena_, dtype, name);
    names_.define(token, name, {.variable = variable});
    return variable;
  }

  const Variable* parse_new_variable(DType dtype) {
    const Token token = lexer_.peek();
    return define_variable(token, dtype, lexer_.expect_value("a new name (%name)"));
  }

  const Buffer* define_buffer(const Token& token, Buffer buffer) {
    fail_on(token, buffer_type_error(buffer));
    const Buffer* made = arena_.make_buffer(std::move(buffer));
    names_.define(token, made->name, {.buffer = made});
    return made;
  }

  // ---- Statements

  Block parse_statements() {
    if (++depth_ > kMaxDepth) lexer_.fail("blocks are nested too deeply");
    Block block;
    while (!lexer_.is("}") && !lexer_.is("yield") && !lexer_.is("barrier"))
      block.push_back(parse_statement());
    --depth_;
    return block;
  }

  Block parse_braced() {
    names_.open();
    lexer_.expect("{");
    Block block = parse_statements();
    lexer_.expect("}");
    names_.close();
    return block;
  }

  Stmt parse_statement() {
    const Token token = lexer_.next();
    if (token.kind == TokenKind::kIdentifier) {
      if (token.text == "let") return parse_let(token);
      if (token.text == "store") return parse_store();
      if (token.text == "atomic") return parse_atomic();
      if (token.text == "prefetch") return parse_prefetch();
      if (token.text == "for") return parse_for();
      if (token.text == "reduce") return parse_reduce();
      if (token.text == "if") return parse_if(token);
      if (token.text == "check") return parse_check(token);
      if (token.text == "alloc") return parse_alloc();
      if (token.text == "contract") return parse_contract(token);
    }
    Lexer::fail_at(token, "expected a statement, found ", Lexer::describe(token));
  }

  Stmt parse_let(const Token& token) {
    const Token name = lexer_.peek();
    lexer_.expect_value("a new name (%name)");
    lexer_.expect(":");
    const DType dtype = expect_dtype();
    lexer_.expect("=");
    const Expr value = exprs_.parse(dtype);
    const Variable* variable = define_variable(name, dtype, name.text);
    fail_on(token, let_type_error(*variable, value));
    return Let::make(arena_, variable, value);
  }

  // A condition after `= expr` or `stream`, unless what follows is an `if` statement of its own.
  Expr parse_optional_condition() {
    const size_t start = lexer_.position();
    if (!lexer_.accept("if")) return nullptr;
    const Expr mask = exprs_.parse(DType::kBool);
    if (!lexer_.is("{")) return mask;
    lexer_.rewind(start);
    return nullptr;
  }

  Stmt parse_store() {
    const Token token = lexer_.peek();
    const Buffer* buffer = exprs_.parse_buffer();
    std::vector<Expr> indices = exprs_.parse_indices();
    lexer_.expect("=");
    const Expr value = exprs_.parse(buffer->dtype);
    const Expr mask = parse_optional_condition();
    Expr streams = nullptr;
    if (lexer_.accept("stream")) {
      streams = parse_optional_condition();
      if (streams == nullptr) streams = Constant::make_int(arena_, DType::kBool, 1);
    }
    fail_on(token, store_type_error(*buffer, indices, value, mask));
    return Store::make(arena_, buffer, std::move(indices), value, mask, streams);
  }

  Stmt parse_atomic() {
    const Token token = lexer_.peek();
    const auto op = parse_scalar_op(lexer_.expect_identifier("an op"));
    if (!op) Lexer::fail_at(token, "unknown op '", token.text, "'");
    const Buffer* buffer = exprs_.parse_buffer();
    std::vector<Expr> indices = exprs_.parse_indices();
    lexer_.expect("=");
    const Expr value = exprs_.parse(buffer->dtype);
    const Expr mask = parse_optional_condition();
    fail_on(token, atomic_type_error(*op, *buffer, indices, value, mask));
    return Atomic::make(arena_, *op, buffer, std::move(indices), value, mask);
  }

  Stmt parse_prefetch() {
    const Token token = lexer_.peek();
    const Buffer* buffer = exprs_.parse_buffer();
    std::vector<Expr> indices = exprs_.parse_indices();
    fail_on(token, index_type_error(*buffer, indices));
    return Prefetch::make(arena_, buffer, std::move(indices));
  }

  int64_t parse_parenthesized_count() {
    lexer_.expect("(");
    const int64_t count = lexer_.expect_integer();
    lexer_.expect(")");
    return count;
  }

  LoopMode parse_mode() {
    LoopMode mode;
    for (size_t kind = 1; kind < kLoopKindNames.size(); ++kind)
      if (lexer_.accept(kLoopKindNames[kind])) mode.kind = static_cast<LoopKind>(kind);
    const bool has_width = lexer_.is("(") && lexer_.is(TokenKind::kInteger, 1);
    if (has_lanes(mode.kind) && has_width) mode.width = parse_parenthesized_count();
    if (lexer_.accept("group")) mode.group = parse_parenthesized_count();
    if (lexer_.accept("grain")) mode.grain = parse_parenthesized_count();
    if (lexer_.accept("unroll")) mode.unroll = parse_parenthesized_count();
    return mode;
  }

  // `%i in begin..end mode`; the variable is not defined yet, since begin and end do not see it.
  struct LoopHead {
    Token name;
    Expr begin, end;
    LoopMode mode;
  };

  LoopHead parse_loop_head() {
    LoopHead head{.name = lexer_.peek(), .begin = nullptr, .end = nullptr, .mode = {}};
    lexer_.expect_value("a loop variable (%name)");
    lexer_.expect("in");
    head.begin = exprs_.parse(DType::kI64);
    lexer_.expect("..");
    head.end = exprs_.parse(DType::kI64);
    head.mode = parse_mode();
    return head;
  }

  const Variable* define_loop_variable(const LoopHead& head) {
    const Variable* variable = define_variable(head.name, DType::kI64, head.name.text);
    fail_on(head.name, loop_type_error(*variable, head.begin, head.end, head.mode));
    return variable;
  }

  Stmt parse_for() {
    const LoopHead head = parse_loop_head();
    names_.open();
    const Variable* variable = define_loop_variable(head);
    Block body = parse_braced();
    names_.close();
    return For::make(arena_, variable, head.begin, head.end, head.mode, std::move(body));
  }

  // 'yield' exprs '}', one for each of `variables`.
  std::vector<Expr> parse_yield(const std::vector<Carried>& carried) {
    std::vector<Expr> values;
    lexer_.expect("yield");
    do {
      const ExprParser::Expected expected =
          values.size() < carried.size()
              ? ExprParser::Expected(carried[values.size()].variable->dtype)
              : std::nullopt;
      values.push_back(exprs_.parse(expected));
    } while (lexer_.accept(","));
    lexer_.expect("}");
    return values;
  }

  std::vector<Carried> parse_carried(std::vector<Token>& names) {
    std::vector<Carried> carried;
    lexer_.expect("(");
    do {
      names.push_back(lexer_.peek());
      const std::string name = lexer_.expect_value("a carried value (%name)");
      lexer_.expect(":");
      const DType dtype = expect_dtype();
      lexer_.expect("=");
      const Expr init = exprs_.parse(dtype);
      carried.push_back({Variable::make(arena_, dtype, name), init, nullptr});
    } while (lexer_.accept(","));
    lexer_.expect(")");
    return carried;
  }

  Stmt parse_reduce() {
    const LoopHead head = parse_loop_head();
    const Token open = lexer_.peek();
    std::vector<Token> carried_names;
    std::vector<Carried> carried = parse_carried(carried_names);
    names_.open();
    const Variable* variable = define_loop_variable(head);
    for (size_t i = 0; i < carried.size(); ++i)
      names_.define(carried_names[i], carried_names[i].text, {.variable = carried[i].variable});
    lexer_.expect("{");
    Block body = parse_statements();
    std::vector<Expr> yields = parse_yield(carried);
    names_.close();
    std::optional<Combine> combine;
    if (lexer_.accept("combine")) combine = parse_combine(carried);
    lexer_.expect("->");
    for (size_t i = 0; i < carried.size(); ++i) {
      if (i > 0) lexer_.expect(",");
      carried[i].result = parse_new_variable(carried[i].variable->dtype);
    }
    fail_on(open, reduce_type_error(carried, yields, combine));
    return Reduce::make(arena_, variable, head.begin, head.end, head.mode, std::move(carried),
                        std::move(body), std::move(yields), std::move(combine));
  }

  Combine parse_combine(const std::vector<Carried>& carried) {
    Combine combine;
    names_.open();
    lexer_.expect("(");
    for (auto* side : {&combine.left, &combine.right}) {
      for (size_t i = 0; i < carried.size(); ++i) {
        if (i > 0 || side == &combine.right) lexer_.expect(",");
        side->push_back(parse_new_variable(carried[i].variable->dtype));
      }
    }
    lexer_.expect(")");
    lexer_.expect("{");
    combine.body = parse_statements();
    combine.values = parse_yield(carried);
    names_.close();
    return combine;
  }

  Stmt parse_if(const Token& token) {
    const Expr condition = exprs_.parse(DType::kBool);
    fail_on(token, condition_type_error(condition));
    Block then_body = parse_braced();
    Block else_body;
    if (lexer_.accept("else")) else_body = parse_braced();
    return If::make(arena_, condition, std::move(then_body), std::move(else_body));
  }

  Stmt parse_check(const Token& token) {
    const Expr condition = exprs_.parse(DType::kBool);
    fail_on(token, condition_type_error(condition));
    lexer_.expect("else");
    const Token code_token = lexer_.peek();
    const int64_t code = lexer_.expect_integer("an error code");
    if (code <= 0) Lexer::fail_at(code_token, "error code ", code, ", expected above 0");
    std::vector<Expr> details;
    if (lexer_.accept("(")) {
      do details.push_back(exprs_.parse(DType::kI64));
      while (lexer_.accept(","));
      lexer_.expect(")");
    }
    fail_on(token, details_type_error(details));
    return Check::make(arena_, condition, code, std::move(details));
  }

  Stmt parse_alloc() {
    const Token token = lexer_.peek();
    Buffer buffer{.name = lexer_.expect_value("a new name (%name)"),
                  .dtype = {},
                  .scope = {},
                  .access = Access::kInOut,
                  .shape = {},
                  .strides = {}};
    lexer_.expect(":");
    if (lexer_.is("global")) lexer_.fail("alloc: a global buffer is a parameter");
    buffer.scope = expect_word<Scope>(kScopeNames, "stack, register or shared");
    buffer.dtype = expect_dtype();
    buffer.shape = exprs_.parse_indices();
    return Alloc::make(arena_, define_buffer(token, std::move(buffer)));
  }

  // '(' expr, ... ')'
  std::vector<Expr> parse_list() {
    std::vector<Expr> list;
    lexer_.expect("(");
    do list.push_back(exprs_.parse(DType::kI64));
    while (lexer_.accept(","));
    lexer_.expect(")");
    return list;
  }

  TileRef parse_tile() {
    TileRef tile{
        .buffer = exprs_.parse_buffer(), .origin = {}, .steps = {}, .rows = {}, .low_columns = 0};
    tile.origin = exprs_.parse_indices();
    lexer_.expect("by");
    tile.steps = parse_list();
    if (lexer_.accept("rows")) tile.rows = parse_list();
    if (lexer_.accept("halves")) tile.low_columns = lexer_.expect_integer("columns of a half");
    return tile;
  }

  Stmt parse_contract(const Token& token) {
    TileRef c = parse_tile();
    const bool adds = lexer_.accept("+=");
    if (!adds) lexer_.expect("=");
    TileRef a = parse_tile();
    lexer_.expect("*");
    TileRef b = parse_tile();
    lexer_.expect("tile");
    lexer_.expect("(");
    const int64_t rows = lexer_.expect_integer("the tile's rows");
    lexer_.expect(",");
    const int64_t columns = lexer_.expect_integer("the tile's columns");
    lexer_.expect(")");
    Expr live_columns = nullptr;
    if (lexer_.accept("live")) {
      lexer_.expect("(");
      live_columns = exprs_.parse(DType::kI64);
      lexer_.expect(")");
    }
    lexer_.expect("depth");
    std::vector<Expr> depths = parse_list();
    LinesAhead ahead;
    if (lexer_.accept("ahead")) {
      lexer_.expect("(");
      ahead.origin = exprs_.parse(DType::kI64);
      lexer_.expect(",");
      ahead.shift = lexer_.expect_integer("a shift");
      lexer_.expect(")");
      if (lexer_.accept("of")) ahead.buffer = exprs_.parse_buffer();
      ahead.is_soon = lexer_.accept("soon");
    }
    fail_on(token, contract_type_error(c, a, b, rows, columns, live_columns, depths, ahead));
    return Contract::make(arena_, std::move(c), std::move(a), std::move(b), rows, columns,
                          live_columns, std::move(depths), adds, ahead);
  }

  Arena& arena_;
  Lexer& lexer_;
  Names names_;
  ExprParser exprs_;
  int depth_ = 0;
};

}  // namespace

std::vector<Kernel> parse_kernels(Arena& arena, std::string_view text) {
  Lexer lexer(text);
  std::vector<Kernel> kernels;
  do {
    kernels.push_back(KernelParser(arena, lexer).parse());
  } while (!lexer.at_end());
  return kernels;
}

Kernel parse_kernel(Arena& arena, std::string_view text) {
  Lexer lexer(text);
  Kernel kernel = KernelParser(arena, lexer).parse();
  if (!lexer.at_end())
    lexer.fail("expected end of text after one kernel, found ", Lexer::describe(lexer.peek()));
  return kernel;
}

Expr parse_expr(Arena& arena, std::string_view text, std::span<const Variable* const> variables,
                DType dtype) {
  Lexer lexer(text);
  Names names;
  names.open();
  for (const Variable* variable : variables)
    names.define(lexer.peek(), variable->name, {.variable = variable});
  const Expr e = ExprParser(arena, lexer, names, dtype).parse(dtype);
  if (!lexer.at_end())
    lexer.fail("expected end of text after one expression, found ", Lexer::describe(lexer.peek()));
  return e;
}

}  // namespace mlcc::loop
