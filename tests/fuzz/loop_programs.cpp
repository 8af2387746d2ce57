// Random loop programs through printer, parser, verifier, canonical form, simplifier and
// interpreter: texts are read back to the same text, the canonical form is its own, and no order of
// iterations or partial reductions changes a result.
#include "loop_programs.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "loop/interpreter.h"
#include "loop/run_data.h"
#include "loop/simplifier.h"
#include "loop/text.h"
#include "seeds.h"
#include "support/error.h"

namespace mlcc::fuzz {
namespace {

struct Outcome {
  int64_t code;
  loop::KernelArguments arguments;
};

Outcome run(const loop::Kernel& kernel, const loop::RunDirectives& directives,
            const loop::InterpreterOptions& options) {
  Outcome outcome{0, loop::make_arguments(kernel, directives, {}, 1)};
  outcome.code =
      loop::interpret(kernel, outcome.arguments.sizes, outcome.arguments.pointers(), options);
  return outcome;
}

void check_same(const Outcome& found, const Outcome& expected, std::string_view what) {
  MLCC_CHECK(found.code == expected.code, what, ": ends with code ", found.code, ", expected ",
             expected.code);
  if (found.code != 0) return;
  const auto difference = loop::find_difference(found.arguments, expected.arguments, {});
  MLCC_CHECK(!difference, what, ": ", *difference);
}

void check_text(loop::Arena& arena, const loop::Kernel& kernel) {
  loop::verify(kernel);
  const std::string text = loop::print(kernel);
  loop::Arena other;
  MLCC_CHECK(loop::print(loop::parse_kernel(other, text)) == text,
             "the text is read back to another one");
  const loop::Kernel canonical = loop::canonicalize(arena, kernel);
  loop::verify(canonical);
  const std::string canonical_text = loop::print(canonical);
  MLCC_CHECK(loop::print(loop::canonicalize(arena, canonical)) == canonical_text,
             "the canonical form changes again");
  const loop::Kernel again = loop::parse_kernel(other, text);
  MLCC_CHECK(loop::print(loop::canonicalize(other, again)) == canonical_text,
             "the canonical form depends on the arena");
}

void check(uint64_t seed) {
  RandomProgramOptions options;
  options.floats = seed % 3 != 0;
  const std::string text = random_program(seed, options);
  MLCC_CHECK(random_program(seed, options) == text, "the program is not the same again");
  loop::Arena arena;
  loop::Kernel kernel = loop::parse_kernel(arena, text);
  const loop::RunDirectives directives = loop::parse_directives(text);
  check_text(arena, kernel);

  const Outcome expected = run(kernel, directives, {});
  for (const loop::InterpreterOptions& order :
       {loop::InterpreterOptions{.partials = 1, .seed = seed + 1},
        loop::InterpreterOptions{.partials = 4, .seed = 0},
        loop::InterpreterOptions{.partials = 7, .seed = seed + 2}})
    check_same(run(kernel, directives, order), expected, "another order");

  for (loop::Block& phase : kernel.phases) phase = loop::simplify(arena, phase);
  check_text(arena, kernel);
  check_same(run(kernel, directives, {}), expected, "simplified");
}

}  // namespace
}  // namespace mlcc::fuzz

int main(int argc, char** argv) {
  using namespace mlcc::fuzz;
  const bool prints = std::any_of(argv + 1, argv + argc,
                                  [](std::string_view argument) { return argument == "--print"; });
  return run_seeds(argc, argv, [&](uint64_t seed) {
    if (prints) std::fputs(random_program(seed, {.floats = seed % 3 != 0}).c_str(), stdout);
    check(seed);
  });
}
