#include "package/bundle.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "package/layouts.h"
#include "package/object_file.h"
#include "runtime/arena_plan.h"
#include "runtime/plan_memory.h"
#include "support/error.h"

namespace mlcc::package {
namespace {

using runtime::Slot;

int64_t number(const SymExpr& size) {
  const std::optional<int64_t> value = size.as_constant();
  if (!value) throw UnsupportedError("bundle: its sizes vary, those of a bundle are fixed");
  return *value;
}

std::vector<int64_t> numbers(const std::vector<SymExpr>& sizes) {
  std::vector<int64_t> values;
  for (const SymExpr& size : sizes) values.push_back(number(size));
  return values;
}

// Where a slot lies.
struct Place {
  enum class Kind : uint8_t { kNone, kInput, kOutput, kWeight, kArena };
  Kind kind = Kind::kNone;
  int64_t index = 0;   // of an input or output of the function
  int64_t offset = 0;  // in bytes
};

int64_t storage_of(const runtime::TensorSpec& spec) {
  return runtime::storage_bytes(numbers(spec.shape), numbers(spec.strides), dtype_size(spec.dtype));
}

// The places of all slots of a plan whose sizes are fixed.
class Layout {
 public:
  explicit Layout(const Contents& contents)
      : plan_(contents.plan), places_(static_cast<size_t>(plan_.num_slots)) {
    place_inputs(contents);
    for (size_t i = 0; i < plan_.outputs.size(); ++i)
      outputs_.try_emplace(plan_.outputs[i], static_cast<int64_t>(i));
    place_arena();
    for (const runtime::Step& step : plan_.steps)
      if (const auto* view = std::get_if<runtime::ViewStep>(&step)) place_view(*view);
  }

  const Place& operator[](Slot slot) const { return places_[static_cast<size_t>(slot)]; }
  int64_t arena_bytes() const { return arena_bytes_; }

  // Whether kernels write an output where the caller wants it.
  bool is_in_place(size_t output) const {
    const Place& place = (*this)[plan_.outputs[output]];
    return place.kind == Place::Kind::kOutput && place.offset == 0 &&
           place.index == static_cast<int64_t>(output) &&
           allocated_.contains(plan_.outputs[output]);
  }

 private:
  Place& at(Slot slot) { return places_[static_cast<size_t>(slot)]; }

  void place_inputs(const Contents& contents) {
    int64_t given = 0;
    for (size_t i = 0; i < contents.inputs.size(); ++i) {
      const Input& input = contents.inputs[i];
      if (input.kind == InputKind::kGiven)
        places_[i] = {Place::Kind::kInput, given++, 0};
      else if (input.kind == InputKind::kWeight)
        places_[i] = {Place::Kind::kWeight, 0, input.offset};
    }
  }

  // What the program allocates and does not give to the caller.
  void place_arena() {
    std::vector<Slot> slots;
    std::vector<runtime::ArenaRequest> requests;
    std::map<Slot, size_t> alive;
    const auto end = static_cast<int32_t>(plan_.steps.size());
    for (int32_t i = 0; i < end; ++i) {
      const runtime::Step& step = plan_.steps[static_cast<size_t>(i)];
      if (const auto* allocate = std::get_if<runtime::AllocateStep>(&step)) {
        allocated_.emplace(allocate->slot, allocate);
        if (const auto output = outputs_.find(allocate->slot); output != outputs_.end()) {
          at(allocate->slot) = {Place::Kind::kOutput, output->second, 0};
          continue;
        }
        alive[allocate->slot] = requests.size();
        slots.push_back(allocate->slot);
        requests.push_back({storage_of(allocate->spec), i, end});
      }
      // Memory that a result may be a view of is not in the plan's arena, and stays.
      if (const auto* release = std::get_if<runtime::ReleaseStep>(&step))
        for (const Slot slot : release->slots)
          if (const auto found = alive.find(slot);
              found != alive.end() && allocated_.at(slot)->arena)
            requests[found->second].end = i;
    }
    const runtime::ArenaLayout layout = runtime::plan_arena(requests);
    for (size_t i = 0; i < slots.size(); ++i)
      at(slots[i]) = {Place::Kind::kArena, 0, layout.offsets[i]};
    arena_bytes_ = layout.bytes;
  }

  void place_view(const runtime::ViewStep& view) {
    at(view.slot) = at(view.base);
    at(view.slot).offset += number(view.offset) * dtype_size(view.spec.dtype);
  }

  const runtime::ExecutablePlan& plan_;
  std::vector<Place> places_;
  std::map<Slot, int64_t> outputs_;  // the first output that a slot is
  std::map<Slot, const runtime::AllocateStep*> allocated_;
  int64_t arena_bytes_ = 0;
};

// The function as text of LLVM IR.
class Writer {
 public:
  Writer(const Contents& contents, const Layout& layout, const std::string& name,
         int64_t weight_bytes, bool has_weights)
      : contents_(contents), layout_(layout), has_weights_(has_weights),
        weight_bytes_(weight_bytes) {
    for (const Input& input : contents.inputs) num_given_ += input.kind == InputKind::kGiven;
    add("define i32 @", name, "_run(ptr %inputs, ptr %outputs, ptr %arena) nounwind ",
        "\"no-builtins\" {\n");
    add("  %arguments = alloca [4 x ptr]\n  %details = alloca [", runtime::kMaxCheckDetails,
        " x i64]\n  %buffers = alloca [", most_buffers(), " x ptr]\n");
    store("%buffers", "%arguments", 0);
    store("%details", "%arguments", 2);
    store(element("%arena", "i8", std::to_string(layout.arena_bytes())), "%arguments", 3);
    load_pointers();
    size_t launches = 0;
    for (const runtime::Step& step : contents.plan.steps)
      if (const auto* launch = std::get_if<runtime::LaunchStep>(&step))
        add_launch(*launch, contents.entries[launches++]);
    for (size_t i = 0; i < contents.plan.outputs.size(); ++i)
      if (!layout.is_in_place(i)) add_copy(i);
    add("  ret i32 0\n}\n");
    if (has_weights && weight_bytes > 0)
      globals_ += detail::join("@weights = external hidden constant [", weight_bytes, " x i8]\n");
    for (const int64_t entry : entries_)
      globals_ += detail::join("declare hidden i64 @", entry_name(entry), "(ptr, i64, i64)\n");
  }

  static std::string entry_name(int64_t entry) { return "code" + std::to_string(entry); }

  std::string text() const { return globals_ + body_; }
  const std::vector<BundleError>& errors() const { return errors_; }
  const std::set<int64_t>& entries() const { return entries_; }

 private:
  template <typename... Parts>
  void add(const Parts&... parts) {
    body_ += detail::join(parts...);
  }

  std::string fresh() { return "%v" + std::to_string(values_++); }
  std::string label() { return "l" + std::to_string(labels_++); }

  size_t most_buffers() const {
    size_t most = 1;
    for (const runtime::Step& step : contents_.plan.steps)
      if (const auto* launch = std::get_if<runtime::LaunchStep>(&step))
        most = std::max(most, launch->buffers.size());
    return most;
  }

  void store(const std::string& value, const std::string& array, size_t index) {
    const std::string place = element(array, "ptr", std::to_string(index));
    add("  store ptr ", value, ", ptr ", place, "\n");
  }

  std::string element(const std::string& base, const std::string& type, const std::string& index) {
    std::string place = fresh();
    add("  ", place, " = getelementptr inbounds ", type, ", ptr ", base, ", i64 ", index, "\n");
    return place;
  }

  std::string load(const std::string& array, int64_t index) {
    const std::string place = element(array, "ptr", std::to_string(index));
    std::string value = fresh();
    add("  ", value, " = load ptr, ptr ", place, "\n");
    return value;
  }

  void load_pointers() {
    for (int64_t i = 0; i < num_given_; ++i) inputs_.push_back(load("%inputs", i));
    for (size_t i = 0; i < contents_.plan.outputs.size(); ++i)
      outputs_.push_back(load("%outputs", static_cast<int64_t>(i)));
    if (weight_bytes_ > 0) weights_ = has_weights_ ? "@weights" : load("%inputs", num_given_);
  }

  std::string base_of(const Place& place) const {
    switch (place.kind) {
    case Place::Kind::kInput: return inputs_[static_cast<size_t>(place.index)];
    case Place::Kind::kOutput: return outputs_[static_cast<size_t>(place.index)];
    case Place::Kind::kWeight: return weights_;
    case Place::Kind::kArena: return "%arena";
    case Place::Kind::kNone: break;
    }
    MLCC_UNREACHABLE("bundle: a buffer that lies nowhere");
  }

  std::string address_of(Slot slot) {
    const Place& place = layout_[slot];
    const std::string base = base_of(place);
    return place.offset == 0 ? base : element(base, "i8", std::to_string(place.offset));
  }

  void add_launch(const runtime::LaunchStep& launch, const std::vector<int64_t>& entries) {
    for (size_t i = 0; i < launch.buffers.size(); ++i)
      store(address_of(launch.buffers[i]), "%buffers", i);
    if (!launch.sizes.empty()) store(constant_of(numbers(launch.sizes)), "%arguments", 1);
    for (size_t phase = 0; phase < launch.phases.size(); ++phase) {
      const int64_t extent = number(launch.phases[phase].extent);
      if (extent == 0) continue;
      entries_.insert(entries[phase]);
      const std::string code = fresh();
      add("  ", code, " = call i64 @", entry_name(entries[phase]), "(ptr %arguments, i64 0, i64 ",
          extent, ")\n");
      if (!launch.errors.empty()) add_check(launch, code);
    }
  }

  // Returns a status of its own for each check of each launch.
  void add_check(const runtime::LaunchStep& launch, const std::string& code) {
    const std::string next = label();
    std::string cases, blocks;
    for (const runtime::KernelError& error : launch.errors) {
      const std::string failed = label();
      const auto status = static_cast<int64_t>(errors_.size()) + 1;
      errors_.push_back({status, launch.source.empty()
                                     ? error.text
                                     : detail::join(error.text, " (", launch.source, ")")});
      cases += detail::join("    i64 ", error.code, ", label %", failed, "\n");
      blocks += detail::join(failed, ":\n  ret i32 ", status, "\n");
    }
    add("  switch i64 ", code, ", label %", next, " [\n", cases, "  ]\n", blocks, next, ":\n");
  }

  std::string constant_of(const std::vector<int64_t>& values) {
    const auto [found, is_new] =
        constants_.try_emplace(values, detail::join("@n", constants_.size()));
    if (is_new) {
      std::string list;
      for (const int64_t value : values)
        list += detail::join(list.empty() ? "" : ", ", "i64 ", value);
      globals_ += detail::join(found->second, " = private unnamed_addr constant [", values.size(),
                               " x i64] [", list, "]\n");
    }
    return found->second;
  }

  // A loop for each dimension, from the outermost one.
  void add_copy(size_t output) {
    const runtime::TensorSpec& spec =
        *find_output_spec(contents_.plan, contents_.plan.outputs[output]);
    const std::vector<int64_t> sizes = numbers(spec.shape);
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
    add_loops(sizes, numbers(spec.strides), row_major(sizes), dtype_size(spec.dtype),
              address_of(contents_.plan.outputs[output]), outputs_[output]);
  }

  void add_loops(std::span<const int64_t> sizes, std::span<const int64_t> from_strides,
                 std::span<const int64_t> to_strides, int64_t bytes, const std::string& from,
                 const std::string& to) {
    if (sizes.empty()) {
      const std::string type = "i" + std::to_string(8 * bytes), value = fresh();
      add("  ", value, " = load ", type, ", ptr ", from, "\n  store ", type, " ", value, ", ptr ",
          to, "\n");
      return;
    }
    const std::string before = label(), loop = label(), after = label();
    const std::string index = fresh(), next = fresh(), is_done = fresh();
    const std::string from_index = fresh(), to_index = fresh(), end = label();
    add("  br label %", before, "\n", before, ":\n  br label %", loop, "\n", loop, ":\n");
    add("  ", index, " = phi i64 [ 0, %", before, " ], [ ", next, ", %", end, " ]\n");
    add("  ", from_index, " = mul i64 ", index, ", ", from_strides[0] * bytes, "\n");
    add("  ", to_index, " = mul i64 ", index, ", ", to_strides[0] * bytes, "\n");
    const std::string from_here = element(from, "i8", from_index);
    const std::string to_here = element(to, "i8", to_index);
    add_loops(sizes.subspan(1), from_strides.subspan(1), to_strides.subspan(1), bytes, from_here,
              to_here);
    add("  br label %", end, "\n", end, ":\n");
    add("  ", next, " = add i64 ", index, ", 1\n  ", is_done, " = icmp eq i64 ", next, ", ",
        sizes[0], "\n  br i1 ", is_done, ", label %", after, ", label %", loop, "\n", after, ":\n");
  }

  const Contents& contents_;
  const Layout& layout_;
  const bool has_weights_;
  const int64_t weight_bytes_;
  int64_t num_given_ = 0;
  std::string globals_, body_;
  size_t values_ = 0, labels_ = 0;
  std::vector<std::string> inputs_, outputs_;  // pointers
  std::string weights_ = "null";
  std::map<std::vector<int64_t>, std::string> constants_;
  std::set<int64_t> entries_;
  std::vector<BundleError> errors_;
};

BundlePort port_of(const std::string& name, const runtime::TensorSpec& spec, bool is_row_major) {
  std::vector<int64_t> sizes = numbers(spec.shape);
  std::vector<int64_t> strides = is_row_major ? row_major(sizes) : numbers(spec.strides);
  return {name, spec.dtype, std::move(sizes), std::move(strides), false};
}

void add_ports(const Contents& contents, const Layout& layout, Bundle& bundle) {
  const runtime::ExecutablePlan& plan = contents.plan;
  for (size_t i = 0; i < contents.inputs.size(); ++i) {
    if (contents.inputs[i].kind != InputKind::kGiven) continue;
    BundlePort& port =
        bundle.inputs.emplace_back(port_of(contents.inputs[i].name, plan.inputs[i].spec, false));
    port.is_written = std::find(plan.written_inputs.begin(), plan.written_inputs.end(),
                                static_cast<Slot>(i)) != plan.written_inputs.end();
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    bundle.outputs.push_back(port_of(contents.outputs[i].name,
                                     *find_output_spec(plan, plan.outputs[i]),
                                     !layout.is_in_place(i)));
}

}  // namespace

Bundle make_bundle(const PackageFile& package, const BundleOptions& options) {
  if (!package.contents.symbols.empty())
    throw UnsupportedError("bundle: its sizes vary, those of a bundle are fixed");
  const Layout layout(package.contents);
  std::string weights = package.weights.gathered();
  const Writer writer(package.contents, layout, options.name, static_cast<int64_t>(weights.size()),
                      options.has_weights);
  const std::string driver = options.compile(writer.text());
  Image image;
  image.bytes = package.code.code;
  Outside outside;
  for (const int64_t entry : writer.entries()) outside.known[Writer::entry_name(entry)] = entry;
  outside.open.insert("weights");
  const std::string function = options.name + "_run";
  link_behind(image, {driver, {function}}, outside);
  const int64_t place = image.addresses.back()[0];
  Bundle bundle;
  add_ports(package.contents, layout, bundle);
  bundle.errors = writer.errors();
  bundle.stack_bytes = package.stack_bytes + image.stack_bytes;  // kernels, and what calls them
  bundle.arena_bytes = layout.arena_bytes() + package.scratch_bytes;
  bundle.object =
      encode_object({package.code.target.architecture, std::move(image), function, place,
                     options.has_weights ? std::move(weights) : std::string(), "weights"});
  if (!options.has_weights) bundle.weights = std::move(weights);
  return bundle;
}

}  // namespace mlcc::package
