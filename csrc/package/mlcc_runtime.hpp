// mlcc_runtime.h for C++17: the same functions as classes that close what they open. Errors are
// exceptions here; in the library there are none.
//
//   mlcc_runtime::Package package("classifier.mlcc");
//   mlcc_runtime::Context context(package);
//   std::vector<float> scores(10);
//   context.run({mlcc_runtime::tensor(pixels.data(), {1, 3, 32, 32})},
//               {mlcc_runtime::tensor(scores.data(), {1, 10})});
#ifndef MLCC_RUNTIME_HPP
#define MLCC_RUNTIME_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mlcc_runtime.h"

namespace mlcc_runtime {

class Error : public std::runtime_error {
 public:
  explicit Error(const mlcc_error& error) : std::runtime_error(error.text), status_(error.status) {}
  mlcc_status status() const { return status_; }

 private:
  mlcc_status status_;
};

namespace detail {

// Calls a function of the library, which fills in the error.
template <typename Call>
void check(Call call) {
  mlcc_error error;
  if (call(&error) != MLCC_OK) throw Error(error);
}

inline mlcc_dtype dtype_of(const bool*) { return MLCC_BOOL; }
inline mlcc_dtype dtype_of(const uint8_t*) { return MLCC_U8; }
inline mlcc_dtype dtype_of(const int8_t*) { return MLCC_I8; }
inline mlcc_dtype dtype_of(const int16_t*) { return MLCC_I16; }
inline mlcc_dtype dtype_of(const int32_t*) { return MLCC_I32; }
inline mlcc_dtype dtype_of(const int64_t*) { return MLCC_I64; }
inline mlcc_dtype dtype_of(const float*) { return MLCC_F32; }
inline mlcc_dtype dtype_of(const double*) { return MLCC_F64; }

}  // namespace detail

// Memory of the caller's with its sizes; row-major unless strides are given.
class Tensor {
 public:
  Tensor(void* data, mlcc_dtype dtype, std::vector<int64_t> sizes,
         std::vector<int64_t> strides = {})
      : data_(data), dtype_(dtype), sizes_(std::move(sizes)), strides_(std::move(strides)) {}
  // Holds as long as this.
  mlcc_tensor get() const {
    return {data_, dtype_, static_cast<int32_t>(sizes_.size()), sizes_.data(),
            strides_.empty() ? nullptr : strides_.data()};
  }

 private:
  void* data_;
  mlcc_dtype dtype_;
  std::vector<int64_t> sizes_, strides_;
};

// Of numbers; f16 and bf16, for which C++17 has no type, take the constructor.
template <typename T>
Tensor tensor(T* data, std::vector<int64_t> sizes) {
  return {const_cast<void*>(static_cast<const void*>(data)), detail::dtype_of(data),
          std::move(sizes)};
}

class Package {
 public:
  // `flags`: those of mlcc_package_open.
  explicit Package(const std::string& path, uint32_t flags = 0) {
    mlcc_package* opened = nullptr;
    detail::check(
        [&](mlcc_error* error) { return mlcc_package_open(path.c_str(), flags, &opened, error); });
    package_.reset(opened);
  }

  const mlcc_package* get() const { return package_.get(); }

  // As mlcc_package_refit.
  void refit(const std::vector<std::pair<std::string, Tensor>>& weights) {
    std::vector<mlcc_weight> given;
    for (const auto& [name, tensor] : weights) given.push_back({name.c_str(), tensor.get()});
    detail::check([&](mlcc_error* error) {
      return mlcc_package_refit(package_.get(), given.data(), given.size(), error);
    });
  }

  std::string_view manifest() const {
    size_t size = 0;
    const char* text = mlcc_package_manifest(get(), &size);
    return {text, size};
  }

  // Their pointers live as long as this.
  std::vector<mlcc_tensor_info> inputs() const {
    return infos(mlcc_package_num_inputs(get()), mlcc_package_input);
  }
  std::vector<mlcc_tensor_info> outputs() const {
    return infos(mlcc_package_num_outputs(get()), mlcc_package_output);
  }

 private:
  struct Close {
    void operator()(mlcc_package* package) const { mlcc_package_close(package); }
  };

  template <typename Describe>
  std::vector<mlcc_tensor_info> infos(size_t count, Describe describe) const {
    std::vector<mlcc_tensor_info> infos(count);
    for (size_t i = 0; i < count; ++i) describe(get(), i, &infos[i]);
    return infos;
  }

  std::unique_ptr<mlcc_package, Close> package_;
};

// For one call at a time.
class Context {
 public:
  explicit Context(const Package& package, const mlcc_context_options& options = {}) {
    mlcc_context* created = nullptr;
    detail::check([&](mlcc_error* error) {
      return mlcc_context_create(package.get(), &options, &created, error);
    });
    context_.reset(created);
  }

  // Results are put into the outputs' memory.
  void run(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
    const std::vector<mlcc_tensor> given = plain(inputs);
    std::vector<mlcc_tensor> wanted = plain(outputs);
    detail::check([&](mlcc_error* error) {
      return mlcc_run(context_.get(), given.data(), given.size(), wanted.data(), wanted.size(),
                      error);
    });
  }

  // The sizes of all outputs for inputs of these sizes.
  std::vector<std::vector<int64_t>> infer(const std::vector<Tensor>& inputs, size_t num_outputs) {
    const std::vector<mlcc_tensor> given = plain(inputs);
    std::vector<mlcc_tensor> told(num_outputs);
    detail::check([&](mlcc_error* error) {
      return mlcc_infer(context_.get(), given.data(), given.size(), told.data(), told.size(),
                        error);
    });
    std::vector<std::vector<int64_t>> sizes;
    for (const mlcc_tensor& one : told) sizes.emplace_back(one.sizes, one.sizes + one.rank);
    return sizes;
  }

 private:
  struct Destroy {
    void operator()(mlcc_context* context) const { mlcc_context_destroy(context); }
  };

  static std::vector<mlcc_tensor> plain(const std::vector<Tensor>& tensors) {
    std::vector<mlcc_tensor> all;
    for (const Tensor& one : tensors) all.push_back(one.get());
    return all;
  }

  std::unique_ptr<mlcc_context, Destroy> context_;
};

}  // namespace mlcc_runtime

#endif  // MLCC_RUNTIME_HPP
