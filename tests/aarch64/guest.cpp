#include "guest.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "protocol.h"
#include "support/error.h"

namespace mlcc::aarch64 {
namespace {

constexpr const char* kQemu = "qemu-aarch64";
constexpr const char* kLinker = "aarch64-linux-gnu-ld";
constexpr const char* kRunner = MLCC_AARCH64_RUNNER;
constexpr const char* kLibraries = "/usr/aarch64-linux-gnu";

constexpr const char* kNeeded =
    ": not found; the tests of AArch64 need the Debian packages qemu-user, gcc-aarch64-linux-gnu "
    "and libc6-dev-arm64-cross (scripts/setup.sh test), and to be built with them";

// Starts a program of PATH; file descriptors as in `actions`.
pid_t start(std::vector<std::string> words, const posix_spawn_file_actions_t* actions) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, arguments[0], actions, nullptr, arguments.data(), ::environ);
  MLCC_USER_CHECK(error != ENOENT, words[0], kNeeded);
  MLCC_USER_CHECK(error == 0, words[0], ": ", std::strerror(error));
  return pid;
}

static_assert(sizeof(GuestOrder) <= kOrderBytes);

class Runner {
 public:
  Runner() {
    for (const char* path : {kRunner, kLibraries})
      MLCC_USER_CHECK(std::filesystem::exists(path), path, kNeeded);
    const int file = memfd_create("kernels", 0);
    MLCC_CHECK(file >= 0 && ftruncate(file, kSharedBytes) == 0, "memfd of ", int{kSharedBytes});
    void* memory = mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MLCC_CHECK(memory != MAP_FAILED, "mmap of ", int{kSharedBytes});
    shared_ = static_cast<std::byte*>(memory);
    int orders[2], answers[2];
    MLCC_CHECK(pipe2(orders, O_CLOEXEC) == 0 && pipe2(answers, O_CLOEXEC) == 0, "pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, orders[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, answers[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, file, kSharedFile);
    start({kQemu, "-cpu", "max", "-L", kLibraries, kRunner}, &actions);
    posix_spawn_file_actions_destroy(&actions);
    close(orders[0]);
    close(answers[1]);
    close(file);
    std::signal(SIGPIPE, SIG_IGN);  // of a runner that has ended
    orders_ = orders[1];
    answers_ = answers[0];
    folder_ = (std::filesystem::temp_directory_path() / "mlcc-aarch64-XXXXXX").string();
    MLCC_CHECK(mkdtemp(folder_.data()) != nullptr, "mkdtemp ", folder_);
  }
  ~Runner() {
    close(orders_);
    std::filesystem::remove_all(folder_);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  GuestOrder& order() { return *reinterpret_cast<GuestOrder*>(shared_); }
  std::byte* shared() { return shared_; }

  void carry_out(GuestVerb verb) {
    order().verb = verb;
    char byte = 0;
    const bool is_done = write(orders_, &byte, 1) == 1 && read(answers_, &byte, 1) == 1;
    MLCC_USER_CHECK(is_done, "the runner under qemu has ended: the kernel crashed");
  }

  // The path of a shared library with the object in it. No path twice: the loader would take what
  // it has.
  std::string link(const std::string& object) {
    const std::string source = folder_ + "/k.o";
    const std::string result = detail::join(folder_, "/", ++links_, ".so");
    std::ofstream(source, std::ios::binary) << object;
    const pid_t pid = start({kLinker, "-shared", "-zdefs", "-o", result, source}, nullptr);
    int status = 0;
    MLCC_CHECK(waitpid(pid, &status, 0) == pid && status == 0, "linking for AArch64 failed");
    return result;
  }

 private:
  std::byte* shared_ = nullptr;
  int orders_ = -1, answers_ = -1;
  int64_t links_ = 0;
  std::string folder_;
};

Runner& runner() {
  static Runner instance;
  return instance;
}

// Room for the buffers, each up to a page that is left out, as the runner will have it.
class Layout {
 public:
  Layout(Runner& runner, std::span<const GuestBuffer> buffers) : runner_(runner) {
    MLCC_CHECK(buffers.size() <= kMostBuffers, buffers.size(), " buffers");
    GuestOrder& order = runner.order();
    order.num_buffers = static_cast<int64_t>(buffers.size());
    size_t end = kOrderBytes;
    for (size_t i = 0; i < buffers.size(); ++i) {
      const size_t bytes = buffers[i].memory.size();
      end += (bytes + kGuestPage - 1) / kGuestPage * kGuestPage;
      MLCC_CHECK(end + kGuestPage <= kSharedBytes, "buffers of more than ", int{kSharedBytes});
      places_.push_back(end - bytes);
      order.first_elements[i] = places_[i] + buffers[i].first;
      order.guards[i] = end;
      end += kGuestPage;
    }
  }

  std::byte* place(size_t i) { return runner_.shared() + places_[i]; }

 private:
  Runner& runner_;
  std::vector<size_t> places_;
};

}  // namespace

bool is_guest_code(const std::string& object) {
  constexpr size_t kMachine = 18;  // e_machine of an ELF header
  constexpr char kAArch64 = static_cast<char>(183);
  return object.size() > kMachine && object[kMachine] == kAArch64;
}

GuestKernel::GuestKernel(const std::string& object, std::string name) : name_(std::move(name)) {
  const std::string path = runner().link(object);
  GuestOrder& order = runner().order();
  MLCC_CHECK(path.size() < sizeof order.text, path);
  std::strcpy(order.text, path.c_str());
  runner().carry_out(kOpenCode);
  std::filesystem::remove(path);
  MLCC_USER_CHECK(order.code != 0, name_, ": ", order.text);
  code_ = order.code;
}

GuestKernel::~GuestKernel() {
  runner().order().code = code_;
  try {
    runner().carry_out(kCloseCode);
  } catch (const Error&) {
    // It has ended, and its code with it.
  }
}

runtime::CheckFailure GuestKernel::run(std::span<const GuestBuffer> buffers,
                                       std::span<const int64_t> sizes,
                                       std::span<const GuestRange> ranges) const {
  GuestOrder& order = runner().order();
  Layout layout(runner(), buffers);
  MLCC_CHECK(name_.size() < sizeof order.text && sizes.size() <= kMostSizes &&
                 ranges.size() <= kMostRanges,
             name_, ": too much for an order");
  order.code = code_;
  std::strcpy(order.text, name_.c_str());
  order.num_sizes = static_cast<int64_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), order.sizes);
  order.num_ranges = static_cast<int64_t>(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    order.ranges[3 * i] = ranges[i].phase;
    order.ranges[3 * i + 1] = ranges[i].begin;
    order.ranges[3 * i + 2] = ranges[i].end;
  }
  std::memset(order.details, 0, sizeof order.details);
  for (size_t i = 0; i < buffers.size(); ++i)
    if (!buffers[i].memory.empty())
      std::memcpy(layout.place(i), buffers[i].memory.data(), buffers[i].memory.size());
  runner().carry_out(kRunKernel);
  for (size_t i = 0; i < buffers.size(); ++i)
    if (!buffers[i].memory.empty())
      std::memcpy(buffers[i].memory.data(), layout.place(i), buffers[i].memory.size());
  runtime::CheckFailure failure{.code = order.result};
  std::copy(order.details, order.details + failure.details.size(), failure.details.begin());
  return failure;
}

}  // namespace mlcc::aarch64
