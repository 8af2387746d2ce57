"""mlcc._C: building graphs, running extern calls, and what a call does to its inputs."""

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc._load import load_core

core = load_core()
F32 = "f32"


def one_call(
    name: str,
    args_of: Callable[..., Any],
    results: list[Any],
    inputs: list[Any],
    **facts: Any,
) -> Any:
    """An executable of one extern call; `args_of` maps the input values to its arguments."""
    builder = core.GraphBuilder("one_call")
    values = [builder.add_input(f"x{i}", *type_) for i, type_ in enumerate(inputs)]
    outputs = builder.extern_call(name, args_of(*values), results=results, **facts)
    builder.set_outputs([value for value in outputs if value is not None])
    return core.compile(builder)


# -- building


def test_builder_prints_what_it_was_told() -> None:
    builder = core.GraphBuilder("f")
    builder.add_symbol("s0", 2, 4096, 128)
    x = builder.add_input("x", "f32", ["s0", 512])
    b = builder.add_input("b", "f32", [512])
    y = builder.pointwise("relu", [builder.pointwise("add", [x, b])])
    row = builder.reduce("sum", builder.cast(y, "f64"), [1], False)
    builder.set_outputs([y, row, builder.size_result("s0*2 + 1")])
    text = builder.print()
    assert "graph @f(%x: f32[s0, 512], %b: f32[512])" in text
    assert "s0 in 2..4096 hint 128" in text
    assert core.GraphBuilder.parse(text).print() == text
    builder.verify()


def test_values_show_their_types() -> None:
    builder = core.GraphBuilder()
    builder.add_symbol("s0")
    n = builder.add_size_input("n", "s0")
    x = builder.add_input("x", "bf16", ["s0", 4])
    t = builder.permute(x, [1, 0])
    builder.set_strides(t, [1, 4])
    assert (t.dtype, t.shape, t.strides, t.is_size) == ("bf16", [4, "s0"], [1, 4], False)
    assert (n.is_size, n.size) == (True, "s0")
    assert builder.expand(x, [3, "s0", 4]).shape == [3, "s0", 4]


def test_every_building_function() -> None:
    builder = core.GraphBuilder()
    x = builder.add_input("x", "f32", [4, 6])
    i = builder.add_input("i", "i64", [5])
    j = builder.add_input("j", "i64", [4, 2])
    outputs = [
        builder.reshape(x, [3, 8]),
        builder.slice(x, 1, 1, 2, 2),
        builder.flip(x, [0]),
        builder.cat([x, x], 0),
        builder.full([2], "f32", 1.5),
        builder.full_int([2], "i64", -3),
        builder.iota(4, "i64", 1, 2),
        builder.size_value(7),
        builder.take(x, [i], 0, True, "index"),
        builder.gather(x, j, 1),
    ]
    shapes = [[3, 8], [4, 2], [4, 6], [8, 6], [2], [2], [4], [], [5, 6], [4, 2]]
    assert [value.shape for value in outputs] == shapes
    builder.set_outputs(outputs)
    builder.verify()


def test_extern_arguments_of_every_kind() -> None:
    builder = core.GraphBuilder()
    builder.add_symbol("s0")
    x = builder.add_input("x", "f32", ["s0"])
    args = [x, None, True, 3, 0.5, "text", ("sym", "s0*2"), [x, None, 1], ("dtype", "float32")]
    kwargs = {"layout": ("layout", "strided"), "device": ("device", "cpu")}
    (y,) = builder.extern_call("my.op.default", args, kwargs, results=[("f32", [2])], effects=True)
    builder.set_outputs([y])
    line = next(line for line in builder.print().splitlines() if "extern" in line)
    assert '(%x, none, true, 3, 0.5, "text", s0*2, [%x, none, 1], dtype(float32)' in line
    assert "layout = layout(strided)" in line and "effects" in line


def test_references_count_the_given_operands() -> None:
    builder = core.GraphBuilder()
    x = builder.add_input("x", "f32", [2])
    y = builder.add_input("y", "f32", [2])
    args = [core.GraphBuilder.reference(1), core.GraphBuilder.reference(0)]
    (z,) = builder.extern_call("aten.sub.Tensor", args, [], [x, y], [("f32", [2])])
    builder.set_outputs([z])
    a, b = torch.rand(2), torch.rand(2)
    assert torch.equal(core.compile(builder)([a, b])[0], b - a)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda b, x: b.pointwise("ad", [x]), "op ad: unknown"),
        (lambda b, x: b.cast(x, "float"), "dtype float: unknown"),
        (lambda b, x: b.reshape(x, [1.5]), "size: found a float"),
        (lambda b, x: b.extern_call("aten.x.default", [b"x"]), "argument: a bytes"),
        (lambda b, x: b.extern_call("aten.x.default", [("a", 1)]), "a kind and a text"),
        (lambda b, x: b.extern_call("aten.x.default", [x], operands=[]), "not among the operands"),
        (lambda b, x: core.GraphBuilder().set_outputs([x]), "belongs to another graph"),
        (lambda b, x: core.GraphBuilder.parse("graph @f("), "1:"),
    ],
)
def test_wrong_building_is_an_error(wrong: Callable[..., Any], message: str) -> None:
    builder = core.GraphBuilder()
    x = builder.add_input("x", "f32", [4])
    with pytest.raises(mlcc.Error, match=message) as raised:
        wrong(builder, x)
    assert not isinstance(raised.value, mlcc.InternalError)


def test_a_compiled_builder_is_spent() -> None:
    builder = core.GraphBuilder()
    x = builder.add_input("x", "f32", [4])
    builder.set_outputs([x])
    core.compile(builder)
    with pytest.raises(mlcc.Error, match=r"compiled already"):
        builder.print()
    with pytest.raises(mlcc.Error, match=r"compiled already"):
        _ = x.dtype


def test_text_compiles_too() -> None:
    text = """graph @f(%x: f32[4]) {
      %0: f32[4] = extern "aten.sin.default"(%x)
      return %0
    }"""
    executable = core.compile(text)
    x = torch.rand(4)
    assert torch.equal(executable([x])[0], x.sin())
    assert "aten.sin.default" in executable.graph_text
    assert executable.stats["extern_calls"] == 1


# -- options


def test_options_are_checked() -> None:
    text = "graph @f(%x: f32[4]) {\n  return %x\n}"
    core.compile(text, {"strict": True, "num_compile_threads": 2, "logs": ""})
    with pytest.raises(mlcc.Error, match=r"unknown option strikt; nearest: strict"):
        core.compile(text, {"strikt": True})
    with pytest.raises(mlcc.Error, match=r"option strict: expected a value of type bool, found 1"):
        core.compile(text, {"strict": 1})
    with pytest.raises(mlcc.Error, match=r"option num_compile_threads: .* found True"):
        core.compile(text, {"num_compile_threads": True})


def test_tables() -> None:
    rows = {row[0]: row for row in core.option_table()}
    assert rows["cache_size_mb"][1:5] == ("int", 1024, "MLCC_CACHE_SIZE_MB", "run")
    assert rows["strict"][2] is False
    assert rows["cpu"][4] == "code"
    ops = {row[0]: row for row in core.op_table()}
    assert ops["add"][1:4] == (2, "default", "number")
    assert "aten.add.Tensor" in ops["add"][4].split()
    assert len(core.build_id()) == 32
    assert core.version() == mlcc.__version__
    assert torch.__version__.startswith(core.torch_version())


# -- extern calls


def test_mm_and_addmm() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    mm = one_call(
        "aten.mm.default", lambda x, y: [x, y], [(F32, [3, 5])], [(F32, [3, 4]), (F32, [4, 5])]
    )
    torch.testing.assert_close(mm([a, b])[0], a @ b)
    addmm = one_call(
        "aten.addmm.default",
        lambda x, y, z: [z, x, y],
        [(F32, [3, 5])],
        [(F32, [3, 4]), (F32, [4, 5]), (F32, [5])],
    )
    torch.testing.assert_close(addmm([a, b, c])[0], torch.addmm(c, a, b))


def test_keyword_arguments_and_scalars() -> None:
    builder = core.GraphBuilder()
    x = builder.add_input("x", F32, [3, 4])
    y = builder.add_input("y", F32, [4, 5])
    z = builder.add_input("z", F32, [5])
    (r,) = builder.extern_call(
        "aten.addmm.default", [z, x, y], {"beta": 2, "alpha": 0.5}, results=[(F32, [3, 5])]
    )
    builder.set_outputs([r])
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    expected = torch.addmm(c, a, b, beta=2, alpha=0.5)
    torch.testing.assert_close(core.compile(builder)([a, b, c])[0], expected)


@pytest.mark.parametrize("number", [2, 0.5, True])
def test_a_number_where_the_schema_has_a_tensor(number: float) -> None:
    executable = one_call("aten.mul.Tensor", lambda x: [x, number], [(F32, [3])], [(F32, [3])])
    x = torch.randn(3)
    assert torch.equal(executable([x])[0], x * number)


def test_several_results_and_optional_tensors() -> None:
    types = [(F32, [2, 3, 4]), (F32, [3]), (F32, [3])]
    executable = one_call(
        "aten.native_batch_norm.default",
        lambda x: [x, None, None, None, None, True, 0.1, 1e-5],
        types,
        [(F32, [2, 3, 4])],
    )
    x = torch.randn(2, 3, 4)
    expected = torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    for found, wanted in zip(executable([x]), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_result_that_is_no_tensor() -> None:
    grad, x, w = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(4)
    _, mean, rstd = torch.native_layer_norm(x, [4], w, None, 1e-5)
    builder = core.GraphBuilder()
    values = [
        builder.add_input(name, F32, list(tensor.shape))
        for name, tensor in [("g", grad), ("x", x), ("m", mean), ("r", rstd), ("w", w)]
    ]
    g, xx, m, r, ww = values
    args = [g, xx, [4], m, r, ww, None, [True, False, False]]
    results = [(F32, [2, 3, 4]), None, None]
    first, second, third = builder.extern_call(
        "aten.native_layer_norm_backward.default", args, results=results
    )
    assert second is None and third is None
    builder.set_outputs([first])
    expected = torch.ops.aten.native_layer_norm_backward(
        grad, x, [4], mean, rstd, w, None, [True, False, False]
    )
    found = core.compile(builder)([grad, x, mean, rstd, w])
    assert torch.equal(found[0], expected[0])


def test_lists_of_tensors_go_in_and_come_out() -> None:
    cat = one_call(
        "aten.cat.default",
        lambda x, y: [[x, y, x], 1],
        [(F32, [2, 8])],
        [(F32, [2, 3]), (F32, [2, 2])],
    )
    a, b = torch.randn(2, 3), torch.randn(2, 2)
    assert torch.equal(cat([a, b])[0], torch.cat([a, b, a], 1))
    split = one_call(
        "aten.split_with_sizes_copy.default",
        lambda x: [x, [1, 2]],
        [(F32, [1, 4]), (F32, [2, 4])],
        [(F32, [3, 4])],
    )
    c = torch.randn(3, 4)
    assert all(torch.equal(f, w) for f, w in zip(split([c]), c.split([1, 2]), strict=True))


def test_lists_of_optional_tensors() -> None:
    builder = core.GraphBuilder()
    x = builder.add_input("x", F32, [4, 5])
    i = builder.add_input("i", "i64", [3])
    (y,) = builder.extern_call("aten.index.Tensor", [x, [None, i]], results=[(F32, [4, 3])])
    builder.set_outputs([y])
    a, index = torch.randn(4, 5), torch.tensor([4, 0, 2])
    assert torch.equal(core.compile(builder)([a, index])[0], a[:, index])


def test_enumerations() -> None:
    builder = core.GraphBuilder()
    x = builder.add_input("x", F32, [2, 3, 4, 5])
    kwargs = {"dtype": ("dtype", "float64"), "memory_format": ("memory_format", "channels_last")}
    strides = [60, 1, 15, 3]
    (y,) = builder.extern_call(
        "aten._to_copy.default", [x], kwargs, results=[("f64", [2, 3, 4, 5], strides)]
    )
    new = {
        "dtype": ("dtype", "int64"),
        "layout": ("layout", "strided"),
        "device": ("device", "cpu"),
    }
    (z,) = builder.extern_call(
        "aten.zeros.default", [[2, 3]], new | {"pin_memory": False}, results=[("i64", [2, 3])]
    )
    builder.set_outputs([y, z])
    a = torch.randn(2, 3, 4, 5)
    y, z = core.compile(builder)([a])
    assert y.dtype == torch.float64 and y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, a.double())
    assert z.dtype == torch.int64 and torch.equal(z, torch.zeros(2, 3, dtype=torch.int64))


def test_a_single_value_for_a_list_of_fixed_length() -> None:
    executable = one_call(
        "aten.avg_pool2d.default", lambda x: [x, 2, 2], [(F32, [1, 1, 2, 2])], [(F32, [1, 1, 4, 4])]
    )
    x = torch.randn(1, 1, 4, 4)
    assert torch.equal(executable([x])[0], torch.nn.functional.avg_pool2d(x, 2))


def test_symbolic_sizes_in_arguments() -> None:
    builder = core.GraphBuilder()
    builder.add_symbol("s0")
    builder.add_symbol("s1")
    x = builder.add_input("x", F32, ["s0", "s1"])
    n = builder.add_size_input("n", "s2")
    builder.add_symbol("s2")
    (flat,) = builder.extern_call(
        "aten.view_copy.default", [x, [("sym", "s0*s1")]], results=[(F32, ["s0*s1"])]
    )
    (full,) = builder.extern_call("aten.full.default", [[n, 2], n], results=[("i64", ["s2", 2])])
    builder.set_outputs([flat, full, builder.size_result("s0 + s2")])
    executable = core.compile(builder)
    for rows, columns, n in [(2, 3, 4), (5, 1, 7), (2, 3, 4), (0, 3, 2)]:
        a = torch.randn(rows, columns)
        flat, full, size = executable([a, n])
        assert torch.equal(flat, a.reshape(-1))
        assert torch.equal(full, torch.full([n, 2], n))
        assert size == rows + n


def test_a_size_that_a_call_finds() -> None:
    builder = core.GraphBuilder()
    builder.add_symbol("u0")
    x = builder.add_input("x", "i64", [])
    size = builder.extern_size("aten._local_scalar_dense.default", [x], size="u0")
    (ones,) = builder.extern_call(
        "aten.ones.default", [[size, ("sym", "u0 + 1")]], results=[(F32, ["u0", "u0 + 1"])]
    )
    builder.set_outputs([ones, builder.size_result("u0*3")])
    executable = core.compile(builder)
    for n in [3, 0, 5]:
        ones, tripled = executable([torch.tensor(n)])
        assert ones.shape == (n, n + 1) and tripled == 3 * n


def test_a_shape_that_a_call_finds() -> None:
    builder = core.GraphBuilder()
    builder.add_symbol("u0")
    x = builder.add_input("x", F32, [10])
    (where,) = builder.extern_call(
        "aten.nonzero.default", [x], results=[("i64", ["u0", 1], [1, "u0"])]
    )
    (again,) = builder.extern_call(
        "aten.neg.default", [where], results=[("i64", ["u0", 1], [1, "u0"])]
    )
    builder.set_outputs([again])
    executable = core.compile(builder)
    x = torch.zeros(10)
    x[3] = x[7] = 1
    assert torch.equal(executable([x])[0], torch.tensor([[-3], [-7]]))


def test_ops_of_python_libraries_run() -> None:
    with torch.library._scoped_library("mlcc_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
        executable = one_call("mlcc_test.twice.default", lambda x: [x], [(F32, [3])], [(F32, [3])])
        x = torch.rand(3)
        assert torch.equal(executable([x])[0], x + x)


# -- errors


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("aten.no_such_op.default", lambda x: [x], "torch knows no such op"),
        ("aten", lambda x: [x], "expected a name like"),
        ("aten.sin.default", lambda x: [x, x], "found 2 arguments, expected at most 1"),
        ("aten.mm.default", lambda x: [x], "argument mat2 is missing"),
        (
            "aten.sum.dim_IntList",
            lambda x: [x, ["a"]],
            "argument dim: found a String where the schema has int",
        ),
        ("aten.sum.dim_IntList", lambda x: [x, [0], "a"], "argument keepdim: found a String"),
        (
            "aten.select_copy.int",
            lambda x: [x, 0, [1]],
            "argument index: a list where the schema has none",
        ),
        ("aten.zeros_like.default", lambda x: [x, ("dtype", "float31")], "dtype float31: unknown"),
    ],
)
def test_calls_that_torch_does_not_take(name: str, args: Callable[..., Any], message: str) -> None:
    with pytest.raises(mlcc.Error, match=message):
        one_call(name, args, [(F32, [3])], [(F32, [3])])


def test_arguments_that_do_not_fit_at_run_time() -> None:
    executable = one_call("aten.sin.default", lambda x: [[x]], [(F32, [3])], [(F32, [3])])
    with pytest.raises(mlcc.Error, match=r"aten.sin.default: argument self: a list where"):
        executable([torch.rand(3)])


def test_errors_of_aten_are_those_of_eager() -> None:
    dot = one_call("aten.dot.default", lambda x, y: [x, y], [(F32, [])], [(F32, [3])] * 2)
    a, b = torch.randn(3), torch.randn(5)
    with pytest.raises(RuntimeError) as eager:
        torch.dot(a, b)
    with pytest.raises(RuntimeError) as ours:
        dot([a, b])
    assert type(ours.value) is type(eager.value) and str(ours.value) == str(eager.value)

    select = one_call("aten.select_copy.int", lambda x: [x, 0, 7], [(F32, [])], [(F32, [3])])
    x = torch.randn(3)
    with pytest.raises(IndexError) as eagers_index:
        torch.select_copy(x, 0, 7)
    with pytest.raises(IndexError) as our_index:
        select([x])
    assert str(our_index.value) == str(eagers_index.value)


def test_errors_of_python_ops_pass_through() -> None:
    class Mine(Exception):
        pass

    def fail(x: torch.Tensor) -> None:
        raise Mine("broken")

    with torch.library._scoped_library("mlcc_test", "DEF") as library:
        library.define("fail(Tensor x) -> Tensor")
        library.impl("fail", fail, "CompositeExplicitAutograd")
        executable = one_call("mlcc_test.fail.default", lambda x: [x], [(F32, [3])], [(F32, [3])])
        with pytest.raises(Mine, match=r"broken"):
            executable([torch.rand(3)])


def test_warnings_of_aten_are_python_warnings() -> None:
    with torch.library._scoped_library("mlcc_test", "DEF") as library:
        library.define("warn(Tensor x) -> Tensor")
        library.impl(
            "warn",
            lambda x: (warnings.warn("careful", stacklevel=1), x + 1)[1],
            "CompositeExplicitAutograd",
        )
        executable = one_call("mlcc_test.warn.default", lambda x: [x], [(F32, [3])], [(F32, [3])])
        with pytest.warns(UserWarning, match="careful"):
            executable([torch.rand(3)])


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (("f64", [3]), r"aten.sin.default: result 0 is Float\[3\], expected Double\[3\]"),
        ((F32, [4]), r"result 0 is Float\[3\], expected Float\[4\]"),
        ((F32, [3, 1]), r"result 0 is Float\[3\], expected Float\[3, 1\]"),
    ],
)
def test_a_result_unlike_its_fake_is_an_error(type_: tuple[Any, ...], message: str) -> None:
    executable = one_call("aten.sin.default", lambda x: [x], [type_], [(F32, [3])])
    with pytest.raises(mlcc.Error, match=message):
        executable([torch.rand(3)])


def test_a_result_with_other_strides_is_copied_and_told(
    mlcc_log: Any,
) -> None:
    with mlcc_log("fallback") as lines:
        executable = one_call(
            "aten.sin.default", lambda x: [x], [(F32, [3, 4], [1, 3])], [(F32, [3, 4])]
        )
        x = torch.rand(3, 4)
        for _ in range(2):
            (y,) = executable([x])
            assert y.stride() == (1, 3) and torch.equal(y, x.sin())
    assert [line for line in lines if "strides" in line] == [
        "extern op aten.sin.default: result 0 has strides [4, 1], expected [1, 3]; it is copied"
    ]


def test_strides_of_an_aliasing_result_must_fit() -> None:
    executable = one_call(
        "aten.t.default", lambda x: [x], [(F32, [4, 3], [3, 1])], [(F32, [3, 4])], aliases=True
    )
    with pytest.raises(mlcc.Error, match=r"aten\.t\.default: result 0 has strides"):
        executable([torch.rand(3, 4)])


def test_wrong_inputs() -> None:
    executable = one_call("aten.sin.default", lambda x: [x], [(F32, [3])], [(F32, [3])])
    with pytest.raises(mlcc.Error, match=r"found 2 inputs, expected 1"):
        executable([torch.rand(3), torch.rand(3)])
    with pytest.raises(mlcc.Error, match=r"input 0: found a str"):
        executable(["x"])
    with pytest.raises(TypeError):
        executable((torch.rand(3),))


# -- ownership, aliases, mutation


def test_inputs_are_taken_and_dropped_at_last_use() -> None:
    seen = []
    with torch.library._scoped_library("mlcc_test", "DEF") as library:

        def look(x: torch.Tensor) -> torch.Tensor:
            gc.collect()
            seen.append(reference() is None)
            return x + 1

        library.define("look(Tensor x) -> Tensor")
        library.impl("look", look, "CompositeExplicitAutograd")
        builder = core.GraphBuilder()
        x = builder.add_input("x", F32, [3])
        (y,) = builder.extern_call("aten.sin.default", [x], results=[(F32, [3])])
        (z,) = builder.extern_call("mlcc_test.look.default", [y], results=[(F32, [3])])
        builder.set_outputs([z])
        executable = core.compile(builder)
        inputs = [torch.rand(3)]
        reference = weakref.ref(inputs[0])
        executable(inputs)
    assert inputs == [] and seen == [True]


def test_the_list_is_emptied_even_if_the_call_fails() -> None:
    executable = one_call("aten.dot.default", lambda x: [x, x], [(F32, [])], [(F32, [3])])
    inputs = [torch.rand(3, 4)]
    with pytest.raises(RuntimeError):
        executable(inputs)
    assert inputs == []


def test_an_input_that_is_an_output_is_the_same_tensor() -> None:
    executable = core.compile("graph @f(%x: f32[4]) {\n  return %x, %x\n}")
    x = torch.rand(4)
    y, z = executable([x])
    assert y is x and z is x


def test_views_of_inputs_are_views() -> None:
    text = """graph @f(%x: f32[4, 6]) {
      %0: f32[6, 4] strides(1, 6) = permute %x {dims = [1, 0]}
      %1: f32[6, 2] strides(1, 6) = slice %0 {dim = 1, start = 1, step = 1}
      return %1
    }"""
    x = torch.rand(4, 6)
    (y,) = core.compile(text)([x])
    assert torch.equal(y, x.t()[:, 1:3]) and y.stride() == (1, 6)
    assert y._is_view() and y._base is x
    y.zero_()
    assert x[1:3].abs().sum() == 0
    assert x._version == y._version == 1


def copy_into_input() -> Any:
    builder = core.GraphBuilder()
    x = builder.add_input("x", F32, [4])
    (y,) = builder.extern_call("aten.sin.default", [x], results=[(F32, [4])])
    builder.extern_call(
        "aten.copy_.default", [x, y], results=[(F32, [4])], mutates=[0], aliases=True
    )
    builder.set_outputs([y])
    return core.compile(builder)


def test_writes_into_inputs_count_as_versions() -> None:
    x = torch.rand(4)
    expected = x.sin()
    (y,) = copy_into_input()([x])
    assert torch.equal(x, expected) and torch.equal(y, expected)
    assert x._version == 1


def test_calls_run_below_autograd_and_without_autocast() -> None:
    mm = one_call("aten.mm.default", lambda x, y: [x, y], [(F32, [3, 3])], [(F32, [3, 3])] * 2)
    a = torch.rand(3, 3, requires_grad=True)
    (y,) = mm([a, a])
    assert not y.requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (y,) = mm([a, a])
    assert y.dtype == torch.float32
    assert torch.is_grad_enabled()


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.rand(4)
        expected = x.sin()
        (y,) = copy_into_input()([x])
        assert y.is_inference() and torch.equal(x, expected)


def test_parameters_and_tensor_subclasses_that_are_plain() -> None:
    mm = one_call("aten.mm.default", lambda x, y: [x, y], [(F32, [3, 3])], [(F32, [3, 3])] * 2)
    weight = torch.nn.Parameter(torch.rand(3, 3))
    x = torch.rand(3, 3)
    torch.testing.assert_close(mm([x, weight])[0], x @ weight)


# -- threads


def test_calls_from_several_threads() -> None:
    mm = one_call("aten.mm.default", lambda x, y: [x, y], [(F32, [16, 16])], [(F32, [16, 16])] * 2)
    failures = []

    def work() -> None:
        for _ in range(50):
            # Whole numbers, whose sums are exact in whatever order they are added.
            a, b = (torch.randint(-99, 100, (16, 16)).float() for _ in range(2))
            if not torch.equal(mm([a, b])[0], a @ b):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_interpreter_runs_on_while_a_call_runs() -> None:
    """A call that waits inside ATen holds no GIL: another thread makes progress and lets it go on."""
    event = threading.Event()
    with torch.library._scoped_library("mlcc_test", "DEF") as library:
        library.define("wait(Tensor x) -> Tensor")
        library.impl("wait", lambda x: (event.wait(10), x + 1)[1], "CompositeExplicitAutograd")
        executable = one_call("mlcc_test.wait.default", lambda x: [x], [(F32, [3])], [(F32, [3])])
        thread = threading.Thread(target=event.set)
        thread.start()
        executable([torch.rand(3)])
        thread.join()
    assert event.is_set()


PARALLEL_KERNEL = """
kernel @spread(%n: i64; %x: in f32[%n], %y: out f32[%n]) {
  for %i in 0..%n parallel grain(1000) {
    store %y[%i] = %x[%i] + 1.0
  }
}
"""


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_run_loop_kernel(backend: str) -> None:
    n = 5000 if backend == "cpu" else 50
    x, y = torch.rand(n), torch.zeros(n)
    core.run_loop_kernel(PARALLEL_KERNEL, [n], [x, y], backend)
    assert torch.equal(y, x + 1)


CHECKED_KERNEL = """
kernel @checked(%n: i64; %x: in i64[%n], %y: out i64[%n]) errors(5: IndexError "index out of range") {
  for %i in 0..%n parallel grain(1) {
    check %x[%i] < 10 else 5
    store %y[%i] = %x[%i]
  }
}
"""


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_a_check_raises_what_the_text_says(backend: str) -> None:
    x = torch.tensor([1, 2, 30])
    with pytest.raises(IndexError, match=r"^index out of range$"):
        core.run_loop_kernel(CHECKED_KERNEL, [3], [x, torch.empty_like(x)], backend)


def test_run_loop_kernel_checks_its_arguments() -> None:
    x = torch.rand(3)
    with pytest.raises(mlcc.Error, match=r"found 0 sizes, expected 1"):
        core.run_loop_kernel(PARALLEL_KERNEL, [], [x, x])
    with pytest.raises(mlcc.Error, match=r"found 1 buffers, expected 2"):
        core.run_loop_kernel(PARALLEL_KERNEL, [3], [x])
    with pytest.raises(mlcc.Error, match=r"buffer x: found Double, expected f32"):
        core.run_loop_kernel(PARALLEL_KERNEL, [3], [x.double(), x])
    with pytest.raises(mlcc.Error, match=r"backend gpu: unknown"):
        core.run_loop_kernel(PARALLEL_KERNEL, [3], [x, x], "gpu")


THREADS = """
import os, torch
from mlcc._load import load_core
core = load_core()
torch.set_num_threads(THREADS)

def times():
    # CPU time of each thread of this process, in nanoseconds, by thread id
    tasks = "/proc/self/task"
    return {tid: int(open(f"{tasks}/{tid}/schedstat").read().split()[0]) for tid in os.listdir(tasks)}

n = 1 << 20
x, y = torch.rand(n), torch.zeros(n)
core.run_loop_kernel(KERNEL, [n], [x, y])
before = times()
for _ in range(300):
    core.run_loop_kernel(KERNEL, [n], [x, y])
after = times()
spent = [after[tid] - before.get(tid, 0) for tid in after]
print(sum(t > max(spent) / 5 for t in spent))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_run_on_as_many_threads_as_torch_has(threads: int) -> None:
    code = THREADS.replace("KERNEL", repr(PARALLEL_KERNEL)).replace("THREADS", str(threads))
    result = run_python(code)
    assert result.stdout.strip() == str(threads), result.stderr


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Tensors small enough for eager to work on them with one thread: on more it would wait for ever in the child.
FORK = """
import os, sys, torch
from mlcc._load import load_core
core = load_core()
torch.set_num_threads(2)
text = '''{kernel}'''
x, y = torch.rand(20000), torch.zeros(20000)
core.run_loop_kernel(text, [20000], [x, y])   # starts worker threads, which a fork does not copy
child = os.fork()
if child == 0:
    y.zero_()
    core.run_loop_kernel(text, [20000], [x, y])
    os._exit(0 if torch.equal(y, x + 1) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_runs_kernels() -> None:
    result = run_python(FORK.replace("{kernel}", PARALLEL_KERNEL))
    assert result.stdout.strip() == "0", result.stderr


# -- state of the process


def test_cache_info_and_clear() -> None:
    core.run_loop_kernel(PARALLEL_KERNEL, [3], [torch.rand(3), torch.rand(3)])
    info = core.cache_info()
    assert info["entries"] >= 1 and info["bytes"] > 0 and info["store_entries"] >= 1
    assert {"hits", "misses", "disk_hits", "arena", "packs", "dir"} <= info.keys()
    core.clear_cache()
    info = core.cache_info()
    assert info["entries"] == 0 and info["store_entries"] == 0


def test_cpu_info() -> None:
    info = core.cpu_info()
    assert info["name"] and info["vector_bits"] in (0, 128, 256, 512)
    assert core.cpu_info({"cpu": "haswell"})["name"] == "haswell"


def test_log_lines_reach_python(mlcc_log: Any) -> None:
    with mlcc_log("graph") as lines:
        core.compile("graph @logged(%x: f32[4]) {\n  return %x\n}")
    assert any("logged" in line for line in lines)


# -- the stub

# What stubtest cannot know about pybind11's classes: their metaclass, and __init__ of those that have none.
STUBTEST_ALLOWS = r"""
mlcc\._C\.(Argument|CallDispatch|Executable|GraphBuilder|Value)
mlcc\._C\.(Argument|Executable|Value)\.__init__
"""


@pytest.mark.slow
def test_the_stub_says_what_the_module_has(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "allowlist").write_text(STUBTEST_ALLOWS)
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-mlcc.*]\nignore_errors = True\n")
    command = [
        sys.executable,
        "-m",
        "mypy.stubtest",
        "mlcc._C",
        "--allowlist",
        str(tmp_path / "allowlist"),
    ]
    command += ["--mypy-config-file", str(tmp_path / "mypy.ini")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_an_executable_tells_why_nodes_did_not_share_a_kernel() -> None:
    text = """graph @f(%x: f32[6, 6]) {
      %0: f32[6, 6] = exp %x
      %1: f32[6, 6] = permute %0 {dims = [1, 0]}
      %2: f32[6, 6] = add %0, %1
      return %2
    }"""
    executable = core.compile(text)
    assert executable.stats["kernels"] == 2
    [reason] = executable.fusion_refusals
    assert reason.endswith("at another place than where it is computed")
    assert core.compile("graph @f(%x: f32[4]) { return %x }").fusion_refusals == []
