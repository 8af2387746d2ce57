// The C functions: exceptions of the C++ inside end here.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "package/context.h"
#include "package/mlcc_runtime.h"
#include "package/package.h"
#include "package/status.h"

struct mlcc_package {
  std::shared_ptr<mlcc::package::Package> package;
};

struct mlcc_context {
  mlcc::package::Context context;
};

namespace {

using mlcc::package::StatusError;

mlcc_status tell(mlcc_error* error, mlcc_status status, std::string_view text) {
  if (error != nullptr) {
    error->status = status;
    const size_t size = std::min(text.size(), sizeof(error->text) - 1);
    std::memcpy(error->text, text.data(), size);
    error->text[size] = '\0';
  }
  return status;
}

template <typename Body>
mlcc_status guarded(mlcc_error* error, Body body) {
  try {
    body();
    return tell(error, MLCC_OK, "");
  } catch (const StatusError& failure) {
    return tell(error, failure.status(), failure.what());
  } catch (const mlcc::Error& failure) {
    return tell(error, MLCC_INVALID_FILE, failure.what());
  } catch (const std::bad_alloc&) {
    return tell(error, MLCC_OUT_OF_MEMORY, "no memory");
  } catch (const std::exception& failure) {
    return tell(error, MLCC_INTERNAL, failure.what());
  } catch (...) {
    return tell(error, MLCC_INTERNAL, "an exception of unknown type");
  }
}

void check_not_null(const void* pointer, const char* name) {
  MLCC_STATUS_CHECK(pointer != nullptr, MLCC_INVALID_ARGUMENT, name, " is null");
}

mlcc_status describe(const std::vector<mlcc::package::Port>& ports, size_t index,
                     mlcc_tensor_info* info) {
  if (index >= ports.size() || info == nullptr) return MLCC_INVALID_ARGUMENT;
  *info = ports[index].info();
  return MLCC_OK;
}

}  // namespace

extern "C" {

const char* mlcc_runtime_version(void) { return MLCC_VERSION; }

mlcc_status mlcc_package_open(const char* path, uint32_t flags, mlcc_package** package,
                              mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(path, "path");
    check_not_null(package, "package");
    *package = nullptr;
    *package = new mlcc_package{mlcc::package::Package::open(path, flags)};
  });
}

mlcc_status mlcc_package_open_memory(const void* bytes, size_t size, uint32_t flags,
                                     mlcc_package** package, mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(bytes, "bytes");
    check_not_null(package, "package");
    *package = nullptr;
    const std::string_view contents(static_cast<const char*>(bytes), size);
    *package = new mlcc_package{mlcc::package::Package::open_memory(contents, flags)};
  });
}

void mlcc_package_close(mlcc_package* package) { delete package; }

const char* mlcc_package_manifest(const mlcc_package* package, size_t* size) {
  const std::string_view manifest =
      package == nullptr ? std::string_view() : package->package->manifest();
  if (size != nullptr) *size = manifest.size();
  return manifest.data();
}

size_t mlcc_package_num_inputs(const mlcc_package* package) {
  return package == nullptr ? 0 : package->package->program().ports().inputs().size();
}

size_t mlcc_package_num_outputs(const mlcc_package* package) {
  return package == nullptr ? 0 : package->package->program().ports().outputs().size();
}

mlcc_status mlcc_package_input(const mlcc_package* package, size_t index, mlcc_tensor_info* info) {
  return package == nullptr ? MLCC_INVALID_ARGUMENT
                            : describe(package->package->program().ports().inputs(), index, info);
}

mlcc_status mlcc_package_output(const mlcc_package* package, size_t index, mlcc_tensor_info* info) {
  return package == nullptr ? MLCC_INVALID_ARGUMENT
                            : describe(package->package->program().ports().outputs(), index, info);
}

mlcc_status mlcc_package_arena_bytes(const mlcc_package* package, const mlcc_tensor* inputs,
                                     size_t num_inputs, size_t* bytes, mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(package, "package");
    check_not_null(bytes, "bytes");
    if (num_inputs > 0) check_not_null(inputs, "inputs");
    const mlcc::package::Program& program = package->package->program();
    *bytes = static_cast<size_t>(
        program.executable().arena_bytes(program.ports().bind({inputs, num_inputs})));
  });
}

mlcc_status mlcc_package_num_weights(const mlcc_package* package, size_t* count,
                                     mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(package, "package");
    check_not_null(count, "count");
    *count = package->package->refit()->weights().size();
  });
}

mlcc_status mlcc_package_weight(const mlcc_package* package, size_t index, mlcc_tensor_info* info,
                                mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(package, "package");
    check_not_null(info, "info");
    const std::vector<mlcc::package::Port>& weights = package->package->refit()->weights();
    MLCC_STATUS_CHECK(index < weights.size(), MLCC_INVALID_ARGUMENT, "weight ", index,
                      ": the package has ", weights.size());
    *info = weights[index].info();
  });
}

mlcc_status mlcc_package_refit(mlcc_package* package, const mlcc_weight* weights,
                               size_t num_weights, mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(package, "package");
    if (num_weights > 0) check_not_null(weights, "weights");
    package->package->exchange_weights({weights, num_weights});
  });
}

mlcc_status mlcc_context_create(const mlcc_package* package, const mlcc_context_options* options,
                                mlcc_context** context, mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(package, "package");
    check_not_null(context, "context");
    *context = nullptr;
    *context = new mlcc_context{
        {package->package, options == nullptr ? mlcc_context_options{} : *options}};
  });
}

void mlcc_context_destroy(mlcc_context* context) { delete context; }

mlcc_status mlcc_run(mlcc_context* context, const mlcc_tensor* inputs, size_t num_inputs,
                     mlcc_tensor* outputs, size_t num_outputs, mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(context, "context");
    if (num_inputs > 0) check_not_null(inputs, "inputs");
    if (num_outputs > 0) check_not_null(outputs, "outputs");
    context->context.run({inputs, num_inputs}, {outputs, num_outputs});
  });
}

mlcc_status mlcc_infer(mlcc_context* context, const mlcc_tensor* inputs, size_t num_inputs,
                       mlcc_tensor* outputs, size_t num_outputs, mlcc_error* error) {
  return guarded(error, [&] {
    check_not_null(context, "context");
    if (num_inputs > 0) check_not_null(inputs, "inputs");
    if (num_outputs > 0) check_not_null(outputs, "outputs");
    context->context.infer({inputs, num_inputs}, {outputs, num_outputs});
  });
}

}  // extern "C"
