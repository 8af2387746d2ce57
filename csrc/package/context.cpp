#include "package/context.h"

#include <utility>

#include "package/status.h"

namespace mlcc::package {
namespace {

constexpr int32_t kMostThreads = 1024;

ThreadPoolPtr pool_of(const mlcc_context_options& options) {
  MLCC_STATUS_CHECK(options.threads >= 0 && options.threads <= kMostThreads, MLCC_INVALID_ARGUMENT,
                    "threads: found ", options.threads, ", expected 0 to ", kMostThreads);
  if (options.parallel_for != nullptr || options.threads <= 1) return nullptr;
  return ThreadPoolPtr(new ThreadPool(options.threads));
}

runtime::ParallelFor parallel_for_of(const mlcc_context_options& options, ThreadPool* pool) {
  using Body = std::function<void(int64_t, int64_t)>;
  if (pool != nullptr)
    return [pool](int64_t count, int64_t grain, const Body& body) {
      pool->parallel_for(count, grain, body);
    };
  if (options.parallel_for == nullptr) return nullptr;
  return [options](int64_t count, int64_t grain, const Body& body) {
    options.parallel_for(
        options.parallel_user, count, grain,
        [](void* data, int64_t begin, int64_t end) {
          (*static_cast<const Body*>(data))(begin, end);
        },
        const_cast<Body*>(&body));
  };
}

}  // namespace

Context::Context(std::shared_ptr<const Package> package, const mlcc_context_options& options)
    : package_(std::move(package)), pool_(pool_of(options)),
      parallel_for_(parallel_for_of(options, pool_.get())), runner_(package_->program(), options) {}

void Context::infer(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs) {
  runner_.infer(inputs, outputs);
}

void Context::run(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs) {
  package_->check_file();
  runner_.run(package_->weights(), inputs, outputs, parallel_for_);
}

}  // namespace mlcc::package
