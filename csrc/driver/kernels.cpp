#include "driver/kernels.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "support/error.h"
#include "support/logging.h"

namespace mlcc::driver {
namespace {

using Clock = std::chrono::steady_clock;

// Hexadecimal digits of a key: in a kernel's name, and in a log.
constexpr size_t kNameDigits = 16;
constexpr size_t kLogDigits = 12;

// Of a kernel in its object. The LLVM backend takes the name that stands in the text.
std::string name_in_object(const Hash128& key, const codegen::Backend& backend) {
  return backend.max_batch() > 1 ? "k_" + key.hex().substr(0, kNameDigits) : "k";
}

std::string_view origin_text(runtime::KernelOrigin origin) {
  switch (origin) {
  case runtime::KernelOrigin::kMemory: return "is in memory";
  case runtime::KernelOrigin::kDisk: return "comes from the disk store";
  case runtime::KernelOrigin::kCompiled: return "is new";
  }
  MLCC_UNREACHABLE("kernel origin ", static_cast<int>(origin));
}

int64_t num_threads(const Options& options) {
  static constexpr int64_t kMostThreads = 8;  // unless the option asks for more
  if (options.num_compile_threads > 0) return options.num_compile_threads;
  return std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
}

// Threads take the tasks one after the other.
runtime::RunTasks on_threads(int64_t most) {
  return [most](size_t count, const std::function<void(size_t)>& task) {
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next++; i < count; i = next++) task(i);
    };
    std::vector<std::thread> threads;
    for (int64_t t = 1; t < std::min(most, static_cast<int64_t>(count)); ++t)
      threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  };
}

// Code of a kernel for any arguments, found or compiled when a launch first needs it. Holds all
// that it needs: the graph is gone by then.
runtime::FindGeneralCode general_code(const KernelRequest& request, const DeviceBackend& device,
                                      const Options& options) {
  if (!device.backend->has_general_code()) return nullptr;
  return [request, device, store = store(options)] {
    const Hash128 key = FieldHasher().add("general code").add(request.key.hex()).finish();
    const std::string name = name_in_object(key, *device.backend);
    const auto compile = [&](std::span<const size_t>) -> Result<std::string> {
      Result<codegen::ObjectCode> object =
          device.backend->compile({.kernels = {{request.text, name}}, .is_general = true});
      if (!object) return unsupported(object.reason());
      return std::move(object).value().bytes;
    };
    const runtime::WantedKernel wanted{key,
                                       {.name = name,
                                        .num_phases = request.num_phases,
                                        .label = request.label,
                                        .errors = request.errors}};
    const auto found =
        kernel_cache().find_or_compile({&wanted, 1}, {.loader = *device.loader,
                                                      .store = store.get(),
                                                      .compile = compile,
                                                      .max_batch = device.backend->max_batch()});
    MLCC_CHECK(found[0], "kernel ", request.label, ": ", found[0].reason(), detail::kWhileCompiling,
               request.text);
    return found[0]->kernel;
  };
}

class KernelFinder {
 public:
  KernelFinder(std::span<const KernelRequest> requests, const DeviceBackend& device,
               const Options& options, Dump& dump)
      : requests_(requests), device_(device), options_(options), dump_(dump) {
    for (const KernelRequest& request : requests)
      names_.push_back(name_in_object(request.key, *device.backend));
  }

  std::vector<Result<runtime::FoundKernel>> find() {
    std::vector<runtime::WantedKernel> wanted;
    for (size_t i = 0; i < requests_.size(); ++i)
      wanted.push_back({requests_[i].key,
                        {.name = names_[i],
                         .num_phases = requests_[i].num_phases,
                         .label = requests_[i].label,
                         .errors = requests_[i].errors,
                         .find_general = general_code(requests_[i], device_, options_)}});
    const int64_t threads = num_threads(options_);
    const std::shared_ptr<runtime::Store> disk = store(options_);
    auto results = kernel_cache().find_or_compile(
        wanted, {.loader = *device_.loader,
                 .store = disk.get(),
                 .compile = [this](std::span<const size_t> which) { return compile(which); },
                 .max_batch = device_.backend->max_batch(),
                 .run_tasks = on_threads(threads),
                 .num_threads = threads});
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (!results[i]) continue;
      log(LogChannel::kCache, "kernel ", requests_[i].label, " (", short_key(i), ") ",
          origin_text(results[i]->origin));
      // A dump shows every kernel, also those that need no compiling.
      if (wants_text() && results[i]->origin != runtime::KernelOrigin::kCompiled)
        (void)compile({&i, 1});
    }
    return results;
  }

 private:
  std::string short_key(size_t i) const { return requests_[i].key.hex().substr(0, kLogDigits); }

  bool wants_text() const {
    return device_.backend->target().backend == "cuda" ? dump_.wants("cuda") || dump_.wants("ptx")
                                                       : dump_.wants("llvm") || dump_.wants("asm");
  }

  Result<std::string> compile(std::span<const size_t> which) {
    const Clock::time_point start = Clock::now();
    codegen::CompileRequest request;
    for (const size_t i : which) request.kernels.push_back({requests_[i].text, names_[i]});
    request.want_llvm_text = dump_.wants("llvm");
    request.want_asm_text = dump_.wants("asm");
    request.want_cuda_text = dump_.wants("cuda");
    request.want_ptx_text = dump_.wants("ptx");
    Result<codegen::ObjectCode> object = device_.backend->compile(request);
    if (!object) return unsupported(object.reason());
    const auto microseconds =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
    for (const size_t i : which)
      log(LogChannel::kKernels, "compiled ", requests_[i].label, " (", short_key(i), ")",
          which.size() > 1 ? detail::join(" with ", which.size() - 1, " more") : "", " in ",
          microseconds, " us, ", object->bytes.size(), " bytes");
    dump_texts(*object, short_key(which[0]));
    return std::move(object).value().bytes;
  }

  void dump_texts(const codegen::ObjectCode& object, const std::string& label) {
    const std::lock_guard<std::mutex> lock(dump_mutex_);
    const auto write = [&](std::string_view stage, const std::string& text) {
      if (!text.empty()) dump_.write(stage, label, text);
    };
    write("llvm", object.llvm_text);
    write("asm", object.asm_text);
    write("cuda", object.cuda_text);
    write("ptx", object.ptx_text);
  }

  const std::span<const KernelRequest> requests_;
  const DeviceBackend& device_;
  const Options& options_;
  Dump& dump_;
  std::mutex dump_mutex_;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<runtime::KernelError> to_kernel_errors(const std::vector<loop::ErrorText>& errors) {
  std::vector<runtime::KernelError> result;
  for (const loop::ErrorText& error : errors)
    result.push_back({error.code, error.exception, error.text});
  return result;
}

Hash128 kernel_key(const std::string& text, const codegen::Target& target, const Options& options) {
  return FieldHasher()
      .add("kernel")
      .add(text)
      .add(target.str())
      .add(options.code_fingerprint())
      .finish();
}

std::vector<Result<runtime::FoundKernel>> find_kernels(std::span<const KernelRequest> requests,
                                                       const DeviceBackend& device,
                                                       const Options& options, Dump& dump) {
  MLCC_USER_CHECK(device.cannot_run.empty(), device.cannot_run);
  return KernelFinder(requests, device, options, dump).find();
}

std::vector<std::string> launch_objects(const runtime::ExecutablePlan& plan, const Options& options,
                                        bool has_scratch) {
  std::vector<const runtime::LaunchStep*> launches;
  for (const runtime::Step& step : plan.steps)
    if (const auto* launch = std::get_if<runtime::LaunchStep>(&step)) launches.push_back(launch);
  const codegen::Backend& backend = *cpu_backend(options).backend;
  const std::shared_ptr<runtime::Store> disk = store(options);
  std::vector<Result<std::string>> objects(launches.size(), unsupported("not compiled"));
  on_threads(num_threads(options))(launches.size(), [&](size_t i) {
    const runtime::LaunchStep& launch = *launches[i];
    if (disk != nullptr && !has_scratch)
      if (std::optional<std::string> stored = runtime::stored_object(*disk, launch.key)) {
        objects[i] = std::move(*stored);
        return;
      }
    Result<codegen::ObjectCode> made =
        backend.compile({.kernels = {{launch.kernel_text, name_in_object(launch.key, backend)}},
                         .has_scratch = has_scratch});
    if (made)
      objects[i] = std::move(made->bytes);
    else
      objects[i] = unsupported(made.reason());
  });
  std::vector<std::string> bytes;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (!objects[i])
      throw UnsupportedError(
          detail::join("kernel ", launches[i]->label, ": ", objects[i].reason()));
    bytes.push_back(std::move(objects[i]).value());
  }
  return bytes;
}

}  // namespace mlcc::driver
