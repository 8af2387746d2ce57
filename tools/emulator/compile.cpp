#include "compile.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "settings.h"

extern char** environ;

namespace mlcc_emulator {
namespace {

namespace fs = std::filesystem;

// -nostdlib leaves out the start files, a tenth of the time; errno of math functions is not CUDA's.
constexpr const char* kFlags[] = {"-O1",
                                  "-ffp-contract=off",
                                  "-fwrapv",
                                  "-fno-strict-aliasing",
                                  "-fno-math-errno",
                                  "-fno-exceptions",
                                  "-fno-rtti",
                                  "-fno-threadsafe-statics",
                                  "-fno-asynchronous-unwind-tables",
                                  "-fvisibility=hidden",
                                  "-fPIC",
                                  "-shared",
                                  "-nostdlib",
                                  "-w",
                                  "-pipe",
                                  "-fdiagnostics-color=never"};

// A folder of its own, removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    if (error) return;
    path_ = (parent / "mlcc_emulator_XXXXXX").string();
    if (!mkdtemp(path_.data())) path_.clear();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  bool exists() const { return !path_.empty(); }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool write_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  return file.good();
}

// Runs a program with its output in a file; its exit status, or -1 with `why`.
int run_program(const std::vector<std::string>& command, const std::string& output,
                std::string& why) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t process = 0;
  const int error =
      posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    why = "cannot start " + command[0] + ": " + std::strerror(error);
    return -1;
  }
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno == EINTR) continue;
    why = command[0] + ": " + std::strerror(errno);
    return -1;
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  why = command[0] + " ended by signal " + std::to_string(WTERMSIG(status));
  return -1;
}

// The whole of what the host's compiler reads. Lines of the program's text keep their numbers.
std::string assemble(const CompileRequest& request, const std::vector<ScannedKernel>& kernels) {
  std::string text(cuda_host_text());
  text += "#define __CUDA_ARCH__ " + std::to_string(request.arch * 10) + "\n";
  for (const std::string& define : request.defines) {
    const size_t equals = define.find('=');
    text += "#define " + define.substr(0, equals) + " " +
            (equals == std::string::npos ? "1" : define.substr(equals + 1)) + "\n";
  }
  text += "#line 1 \"" + request.name + "\"\n" + request.text;
  text += "\n#line 1 \"mlcc_emulator_program\"\n";
  text += "static const mlcc_emulator::Entry mlcc_emulator_entries[] = {\n";
  for (const ScannedKernel& kernel : kernels) {
    text += "  mlcc_emulator::entry_of<&" + kernel.name + ">(\"" + kernel.name + "\"";
    if (!kernel.max_threads.empty())
      text += ", mlcc_emulator::first_of(" + kernel.max_threads + ")";
    text += "),\n";
  }
  text += "  {}};\n"
          "extern \"C\" __attribute__((visibility(\"default\")))\n"
          "const mlcc_emulator::Program* mlcc_emulator_program() {\n"
          "  static const mlcc_emulator::Program program = {mlcc_emulator::kApiVersion, " +
          std::to_string(request.arch) + ", mlcc_emulator_entries, " +
          std::to_string(kernels.size()) +
          ",\n      &__bss_start, &_end,\n"
          "      [](mlcc_emulator::Api* api) { mlcc_emulator::api = api; }};\n"
          "  return &program;\n"
          "}\n";
  return text;
}

}  // namespace

Compiled compile(const CompileRequest& request) {
  Compiled result;
  result.kernels = scan_kernels(request.text);
  const TemporaryFolder folder;
  const std::string source = folder.file("program.cpp"), object = folder.file("program.so");
  const std::string output = folder.file("output");
  if (!folder.exists() || !write_file(source, assemble(request, result.kernels))) {
    result.log = "cannot write to the temporary folder";
    return result;
  }
  std::vector<std::string> command = {settings().cxx};
  command.insert(command.end(), std::begin(kFlags), std::end(kFlags));
  for (const std::string& word :
       {"-std=" + request.standard, source, std::string("-o"), object, std::string("-Wl,-z,defs"),
        std::string("-lm"), std::string("-lc"), std::string("-lgcc")})
    command.push_back(word);
  const int status = run_program(command, output, result.log);
  if (status >= 0) result.log = read_file(output);
  if (status != 0) return result;
  result.object = read_file(object);
  result.ok = !result.object.empty();
  return result;
}

}  // namespace mlcc_emulator
