// mlcc-opt: reads the text of graphs, runs named passes on them, prints the result.
//
//   mlcc-opt file.mlcc [--passes=a,b] [--lower] [--split-input-file] [--verify] [--dump-ir]
//            [--bisect=n] [--no-library] [--no-vnni|--amx|--wide-tiles]
//
// Without passes it parses, verifies and prints. `--passes=pipeline` runs what a compilation runs;
// "-" reads from standard input. `--lower` prints the loop kernels that the graph is fused to, each
// behind its schedule, for one thread of a CPU with vectors of 512 bits, as passes have it too;
// `--no-vnni`: one whose instructions multiply pairs of i16 but no bytes; `--amx`: one with
// registers of whole tiles; `--wide-tiles`: one whose tiles should load little. `--no-library`:
// no call stays for speed's sake. Errors go to
// standard error as "file:line:col: error: ..."; the exit code is then 1.
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fusion/fusion.h"
#include "graph/passes/pipeline.h"
#include "graph/text.h"
#include "loop/text.h"
#include "lower/contractions/tile_options.h"
#include "lower/lower.h"
#include "schedule/machine.h"
#include "support/error.h"

namespace mlcc {
namespace {

constexpr std::string_view kUsage =
    "usage: mlcc-opt file.mlcc [--passes=a,b] [--lower] [--split-input-file] [--verify] "
    "[--dump-ir] [--bisect=n] [--no-library] [--no-vnni|--amx|--wide-tiles]\n";
constexpr std::string_view kPipeline = "pipeline";
constexpr std::string_view kSeparator = "// -----";

struct Command {
  std::string file;
  std::vector<std::string> passes;
  bool lower = false;
  bool split = false;
  bool verify = false;
  bool dump = false;
  bool has_library = true;
  bool has_vnni = true;
  bool has_amx = false;
  bool has_wide_tiles = false;
  int64_t bisect = -1;
};

std::vector<std::string> split_commas(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return parts;
}

int64_t parse_count(std::string_view option, std::string_view text) {
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  MLCC_USER_CHECK(end.ec == std::errc{} && end.ptr == text.data() + text.size(), option,
                  ": expected a number, found '", text, "'");
  return value;
}

void check_passes(const std::vector<std::string>& passes) {
  for (const std::string& pass : passes) {
    if (pass == kPipeline || graph::parse_pass(pass)) continue;
    std::string known(kPipeline);
    for (const graph::PassInfo& info : graph::all_passes()) known += ", " + std::string(info.name);
    throw Error("unknown pass '" + pass + "'; known are " + known);
  }
}

Command parse_command(const std::vector<std::string_view>& words) {
  Command command;
  for (const std::string_view word : words) {
    const size_t equals = std::min(word.find('='), word.size());
    const std::string_view option = word.substr(0, equals);
    const std::string_view value = word.substr(std::min(equals + 1, word.size()));
    if (option == "--passes") {
      command.passes = split_commas(value);
    } else if (option == "--bisect") {
      command.bisect = parse_count(option, value);
    } else if (word == "--split-input-file") {
      command.split = true;
    } else if (word == "--lower") {
      command.lower = true;
    } else if (word == "--verify") {
      command.verify = true;
    } else if (word == "--dump-ir") {
      command.dump = true;
    } else if (word == "--no-vnni") {
      command.has_vnni = false;
    } else if (word == "--no-library") {
      command.has_library = false;
    } else if (word == "--amx") {
      command.has_amx = true;
    } else if (word == "--wide-tiles") {
      command.has_wide_tiles = true;
    } else {
      MLCC_USER_CHECK(word == "-" || !word.starts_with("-"), "unknown option '", word, "'");
      MLCC_USER_CHECK(command.file.empty(), "found two files, '", command.file, "' and '", word,
                      "'");
      command.file = word;
    }
  }
  MLCC_USER_CHECK(!command.file.empty(), "no file given");
  check_passes(command.passes);
  return command;
}

std::string read_file(const std::string& file) {
  std::ifstream stream(file == "-" ? "/dev/stdin" : file, std::ios::binary);
  MLCC_USER_CHECK(stream.good(), file, ": cannot be read");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// The pieces between separator lines. Each begins with as many empty lines as stand before it in
// the file, so that positions in messages are those of the file.
std::vector<std::string> split_text(const std::string& text) {
  std::vector<std::string> pieces(1);
  std::string blank_lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    blank_lines += '\n';
    if (line.starts_with(kSeparator))
      pieces.push_back(blank_lines);
    else
      pieces.back() += line;
    begin = end;
  }
  return pieces;
}

// Messages begin with "line:col: " where they know it.
void report_error(const std::string& file, std::string_view message) {
  const std::string_view digits = "0123456789";
  const size_t colon = message.find_first_not_of(digits);
  const bool has_line = colon != std::string_view::npos && colon > 0 && message[colon] == ':';
  const size_t second = has_line ? message.find_first_not_of(digits, colon + 1) : 0;
  const bool has_position =
      has_line && second > colon + 1 && message.substr(second).starts_with(": ");
  const std::string where =
      has_position ? file + ":" + std::string(message.substr(0, second)) : file;
  if (has_position) message.remove_prefix(second + 2);
  std::fprintf(stderr, "%s: error: %.*s\n", where.c_str(), static_cast<int>(message.size()),
               message.data());
}

schedule::Machine machine_of(const Command& command) {
  return {.dots_bf16 = true,
          .dots_shorts = true,
          .dots_bytes = true,
          .mixes_signs = command.has_vnni,
          .multiplies_tiles = command.has_amx,
          .has_scarce_loads = command.has_wide_tiles,
          .transforms_images = true,
          .widens_weights = true};
}

void run_passes(graph::Graph& graph, const Command& command) {
  graph::PipelineOptions options;
  options.verify = command.verify;
  options.bisect = command.bisect;
  options.has_library = command.has_library;
  options.tiles = lower::tile_options([&command] { return machine_of(command); });
  if (command.dump)
    options.dump = [](std::string_view pass, const graph::Graph& changed) {
      std::fprintf(stderr, "// after %.*s\n%s", static_cast<int>(pass.size()), pass.data(),
                   graph::print(changed).c_str());
    };
  graph::PassRunner runner(graph, options);
  for (const std::string& name : command.passes) {
    if (name == kPipeline)
      graph::run_pipeline(graph, options);
    else
      runner.run(*graph::parse_pass(name));
  }
}

std::string print_kernels(const graph::Graph& graph, const schedule::Machine& machine) {
  const fusion::FusionPlan plan = fusion::plan_fusion(graph, {});
  std::string text;
  for (const fusion::Group& group : plan.groups) {
    loop::Arena arena;
    const lower::LoweredKernel kernel = lower::lower_group(graph, plan, group, machine, arena);
    loop::verify(kernel.kernel);
    text += "// " + kernel.schedule.str() + "\n" + loop::print(kernel.kernel);
  }
  return text;
}

// The text of the piece after all passes; nothing if an error was reported.
std::optional<std::string> process(const std::string& piece, const Command& command) {
  try {
    const auto graph = graph::parse_graph(piece);
    graph::verify(*graph);
    run_passes(*graph, command);
    return command.lower ? print_kernels(*graph, machine_of(command)) : graph::print(*graph);
  } catch (const Error& error) {
    report_error(command.file, error.what());
  } catch (const InternalError& error) {
    report_error(command.file, error.what());
  }
  return std::nullopt;
}

int run(const Command& command) {
  const std::string text = read_file(command.file);
  const std::vector<std::string> pieces =
      command.split ? split_text(text) : std::vector<std::string>{text};
  bool has_failed = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) std::printf("%.*s\n", static_cast<int>(kSeparator.size()), kSeparator.data());
    const auto result = process(pieces[i], command);
    if (result) std::fputs(result->c_str(), stdout);
    has_failed |= !result;
  }
  return has_failed ? 1 : 0;
}

}  // namespace
}  // namespace mlcc

int main(int argc, char** argv) {
  try {
    return mlcc::run(mlcc::parse_command({argv + 1, argv + argc}));
  } catch (const mlcc::Error& error) {
    std::fprintf(stderr, "mlcc-opt: %s\n%s", error.what(), mlcc::kUsage.data());
    return 1;
  }
}
