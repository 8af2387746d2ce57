#include "python/tensors/stolen_weights.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "python/process/without_gil.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::python {

// Guarded by the lock of Weights.
class WatchedWeight {
 public:
  explicit WatchedWeight(const c10::Storage& storage) : storage(storage.getWeakStorageImpl()) {}
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int holds = 0;
  int restores = 0;
  bool is_pointed_to = false;  // someone may have its address
  bool is_guarded = false;     // torch tells us when someone takes it
};

namespace {

// Above autograd, autocast and functorch, and used by nothing in torch but tests.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

constexpr const char* kNoMemory =
    "this weight lies in the order that code compiled with weights=\"steal\" reads, and its memory "
    "is asked for without an op of torch, which would have put it back; call mlcc.clear_packs() "
    "before, or ask weight.detach(), and keep that tensor as long as the address";

std::atomic<int64_t> stolen_count{0}, stolen_bytes{0}, restore_count{0};

// What stands in a stolen storage in the place of memory. Goes with the storage, or once it is
// restored.
struct Stolen {
  StolenBy by;
  Unpack unpack;
  c10::DimVector sizes, strides;
  c10::ScalarType dtype;

  Stolen(StolenBy by, Unpack unpack, const at::Tensor& tensor)
      : by(std::move(by)), unpack(std::move(unpack)), sizes(tensor.sizes()),
        strides(tensor.strides()), dtype(tensor.scalar_type()) {
    ++stolen_count;
    stolen_bytes += this->by.value->bytes();
  }
  ~Stolen() {
    --stolen_count;
    stolen_bytes -= by.value->bytes();
  }
  Stolen(const Stolen&) = delete;
  Stolen& operator=(const Stolen&) = delete;
  static void drop(void* stolen) { delete static_cast<Stolen*>(stolen); }

  // The weight in memory of torch's own, which no dispatcher hears of.
  at::Tensor dense() const {
    const at::Tensor place(at::detail::empty_strided_generic(
        sizes, strides, c10::GetCPUAllocator(), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype));
    unpack(place);
    return place;
  }
};

// A torch before 2.13 tells nobody who asks for the memory of a storage, so no weight can be given
// up. Templates, since its storages have no such members.
template <typename Storage>
concept TellsWhoAsks = requires(Storage& storage) {
  storage.has_materializer();
  storage.clear_data_ptr_access_error_msg_();
};
constexpr bool kCanSteal = TellsWhoAsks<c10::StorageImpl>;

bool has_materializer(const auto& storage) {
  if constexpr (kCanSteal) return storage.has_materializer();
  return false;
}
void set_materializer(auto& storage, void (*materializer)(c10::StorageImpl*)) {
  if constexpr (kCanSteal) storage.set_materializer(materializer);
}
void clear_materializer(auto& storage) {
  if constexpr (kCanSteal) storage.clear_materializer();
}
void allow_access(auto& storage) {
  if constexpr (kCanSteal) storage.clear_data_ptr_access_error_msg_();
}

// Of a storage, without its checks, which are what keeps others away.
c10::DataPtr& memory_of(c10::StorageImpl& storage) { return storage._mutable_data_ptr_no_checks(); }

// Null if it is not stolen.
Stolen* stolen_in(c10::StorageImpl& storage) {
  const c10::DataPtr& memory = memory_of(storage);
  return memory.get_deleter() == &Stolen::drop ? static_cast<Stolen*>(memory.get_context())
                                               : nullptr;
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

// All watched weights of the process; never destroyed.
class Weights {
 public:
  static Weights& process() {
    static auto* const weights = new Weights;
    return *weights;
  }

  // Under the lock.
  std::shared_ptr<WatchedWeight>& find(const c10::Storage& storage) {
    std::shared_ptr<WatchedWeight>& weight = weights_[storage.unsafeGetStorageImpl()];
    // An address is used again.
    if (weight == nullptr || weight->storage.expired())
      weight = std::make_shared<WatchedWeight>(storage);
    return weight;
  }
  WatchedWeight* find_known(c10::StorageImpl* storage) {
    const auto found = weights_.find(storage);
    return found == weights_.end() ? nullptr : found->second.get();
  }
  void forget_freed() {
    std::erase_if(weights_, [](const auto& entry) { return entry.second->storage.expired(); });
  }
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> stolen() {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
    for (const auto& [address, weight] : weights_)
      if (auto storage = weight->storage.lock(); storage && stolen_in(*storage) != nullptr)
        storages.push_back(std::move(storage));
    return storages;
  }

  std::mutex mutex;

 private:
  // A child must not inherit a lock that a thread holds which it does not have.
  Weights() { ::pthread_atfork(before_fork, after_fork, after_fork); }
  static void before_fork() { process().mutex.lock(); }
  static void after_fork() { process().mutex.unlock(); }

  std::unordered_map<c10::StorageImpl*, std::shared_ptr<WatchedWeight>> weights_;
};

// Of all watched weights. A thread waits for it without the GIL, as whoever holds it may log.
class Lock {
 public:
  // `computes`: runs kernels under the lock, which may log from other threads too.
  explicit Lock(bool computes = false) : lock_(Weights::process().mutex, std::defer_lock) {
    if (!computes && lock_.try_lock()) return;
    if (PyGILState_Check() != 0) no_gil_.emplace();
    lock_.lock();
  }

 private:
  std::optional<WithoutGil> no_gil_;  // taken again after the lock is let go
  std::unique_lock<std::mutex> lock_;
};

// Gives the whole pages of memory that is about to be freed to the system: a heap would keep those
// between other blocks.
void drop_pages(void* data, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  // Where the system says no, nothing is lost but memory.
  if (begin < end)
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // NOLINT(*-int-to-ptr)
}

// -- under the lock

void restore(c10::StorageImpl& storage, const Stolen& stolen) {
  const at::Tensor place = stolen.dense();
  storage.set_data_ptr_noswap(std::move(memory_of(storage_of(place))));  // `stolen` is gone
  allow_access(storage);
  ++restore_count;
}

// How many lie over the storage beside its tensor. One that Python has seen also holds itself, by
// its Python object.
int num_others(c10::StorageImpl& storage) {
  const int own = storage.pyobj_slot()->load_pyobj() == nullptr ? 1 : 2;
  return static_cast<int>(c10::raw::intrusive_ptr::use_count(&storage)) - own;
}

// Whoever asks for a watched storage's memory, to write into it as far as torch can tell, while no
// op and no call holds it, may keep the address. As long as he keeps a tensor too that one is
// enough: `torch.save` asks the storages of a state_dict to tell them apart. While a storage of
// Python's answers it is held once more.
void note_pointer(c10::StorageImpl* storage) {
  const Lock lock;
  WatchedWeight* const weight = Weights::process().find_known(storage);
  if (weight == nullptr) return;
  weight->is_guarded = false;
  if (num_others(*storage) < 2) weight->is_pointed_to = true;
}

void guard_address(WatchedWeight& weight, c10::StorageImpl& storage) {
  if (weight.is_pointed_to || stolen_in(storage) != nullptr || has_materializer(storage)) return;
  set_materializer(storage, &note_pointer);
  weight.is_guarded = true;
}

void unguard_address(WatchedWeight& weight, c10::StorageImpl& storage) {
  if (weight.is_guarded) clear_materializer(storage);
  weight.is_guarded = false;
}

bool is_whole(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         static_cast<size_t>(tensor.numel()) * tensor.itemsize() == tensor.storage().nbytes();
}

// Why the weight must stay; empty if it need not.
std::string_view reason_to_stay(const WatchedWeight& weight, const at::Tensor& tensor) {
  c10::StorageImpl& storage = storage_of(tensor);
  if (weight.restores >= kMostRestores) return "ops took it back too often";
  if (weight.is_pointed_to) return "others may have its address";
  if (weight.holds != 1) return "others read it at this time";
  // Files that torch.load read have no allocator; NumPy makes a storage that has one fixed.
  if (memory_of(storage).get_deleter() != c10::GetCPUAllocator()->raw_deleter() ||
      (!storage.resizable() && storage.allocator() != nullptr))
    return "its memory is not torch's alone";
  if (has_materializer(storage)) return "its memory is another storage's until it is written";
  if (!is_whole(tensor)) return "it is a part of its storage";
  if (num_others(storage) > 0) return "other tensors share its memory";
  return {};
}

// -- what torch calls

void hold_tensors(const c10::IValue& value, std::vector<WeightHold>& holds) {
  const auto hold = [&](const at::Tensor& tensor) {
    if (tensor.defined() && is_watched(tensor)) holds.emplace_back(tensor);
  };
  if (value.isTensor()) {
    hold(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) hold(tensor);
  } else if (value.isList()) {  // of tensors or None
    for (const c10::IValue& element : value.toListRef()) hold_tensors(element, holds);
  }
}

void run_with_memory(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  std::vector<WeightHold> holds;
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size()))
    hold_tensors(argument, holds);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// With the first watched tensor, so that nothing changes for who steals no weights.
void install_fallback() {
  static auto* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&run_with_memory>());
    return made;
  }();
  static_cast<void>(library);
}

// torch gives the key set of a tensor to subclasses only.
struct Keys : c10::TensorImpl {
  static void add(c10::TensorImpl& tensor) {
    c10::DispatchKeySet& keys = tensor.*(&Keys::key_set_);
    keys = keys.add(kKey);
  }
};

}  // namespace

bool is_watched(const at::Tensor& tensor) { return tensor.key_set().has(kKey); }

void watch(const at::Tensor& tensor) {
  if constexpr (!kCanSteal) {
    static std::once_flag told;
    std::call_once(told, [] {
      log(LogChannel::kCache, "weights=\"steal\" keeps all weights: it takes torch 2.13");
    });
    return;
  }
  if (is_watched(tensor) || tensor.layout() != c10::Layout::Strided || !tensor.device().is_cpu() ||
      !tensor.has_storage() || tensor.key_set().has(c10::DispatchKey::Python) ||
      tensor.storage().nbytes() < static_cast<size_t>(kLeastStolenBytes))
    return;
  install_fallback();
  const Lock lock;
  Weights::process().forget_freed();
  WatchedWeight& weight = *Weights::process().find(tensor.storage());
  // By others than Python: a DLPack capsule, or a graph of autograd that waits.
  if (tensor.use_count() > 1) weight.is_pointed_to = true;
  if (weight.holds == 0) guard_address(weight, storage_of(tensor));
  Keys::add(*tensor.unsafeGetTensorImpl());
}

bool is_stolen(const c10::Storage& storage) {
  const Lock lock;
  return stolen_in(*storage.unsafeGetStorageImpl()) != nullptr;
}

int64_t address_of(const at::Tensor& tensor) {
  const c10::DataPtr& memory = memory_of(storage_of(tensor));
  const void* const address =
      stolen_in(storage_of(tensor)) == nullptr ? memory.get() : memory.get_context();
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(address));
}

WeightHold::WeightHold(const at::Tensor& tensor, const Hash128* recipe) {
  c10::StorageImpl& storage = storage_of(tensor);
  bool computes = false;
  bool is_last = false;
  for (;;) {
    const Lock lock(computes);
    const Stolen* const stolen = stolen_in(storage);
    const bool is_by_recipe =
        stolen != nullptr && recipe != nullptr && stolen->by.recipe == *recipe;
    if (stolen != nullptr && !is_by_recipe && !computes) {
      computes = true;
      continue;
    }
    std::shared_ptr<WatchedWeight>& weight = Weights::process().find(tensor.storage());
    if (is_by_recipe) {
      value_ = stolen->by.value;
    } else if (stolen != nullptr) {
      const bool paid = stolen->by.value->last_use() - stolen->by.since >= kCallsThatPay;
      restore(storage, *stolen);
      if (!paid) is_last = ++weight->restores == kMostRestores;
    }
    if (weight->holds++ == 0) unguard_address(*weight, storage);
    weight_ = weight;
    break;
  }
  if (is_last)
    log(LogChannel::kCache, "a weight of ", storage.nbytes(), " bytes is stolen no more: ops took ",
        "it back ", kMostRestores, " times");
}

WeightHold& WeightHold::operator=(WeightHold&& other) noexcept {
  if (this == &other) return *this;
  release();
  weight_ = std::move(other.weight_);
  value_ = std::move(other.value_);
  return *this;
}

void WeightHold::release() {
  if (weight_ == nullptr) return;
  value_ = nullptr;
  const std::shared_ptr<WatchedWeight> weight = std::move(weight_);
  const c10::intrusive_ptr<c10::StorageImpl> storage = weight->storage.lock();
  const Lock lock;
  if (--weight->holds == 0 && storage != nullptr) guard_address(*weight, *storage);
}

std::string_view WeightHold::steal(const at::Tensor& tensor, StolenBy by, Unpack unpack) {
  MLCC_CHECK(weight_ != nullptr && value_ == nullptr, "a weight that is not held in its place");
  c10::StorageImpl& storage = storage_of(tensor);
  const Lock lock(true);
  if (const std::string_view reason = reason_to_stay(*weight_, tensor); !reason.empty())
    return reason;
  auto stolen = std::make_unique<Stolen>(std::move(by), std::move(unpack), tensor);
  const at::Tensor dense = stolen->dense();
  void* const memory = memory_of(storage).get();
  const bool is_same = std::memcmp(dense.const_data_ptr(), memory, storage.nbytes()) == 0;
  drop_pages(dense.mutable_data_ptr(), storage.nbytes());
  if (!is_same) return "it is not what its kept value says";
  drop_pages(memory, storage.nbytes());
  value_ = stolen->by.value;
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kNoMemory);
  storage.set_data_ptr_noswap(
      {nullptr, stolen.release(), &Stolen::drop, c10::Device(c10::DeviceType::CPU)});
  return {};
}

StolenInfo stolen_info() { return {stolen_count, stolen_bytes, restore_count}; }

int64_t restore_stolen_weights() {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;  // dropped after the lock
  const Lock lock(true);
  storages = Weights::process().stolen();
  for (const auto& storage : storages) {
    restore(*storage, *stolen_in(*storage));
    WatchedWeight* const weight = Weights::process().find_known(storage.get());
    if (weight->holds == 0) guard_address(*weight, *storage);
  }
  return static_cast<int64_t>(storages.size());
}

}  // namespace mlcc::python
