// The textual form of the loop IR. parse(print(k)) prints the same; the text shows all state.
//
//   kernel @bias_relu(%s0: i64; %x: in f32[%s0, 512], %b: in f32[512], %y: out f32[%s0, 512]) {
//     for %i in 0..%s0 parallel grain(8) {
//       for %j in 0..512 vector(16) unroll(4) {
//         let %v: f32 = %x[%i, %j] + %b[%j]
//         store %y[%i, %j] = max(%v, 0.0)
//       }
//     }
//   }
//
//   grammar, in short
//   kernel   'kernel' @name '(' [sizes ';'] buffers ')'
//            ['errors' '(' code ':' exception "text" , ... ')'] '{' phase ('barrier' phase)* '}'
//   buffer   %name ':' ('in'|'out'|'inout'|'scratch'|'value') dtype '[' shape ']'
//                ['strides' '[' exprs ']']
//   stmt     'let' %v ':' dtype '=' expr
//            'store' ref '=' expr ['if' expr] ['stream']
//            'atomic' op ref '=' expr ['if' expr]
//            'prefetch' ref
//            'for' %i 'in' expr '..' expr mode '{' stmts '}'
//            'reduce' %i 'in' expr '..' expr mode '(' %c ':' dtype '=' expr, ... ')'
//                '{' stmts 'yield' exprs '}'
//                ['combine' '(' %left.., %right.. ')' '{' lets 'yield' exprs '}'] '->' %r, ...
//            'if' expr '{' stmts '}' ['else' '{' stmts '}']
//            'check' expr 'else' code ['(' exprs ')']
//            'alloc' %name ':' ('stack'|'register'|'shared') dtype '[' shape ']'
//            'contract' tile ('+='|'=') tile '*' tile 'tile' '(' rows, columns ')'
//                ['live' '(' expr ')'] 'depth' '(' exprs ')'
//   tile     ref 'by' '(' steps ')' ['rows' '(' exprs ')']
//   mode     ['parallel' ['group' '(' n ')'] ['grain' '(' n ')'] | 'vector' ['(' lanes ')'] |
//   'unrolled' | 'block' |
//            'thread' | 'scan' ['(' lanes ')']] ['unroll' '(' n ')']
//   expr     infix, loosest first: |  ^  &  < <= > >= == != (do not chain)  + -  *; every other op
//            as name(args); dtype(expr) casts; %buf[indices] loads, with a mask:
//            load(%buf[indices], mask, otherwise); -expr is neg(expr), or a negative literal.
//   literal  true, false, 7, -0.5, 1e-3, 0x1.8p+1, inf, -inf, nan. It takes the dtype of its
//            partner, or else of the place where it stands; with neither it is i64 (integer) or f32
//            (decimal point), or written dtype(literal). Floats print as the shortest decimal that
//            reads back the same.
// The text is a tree: an expression that is used twice is written twice. Bind it with a let.
#pragma once

#include <string>
#include <string_view>

#include "loop/ir.h"

namespace mlcc::loop {

std::string print(const Kernel& kernel);
std::string print(Expr e);
std::string print(Stmt stmt);  // with the statements inside, without a final newline
std::string print_literal(DType dtype, uint64_t bits);  // without its dtype: 7, 0.5, -inf, true

// Error "line:col: ..." on malformed or ill-typed text. One kernel, or all those of a file.
Kernel parse_kernel(Arena& arena, std::string_view text);
std::vector<Kernel> parse_kernels(Arena& arena, std::string_view text);
// One expression over the given variables; literals take `dtype` where nothing else decides. For
// scalar formulas.
Expr parse_expr(Arena& arena, std::string_view text, std::span<const Variable* const> variables,
                DType dtype);

// Throws Error with kernel, statement and rule when `kernel` breaks a rule of ir.h (names defined
// once and before use, parallel loops outermost, vector loops not nested in vector loops, local
// shapes constant, codes described ...).
void verify(const Kernel& kernel);

// A canonical copy: names renumbered in order of appearance (%s0.. sizes, %b0.. buffers, %0..
// values), name "k". Kernels that differ only in names have the same canonical text: this is what
// is hashed and compiled.
Kernel canonicalize(Arena& arena, const Kernel& kernel);

}  // namespace mlcc::loop
