#include "python/build/graph_builder.h"

#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "graph/control_flow.h"
#include "graph/text.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;
using graph::TensorType;
using graph::Value;
using Handles = std::vector<ValueHandle>;
using Integers = std::vector<int64_t>;

graph::Attr to_number(const py::object& number, DType dtype) {
  if (is_float(dtype)) return number.cast<double>();
  return number.cast<int64_t>();
}

std::string type_name(py::handle object) {
  return py::cast<std::string>(py::type::of(object).attr("__name__"));
}

DType to_dtype(const std::string& name) {
  const std::optional<DType> dtype = parse_dtype(name);
  MLCC_USER_CHECK(dtype.has_value(), "dtype ", name, ": unknown, expected one like f32 or i64");
  return *dtype;
}

graph::Op to_op(const std::string& text) {
  const std::optional<graph::Op> op = graph::parse_op(text);
  MLCC_USER_CHECK(op.has_value(), "op ", text, ": unknown");
  return *op;
}

// An int, the text of an expression, or a size value.
SymExpr to_size(py::handle object) {
  if (py::isinstance<py::str>(object)) return SymExpr::parse(py::cast<std::string>(object));
  if (py::isinstance<ValueHandle>(object)) return py::cast<ValueHandle>(object).get()->size();
  MLCC_USER_CHECK(py::isinstance<py::int_>(object), "size: found a ", type_name(object),
                  ", expected an int or a text");
  return SymExpr(py::cast<int64_t>(object));
}

std::vector<SymExpr> to_sizes(py::handle object) {
  std::vector<SymExpr> sizes;
  for (py::handle item : py::cast<py::sequence>(object)) sizes.push_back(to_size(item));
  return sizes;
}

py::object from_size(const SymExpr& size) {
  if (const std::optional<int64_t> constant = size.as_constant()) return py::int_(*constant);
  return py::str(size.str());
}

py::list from_sizes(const std::vector<SymExpr>& sizes) {
  py::list list;
  for (const SymExpr& size : sizes) list.append(from_size(size));
  return list;
}

Device to_device(const std::string& name) {
  const std::optional<Device> device = Device::parse(name);
  MLCC_USER_CHECK(device.has_value(), "device ", name,
                  ": unknown, expected one like cpu or cuda:0");
  return *device;
}

TensorType to_type(const std::string& dtype, py::handle shape, py::handle strides,
                   const std::string& device) {
  TensorType type{to_dtype(dtype), to_sizes(shape), {}, to_device(device)};
  if (!strides.is_none()) type.strides = to_sizes(strides);
  return type;
}

// ("sym", "s0*2"), ("dtype", "float32"), ("device", "cpu"), ...
Argument to_tagged(const py::tuple& pair) {
  MLCC_USER_CHECK(pair.size() == 2 && py::isinstance<py::str>(pair[0]) &&
                      py::isinstance<py::str>(pair[1]),
                  "argument: a tuple must be a kind and a text");
  auto kind = py::cast<std::string>(pair[0]);
  auto text = py::cast<std::string>(pair[1]);
  if (kind == "sym") return SymExpr::parse(text);
  return ArgEnum{std::move(kind), std::move(text)};
}

// Arguments of one extern call. Operands are those given, else the values in the arguments in order
// of appearance.
class ArgumentReader {
 public:
  ArgumentReader(const GraphBuilder& builder, const std::optional<Handles>& operands)
      : builder_(builder), collects_(!operands) {
    if (!operands) return;
    for (const ValueHandle& handle : *operands) operands_.push_back(builder.value(handle));
  }

  Argument read(py::handle object) {
    if (object.is_none()) return ArgNone{};
    if (py::isinstance<Argument>(object)) return py::cast<Argument>(object);
    if (py::isinstance<py::bool_>(object)) return py::cast<bool>(object);
    if (py::isinstance<py::int_>(object)) return SymExpr(py::cast<int64_t>(object));
    if (py::isinstance<py::float_>(object)) return py::cast<double>(object);
    if (PyComplex_Check(object.ptr()) != 0) return py::cast<std::complex<double>>(object);
    if (py::isinstance<py::str>(object)) return py::cast<std::string>(object);
    if (py::isinstance<ValueHandle>(object)) return reference(py::cast<ValueHandle>(object));
    if (py::isinstance<py::tuple>(object)) return to_tagged(py::cast<py::tuple>(object));
    MLCC_USER_CHECK(py::isinstance<py::list>(object), "argument: a ", type_name(object),
                    " has no counterpart");
    ArgList list;
    for (py::handle item : py::cast<py::list>(object)) list.push_back(read(item));
    return list;
  }

  std::vector<Value*> take_operands() { return std::move(operands_); }

 private:
  Argument reference(const ValueHandle& handle) {
    Value* value = builder_.value(handle);
    for (size_t i = 0; i < operands_.size(); ++i)
      if (operands_[i] == value) return ArgRef{static_cast<int>(i)};
    MLCC_USER_CHECK(collects_, "argument: %", value->id(), " is not among the operands");
    operands_.push_back(value);
    return ArgRef{static_cast<int>(operands_.size()) - 1};
  }

  const GraphBuilder& builder_;
  const bool collects_;
  std::vector<Value*> operands_;
};

// A dict, or a list of pairs.
py::list items_of(const py::object& kwargs) {
  if (kwargs.is_none()) return py::list();
  if (py::isinstance<py::dict>(kwargs)) return py::list(kwargs.attr("items")());
  return py::list(kwargs);
}

struct PreparedCall {
  graph::ExternCall call;
  std::vector<Value*> operands;
};

PreparedCall prepare_call(const GraphBuilder& builder, const std::string& name,
                          const py::list& args, const py::object& kwargs,
                          const std::optional<Handles>& operands, graph::ExternFacts facts) {
  PreparedCall prepared;
  ArgumentReader reader(builder, operands);
  prepared.call.name = name;
  for (py::handle argument : args) prepared.call.args.push_back(reader.read(argument));
  for (py::handle item : items_of(kwargs)) {
    const auto pair = py::cast<py::tuple>(item);
    prepared.call.kwargs.emplace_back(py::cast<std::string>(pair[0]), reader.read(pair[1]));
  }
  prepared.call.facts = std::move(facts);
  prepared.operands = reader.take_operands();
  return prepared;
}

// Results are (dtype, shape, strides, device) or None: no tensor. In the graph the latter is an
// empty one, which nobody uses.
py::list extern_call(const GraphBuilder& builder, const std::string& name, const py::list& args,
                     const py::object& kwargs, const std::optional<Handles>& operands,
                     const py::list& results, bool random, bool effects, std::vector<int> mutates,
                     bool aliases, bool begins, bool waits, const py::list& regions) {
  PreparedCall prepared =
      prepare_call(builder, name, args, kwargs, operands,
                   {random, effects, std::move(mutates), aliases, begins, waits});
  for (py::handle region : regions)
    prepared.call.regions.push_back(py::cast<GraphBuilder&>(region).take());
  if (!prepared.call.regions.empty())
    prepared.call.facts = graph::facts_of_regions(prepared.call.regions);
  std::vector<TensorType> types;
  for (py::handle result : results) {
    if (result.is_none()) {
      types.push_back({DType::kF32, {SymExpr(0)}, {}});
      continue;
    }
    const auto type = py::cast<py::tuple>(result);
    types.push_back(to_type(py::cast<std::string>(type[0]), type[1],
                            type.size() > 2 ? py::object(type[2]) : py::object(py::none()),
                            type.size() > 3 ? py::cast<std::string>(type[3]) : "cpu"));
  }
  const std::vector<Value*> values = builder.graph().extern_call(
      std::move(prepared.call), std::move(prepared.operands), std::move(types));
  py::list handles;
  for (size_t i = 0; i < values.size(); ++i)
    handles.append(results[i].is_none() ? py::none() : py::cast(builder.handle(values[i])));
  return handles;
}

ValueHandle extern_size(const GraphBuilder& builder, const std::string& name, const py::list& args,
                        const py::object& kwargs, const std::optional<Handles>& operands,
                        const py::object& size, bool random, bool effects, std::vector<int> mutates,
                        bool aliases) {
  PreparedCall prepared = prepare_call(builder, name, args, kwargs, operands,
                                       {random, effects, std::move(mutates), aliases});
  return builder.handle(builder.graph().extern_size(std::move(prepared.call),
                                                    std::move(prepared.operands), to_size(size)));
}

void add_symbol(const GraphBuilder& builder, const std::string& name, std::optional<int64_t> low,
                std::optional<int64_t> high, std::optional<int64_t> hint) {
  builder.graph().add_symbol({name, {low.value_or(0), high.value_or(kUnboundedHigh)}, hint});
}

std::vector<Value*> values_of(const GraphBuilder& builder, const Handles& handles) {
  std::vector<Value*> values;
  for (const ValueHandle& handle : handles) values.push_back(builder.value(handle));
  return values;
}

void bind_value(py::module_& module) {
  py::class_<Argument>(module, "Argument", "An argument of an extern call, made by GraphBuilder.");
  py::class_<ValueHandle>(module, "Value", "A value of a graph under construction.")
      .def_property_readonly(
          "is_size",
          [](const ValueHandle& v) { return v.get()->kind() == graph::ValueKind::kSize; })
      .def_property_readonly(
          "dtype",
          [](const ValueHandle& v) { return std::string(dtype_name(v.get()->type().dtype)); })
      .def_property_readonly("shape",
                             [](const ValueHandle& v) { return from_sizes(v.get()->type().shape); })
      .def_property_readonly(
          "strides",
          [](const ValueHandle& v) { return from_sizes(v.get()->type().dense_or_strides()); })
      .def_property_readonly("device",
                             [](const ValueHandle& v) { return v.get()->type().device.str(); })
      .def_property_readonly("size",
                             [](const ValueHandle& v) { return from_size(v.get()->size()); })
      .def("__repr__",
           [](const ValueHandle& v) { return "<value %" + std::to_string(v.get()->id()) + ">"; });
}

using Builder = py::class_<GraphBuilder>;

void bind_inputs(Builder& builder) {
  builder
      .def("add_symbol", &add_symbol, py::arg("name"), py::arg("low") = py::none(),
           py::arg("high") = py::none(), py::arg("hint") = py::none())
      .def(
          "add_input",
          [](const GraphBuilder& b, const std::string& name, const std::string& dtype,
             const py::sequence& shape, const py::object& strides, const std::string& device,
             bool is_static, const std::optional<std::pair<int64_t, int64_t>>& range) {
            std::optional<SymRange> promised;
            if (range) promised = SymRange{range->first, range->second};
            return b.handle(b.graph().add_input(name, to_type(dtype, shape, strides, device),
                                                is_static, promised));
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("strides") = py::none(),
          py::arg("device") = "cpu", py::arg("static") = false, py::arg("range") = py::none())
      .def(
          "add_size_input",
          [](const GraphBuilder& b, const std::string& name, const py::object& size) {
            return b.handle(b.graph().add_size_input(name, to_size(size)));
          },
          py::arg("name"), py::arg("size"))
      .def(
          "set_outputs",
          [](const GraphBuilder& b, const Handles& values) {
            b.graph().set_outputs(values_of(b, values));
          },
          py::arg("values"))
      .def(
          "set_strides",
          [](const GraphBuilder& b, const ValueHandle& value, const py::sequence& strides) {
            b.graph().set_strides(b.value(value), to_sizes(strides));
          },
          py::arg("value"), py::arg("strides"))
      .def(
          "set_source",
          [](const GraphBuilder& b, const ValueHandle& value, std::string source) {
            if (graph::Node* node = b.value(value)->producer()) node->set_source(std::move(source));
          },
          py::arg("value"), py::arg("source"));
}

void bind_pointwise_and_index_maps(Builder& builder) {
  builder
      .def(
          "pointwise",
          [](const GraphBuilder& b, const std::string& op, const Handles& operands) {
            return b.handle(b.graph().pointwise(to_op(op), values_of(b, operands)));
          },
          py::arg("op"), py::arg("operands"))
      .def(
          "cast",
          [](const GraphBuilder& b, const ValueHandle& value, const std::string& dtype) {
            return b.handle(b.graph().cast(b.value(value), to_dtype(dtype)));
          },
          py::arg("value"), py::arg("dtype"))
      .def(
          "permute",
          [](const GraphBuilder& b, const ValueHandle& value, Integers dims) {
            return b.handle(b.graph().permute(b.value(value), std::move(dims)));
          },
          py::arg("value"), py::arg("dims"))
      .def(
          "expand",
          [](const GraphBuilder& b, const ValueHandle& value, const py::sequence& shape) {
            return b.handle(b.graph().expand(b.value(value), to_sizes(shape)));
          },
          py::arg("value"), py::arg("shape"))
      .def(
          "reshape",
          [](const GraphBuilder& b, const ValueHandle& value, const py::sequence& shape) {
            return b.handle(b.graph().reshape(b.value(value), to_sizes(shape)));
          },
          py::arg("value"), py::arg("shape"))
      .def(
          "slice",
          [](const GraphBuilder& b, const ValueHandle& value, int64_t dim, const py::object& start,
             const py::object& length, int64_t step) {
            return b.handle(
                b.graph().slice(b.value(value), dim, to_size(start), to_size(length), step));
          },
          py::arg("value"), py::arg("dim"), py::arg("start"), py::arg("length"),
          py::arg("step") = 1)
      .def(
          "flip",
          [](const GraphBuilder& b, const ValueHandle& value, Integers dims) {
            return b.handle(b.graph().flip(b.value(value), std::move(dims)));
          },
          py::arg("value"), py::arg("dims"))
      .def(
          "window",
          [](const GraphBuilder& b, const ValueHandle& value, int64_t dim, const py::object& count,
             const py::object& size, int64_t step, int64_t dilation) {
            return b.handle(b.graph().window(b.value(value), dim, to_size(count), to_size(size),
                                             step, dilation));
          },
          py::arg("value"), py::arg("dim"), py::arg("count"), py::arg("size"), py::arg("step") = 1,
          py::arg("dilation") = 1)
      .def(
          "spread",
          [](const GraphBuilder& b, const ValueHandle& value, int64_t dim, const py::object& count,
             const py::object& size) {
            return b.handle(b.graph().spread(b.value(value), dim, to_size(count), to_size(size)));
          },
          py::arg("value"), py::arg("dim"), py::arg("count"), py::arg("size"))
      .def(
          "extend",
          [](const GraphBuilder& b, const ValueHandle& value, int64_t dim, int64_t before,
             const py::object& extent, std::string mode) {
            return b.handle(
                b.graph().extend(b.value(value), dim, before, to_size(extent), std::move(mode)));
          },
          py::arg("value"), py::arg("dim"), py::arg("before"), py::arg("extent"), py::arg("mode"))
      .def(
          "pad",
          [](const GraphBuilder& b, const ValueHandle& value, int64_t dim, int64_t before,
             const py::object& extent, const py::object& number) {
            return b.handle(b.graph().pad(b.value(value), dim, before, to_size(extent),
                                          to_number(number, b.value(value)->type().dtype)));
          },
          py::arg("value"), py::arg("dim"), py::arg("before"), py::arg("extent"), py::arg("number"))
      .def(
          "cat",
          [](const GraphBuilder& b, const Handles& values, int64_t dim) {
            return b.handle(b.graph().cat(values_of(b, values), dim));
          },
          py::arg("values"), py::arg("dim"));
}

void bind_reductions_and_creation(Builder& builder) {
  builder
      .def(
          "reduce",
          [](const GraphBuilder& b, const std::string& op, const ValueHandle& value, Integers dims,
             bool keepdim) {
            return b.handle(b.graph().reduce(to_op(op), b.value(value), std::move(dims), keepdim));
          },
          py::arg("op"), py::arg("value"), py::arg("dims"), py::arg("keepdim"))
      .def(
          "full",
          [](const GraphBuilder& b, const py::sequence& shape, const std::string& dtype,
             double value, const std::string& device) {
            return b.handle(
                b.graph().full(to_sizes(shape), to_dtype(dtype), value, to_device(device)));
          },
          py::arg("shape"), py::arg("dtype"), py::arg("value"), py::arg("device") = "cpu")
      .def(
          "full_int",
          [](const GraphBuilder& b, const py::sequence& shape, const std::string& dtype,
             int64_t value, const std::string& device) {
            return b.handle(
                b.graph().full_int(to_sizes(shape), to_dtype(dtype), value, to_device(device)));
          },
          py::arg("shape"), py::arg("dtype"), py::arg("value"), py::arg("device") = "cpu")
      .def(
          "iota",
          [](const GraphBuilder& b, const py::object& length, const std::string& dtype,
             const py::object& start, const py::object& step, const std::string& device) {
            return b.handle(b.graph().iota(to_size(length), to_dtype(dtype), to_size(start),
                                           to_size(step), to_device(device)));
          },
          py::arg("length"), py::arg("dtype"), py::arg("start") = 0, py::arg("step") = 1,
          py::arg("device") = "cpu")
      .def(
          "size_value",
          [](const GraphBuilder& b, const py::object& size, const std::string& device) {
            return b.handle(b.graph().size_value(to_size(size), to_device(device)));
          },
          py::arg("size"), py::arg("device") = "cpu")
      .def(
          "size_result",
          [](const GraphBuilder& b, const py::object& size) {
            return b.handle(b.graph().size_result(to_size(size)));
          },
          py::arg("size"))
      .def(
          "take",
          [](const GraphBuilder& b, const ValueHandle& x, const Handles& indices, int64_t dim,
             bool wrap, std::string error) {
            return b.handle(
                b.graph().take(b.value(x), values_of(b, indices), dim, wrap, std::move(error)));
          },
          py::arg("x"), py::arg("indices"), py::arg("dim"), py::arg("wrap"), py::arg("error"))
      .def(
          "gather",
          [](const GraphBuilder& b, const ValueHandle& x, const ValueHandle& index, int64_t dim,
             std::string error) {
            return b.handle(b.graph().gather(b.value(x), b.value(index), dim, std::move(error)));
          },
          py::arg("x"), py::arg("index"), py::arg("dim"), py::arg("error") = "gather");
}

void bind_updates_and_scans(Builder& builder) {
  builder
      .def(
          "scatter",
          [](const GraphBuilder& b, const ValueHandle& base, const ValueHandle& index,
             const ValueHandle& src, int64_t dim, std::string combine, bool ordered,
             std::string error) {
            return b.handle(b.graph().scatter(b.value(base), b.value(index), b.value(src), dim,
                                              std::move(combine), ordered, std::move(error)));
          },
          py::arg("base"), py::arg("index"), py::arg("src"), py::arg("dim"), py::arg("combine"),
          py::arg("ordered"), py::arg("error") = "scatter")
      .def(
          "index_put",
          [](const GraphBuilder& b, const ValueHandle& base, const Handles& indices,
             const ValueHandle& src, int64_t dim, std::string combine, bool ordered, bool wrap,
             std::string error) {
            return b.handle(b.graph().index_put(b.value(base), values_of(b, indices), b.value(src),
                                                dim, std::move(combine), ordered, wrap,
                                                std::move(error)));
          },
          py::arg("base"), py::arg("indices"), py::arg("src"), py::arg("dim"), py::arg("combine"),
          py::arg("ordered"), py::arg("wrap"), py::arg("error"))
      .def(
          "scan",
          [](const GraphBuilder& b, const ValueHandle& x, int64_t dim, std::string combine) {
            return b.handle(b.graph().scan(b.value(x), dim, std::move(combine)));
          },
          py::arg("x"), py::arg("dim"), py::arg("combine"));
}

void bind_attention(Builder& builder) {
  builder.def(
      "attend_gradients",
      [](const GraphBuilder& b, const ValueHandle& weights, const ValueHandle& of_scores,
         const ValueHandle& of_means, const ValueHandle& queries, const ValueHandle& keys) {
        return b.handle(b.graph().attend_gradients(b.value(weights), b.value(of_scores),
                                                   b.value(of_means), b.value(queries),
                                                   b.value(keys)));
      },
      py::arg("weights"), py::arg("of_scores"), py::arg("of_means"), py::arg("queries"),
      py::arg("keys"));
}

void bind_extern(Builder& builder) {
  builder
      .def("extern_call", &extern_call, py::arg("name"), py::arg("args"),
           py::arg("kwargs") = py::none(), py::arg("operands") = py::none(),
           py::arg("results") = py::list(), py::kw_only(), py::arg("random") = false,
           py::arg("effects") = false, py::arg("mutates") = std::vector<int>{},
           py::arg("aliases") = false, py::arg("begins") = false, py::arg("waits") = false,
           py::arg("regions") = py::list())
      .def("extern_size", &extern_size, py::arg("name"), py::arg("args"),
           py::arg("kwargs") = py::none(), py::arg("operands") = py::none(), py::arg("size"),
           py::kw_only(), py::arg("random") = false, py::arg("effects") = false,
           py::arg("mutates") = std::vector<int>{}, py::arg("aliases") = false)
      .def_static(
          "reference", [](int place) { return Argument(ArgRef{place}); }, py::arg("place"))
      .def_static(
          "enum",
          [](std::string kind, std::string name) {
            return Argument(ArgEnum{std::move(kind), std::move(name)});
          },
          py::arg("kind"), py::arg("name"))
      .def_static(
          "size", [](const py::object& size) { return Argument(to_size(size)); }, py::arg("size"));
}

}  // namespace

Value* ValueHandle::get() const {
  MLCC_USER_CHECK(state->graph != nullptr, "value: its graph was compiled already");
  return value;
}

GraphBuilder::GraphBuilder(const std::string& name)
    : GraphBuilder(std::make_unique<graph::Graph>(name)) {}

GraphBuilder::GraphBuilder(std::unique_ptr<graph::Graph> graph)
    : state_(std::make_shared<GraphState>()) {
  state_->graph = std::move(graph);
}

GraphBuilder GraphBuilder::parse(const std::string& text) {
  return GraphBuilder(graph::parse_graph(text));
}

graph::Graph& GraphBuilder::graph() const {
  MLCC_USER_CHECK(state_->graph != nullptr, "graph builder: its graph was compiled already");
  return *state_->graph;
}

std::unique_ptr<graph::Graph> GraphBuilder::take() {
  graph();
  return std::move(state_->graph);
}

Value* GraphBuilder::value(const ValueHandle& handle) const {
  MLCC_USER_CHECK(handle.state == state_, "value: it belongs to another graph");
  return handle.get();
}

void bind_graph_builder(py::module_& module) {
  bind_value(module);
  Builder builder(module, "GraphBuilder", "A graph of the graph IR under construction.");
  builder.def(py::init<const std::string&>(), py::arg("name") = "graph")
      .def_static("parse", &GraphBuilder::parse, py::arg("text"))
      .def("print", [](const GraphBuilder& b) { return graph::print(b.graph()); })
      .def("verify", [](const GraphBuilder& b) { graph::verify(b.graph()); })
      .def_property_readonly("name", [](const GraphBuilder& b) { return b.graph().name(); });
  bind_inputs(builder);
  bind_pointwise_and_index_maps(builder);
  bind_reductions_and_creation(builder);
  bind_updates_and_scans(builder);
  bind_attention(builder);
  bind_extern(builder);
}

}  // namespace mlcc::python
