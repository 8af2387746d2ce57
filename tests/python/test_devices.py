"""Graphs of CUDA tensors without a GPU: what fakes are traced to, how it is imported, and who runs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import mlcc
from mlcc import _load, cli, config
from mlcc._load import load_core
from mlcc.capture import session
from mlcc.capture.aot_graph import EagerGraph
from mlcc.capture.session import Session, _compiled, op_table
from mlcc.importer import fx_graph
from mlcc.ir.types import GraphUnsupported
from mlcc.rewrite import decompositions


def imported(function: Callable[..., Any], *makers: Callable[[], Any]) -> tuple[str, Any]:
    """The text of the graph that a function of fake tensors becomes, and what importing found beside it."""
    builder = load_core().GraphBuilder("g")
    table = decompositions.table(frozenset(op_table().overloads()))
    with FakeTensorMode(allow_non_fake_inputs=True):
        arguments = [make() for make in makers]
        gm = make_fx(function, decomposition_table=table)(*arguments)
    found = fx_graph.import_graph(gm, builder, op_table())
    builder.verify()
    return builder.print(), found


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32, index: int = 0) -> Any:
    return lambda: torch.empty(shape, dtype=dtype, device=f"cuda:{index}")


def on_cpu(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda: torch.empty(shape, dtype=dtype)


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()][1:-1]


def test_values_have_the_devices_of_their_fakes() -> None:
    text, found = imported(lambda x, y: torch.softmax(x + y, -1), on_gpu(8, 4), on_gpu(4))
    assert text.startswith("graph @g(%x_1: f32[8, 4] @cuda:0, %y_1: f32[4] @cuda:0) {")
    assert found.externs == {}
    assert found.gpu == "cuda:0"
    assert all("@cuda:0" in line for line in lines_of(text)[:-1])


def test_a_graph_of_the_cpu_is_as_before() -> None:
    text, found = imported(lambda x: x.exp() * 2, on_cpu(8))
    assert "@c" not in text
    assert found.gpu == ""


def test_numbers_of_the_host_stand_beside_tensors() -> None:
    text, found = imported(lambda x, a: x * a + 1.5, on_gpu(8), on_cpu(dtype=torch.float64))
    assert found.externs == {}
    assert lines_of(text)[:4] == [
        "%0: f32[] = cast %a_1",
        "%1: f32[8] @cuda:0 = mul %x_1, %0",
        "%2: f32[] = full {value = 1.5}",
        "%3: f32[8] @cuda:0 = add %1, %2",
    ]


def test_eagers_promotion_stays() -> None:
    """A number of the host is a tensor without dimensions for type promotion, whatever its dtype."""
    text, _ = imported(
        lambda x, a: x * a, on_gpu(8, dtype=torch.int32), on_cpu(dtype=torch.float64)
    )
    assert "f64[8] @cuda:0 = mul" in text


def test_a_constant_of_the_graph_is_a_number_of_the_host() -> None:
    text, found = imported(lambda x: x * torch.tensor(2.0), on_gpu(8))
    assert found.externs == {}
    assert re.search(r"%(\d+): f32\[\] = full {value = 2.0}", text)
    assert "f32[8] @cuda:0 = mul" in text


def test_copies_between_devices_are_calls() -> None:
    def function(x: Any) -> Any:
        return (x.cpu() + 1).to(x.device, torch.float64).sum()

    text, found = imported(function, on_gpu(8))
    assert found.externs == {"aten._to_copy.default": 2}
    lines = lines_of(text)
    assert lines[0].startswith('%0: f32[8] = extern "aten._to_copy.default"(%x_1')
    assert "device = device(cpu)" in lines[0]
    assert '%3: f64[8] @cuda:0 = extern "aten._to_copy.default"(%2' in text
    assert 'device = device("cuda:0")' in text
    assert "f64[] @cuda:0 = sum" in text


def test_a_change_of_dtype_alone_is_a_cast() -> None:
    text, found = imported(lambda x: x.to(torch.bfloat16), on_gpu(8))
    assert found.externs == {}
    assert "bf16[8] @cuda:0 = cast %x_1" in text


def test_copy_takes_its_source_from_another_device_by_a_call() -> None:
    copy = torch.ops.aten.copy.default
    text, found = imported(lambda x, y: copy(x, y), on_gpu(8), on_cpu(8))
    assert found.externs == {"aten.copy.default": 1}
    assert 'f32[8] @cuda:0 = extern "aten.copy.default"(%x_1, %y_1)' in text


def test_created_tensors_have_devices() -> None:
    def function(x: Any) -> Any:
        device = x.device
        return (
            torch.zeros(3, device=device),
            torch.full((), 2, device=device),
            torch.arange(4, device=device),
            torch.arange(0.0, 1.0, 0.25, device=device),
            torch.zeros_like(x),
            torch.ones(3),
            x**0,
            torch.ops.aten.isnan.default(torch.zeros_like(x, dtype=torch.int64)),
        )

    text, found = imported(function, on_gpu(8))
    assert found.externs == {}
    assert "f32[3] @cuda:0 = full" in text
    assert "i64[] @cuda:0 = full {value = 2}" in text
    assert "i64[4] @cuda:0 = iota" in text
    assert "f64[4] @cuda:0 = cast" in text
    assert "f32[8] @cuda:0 = full {value = 1.0}" in text
    assert "f32[3] = full" in text
    assert "bool[8] @cuda:0 = full" in text


def test_other_ops_make_constants_where_they_are() -> None:
    def function(x: Any, y: Any) -> Any:
        padded = torch.nn.functional.pad(x, (1, 2), value=3.0)
        return padded, torch.argmax(y), *torch.max(y, 0), x.mean(), x.var()

    text, found = imported(function, on_gpu(4, 8), on_gpu())
    assert found.externs == {}
    assert "f32[4, 11] @cuda:0 = pad" in text


def test_indices_of_another_device_are_calls() -> None:
    index = torch.ops.aten.index.Tensor
    integers = on_cpu(3, dtype=torch.int64)
    text, found = imported(lambda x, i: index(x, [i]), on_gpu(8, 4), integers)
    assert found.externs == {"aten.index.Tensor": 1}
    assert "f32[3, 4] @cuda:0 = extern" in text
    text, found = imported(lambda x, i: index(x, [i]), on_gpu(8, 4), on_gpu(3, dtype=torch.int64))
    assert found.externs == {}


def test_attention_gives_numbers_and_dtypes_that_nobody_reads() -> None:
    """The op returns lengths beside tensors, and a random state in a dtype that no kernel computes."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default

    def function(q: Any, k: Any, v: Any) -> Any:
        result, *_ = attention(q, k, v)
        return result * 2

    makers = [on_gpu(2, 4, 16, 64, dtype=torch.bfloat16)] * 3
    text, found = imported(function, *makers)
    assert found.externs == {"aten._scaled_dot_product_flash_attention.default": 1}
    assert "f32[2, 4, 16, 64] @cuda:0 = mul" in text

    def reads_state(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v)[6]

    text, _ = imported(reads_state, *makers)
    assert re.search(r"u64\[\d*\] @cuda:0", text)


def test_results_on_other_devices_are_eagers() -> None:
    with pytest.raises(GraphUnsupported, match="devices cuda:0 and cuda:1"):
        imported(lambda x, y: (x.exp(), y.exp()), on_gpu(8), on_gpu(8, index=1))
    with pytest.raises(GraphUnsupported, match="device meta"):
        imported(lambda x: x.exp(), lambda: torch.empty(8, device="meta"))


def test_what_mixes_devices_is_refused_in_eagers_words() -> None:
    with pytest.raises(RuntimeError, match=r"found two different devices|on the same device"):
        imported(lambda x, y: x + y, on_gpu(8), on_cpu(8))
    builder = load_core().GraphBuilder("g")
    x = builder.add_input("x", "f32", [8], None, "cuda:0")
    y = builder.add_input("y", "f32", [8])
    with pytest.raises(mlcc.Error, match="found at least two devices, cuda:0 and cpu!"):
        builder.pointwise("add", [x, y])
    with pytest.raises(mlcc.Error, match="device xla:0: unknown"):
        builder.full([8], "f32", 1.0, "xla:0")
    assert (x.device, y.device) == ("cuda:0", "cpu")


# -- running


def test_without_a_gpu_such_a_graph_runs_eagerly(mlcc_log: Any) -> None:
    """No exception, one line that gives the reason."""
    of_cpu = Session(None, config.resolve({"gpu": "off"}))
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(8, device="cuda")
        gm = make_fx(lambda x: [x.exp() + 1])(x)
    with mlcc_log("fallback") as lines:
        code = of_cpu.compiler("inference")(gm, [x])
    assert isinstance(code, EagerGraph)
    (line,) = [line for line in lines if "runs eagerly" in line]
    assert line.startswith("inference graph runs eagerly: no kernels for cuda:0: ")


def test_an_emulated_gpu_is_not_for_tensors_of_a_real_one(mlcc_log: Any) -> None:
    of_cpu = Session(None, config.resolve({"gpu": "emulate"}))
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(8, device="cuda")
        gm = make_fx(lambda x: [x.exp() + 1])(x)
    with mlcc_log("fallback") as lines:
        code = of_cpu.compiler("inference")(gm, [x])
    assert isinstance(code, EagerGraph)
    assert any("emulated GPU" in line for line in lines)


def test_inputs_must_be_where_the_graph_says() -> None:
    """Only calls of torch's ops: the graph needs no GPU to be compiled."""
    text = """graph @g(%x: f32[4] @cuda:0, %y: f32[4]) {
  %0: f32[4] = neg %y
  return %0
}"""
    executable = load_core().compile(text, config.resolve())
    (result,) = executable([torch.ones(4), torch.ones(4)])  # nothing reads x
    assert torch.equal(result, -torch.ones(4))
    with pytest.raises(mlcc.Error, match="input 1 is on meta, expected cpu"):
        executable([torch.ones(4), torch.ones(4, device="meta")])


def test_a_result_must_be_where_the_graph_says() -> None:
    text = """graph @g(%x: f32[4]) {
  %0: f32[4] = extern "aten._to_copy.default"(%x, device = device(meta))
  %1: f32[4] = neg %0
  return %1
}"""
    executable = load_core().compile(text, config.resolve())
    with pytest.raises(
        mlcc.Error, match=r"aten\._to_copy\.default: a result is on meta, expected cpu"
    ):
        executable([torch.ones(4)])


def test_jit_tells_devices_apart(mlcc_log: Any) -> None:
    """A call with tensors of another device is not taken by an entry of the core's dispatch."""

    @mlcc.jit
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert torch.equal(function(torch.ones(4)), torch.full((4,), 2.0))
    with mlcc_log("recompiles") as lines:
        assert function(torch.ones(4, device="meta")).device.type == "meta"
        assert torch.equal(function(torch.ones(4)), torch.full((4,), 2.0))
    (line,) = lines
    assert "x.device was cpu, now meta; each is traced once" in line


def test_the_stream_comes_from_torchs_exchange_table() -> None:
    core = load_core()
    assert core.current_stream("cpu") == 0
    with pytest.raises(mlcc.Error, match="device xla: unknown"):
        core.current_stream("xla")


# -- where things are


def test_folders_of_nvrtc(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cu13/lib", "cuda_nvrtc/lib", "cublas/lib"):
        (tmp_path / "nvidia" / name).mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    folders = _load.nvrtc_folders()
    assert [folder for folder in folders if tmp_path in folder.parents] == [
        tmp_path / "nvidia/cu13/lib",
        tmp_path / "nvidia/cuda_nvrtc/lib",
    ]


def test_gpu_option() -> None:
    with pytest.raises(mlcc.Error, match="option gpu: expected off, emulate or nothing"):
        config.resolve({"gpu": "yes"})
    assert "name" in (info := load_core().gpu_info()) or info["reason"]


class CoreWithoutCpu:
    """A core whose build has no code generator for the CPU."""

    def compile(self, builder: Any, options: Any) -> Any:
        raise mlcc.Error("cpu backend: cannot be opened")

    def cpu_info(self) -> Any:
        raise mlcc.Error("cpu backend: cannot be opened")


def test_a_build_for_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of the CPU run eagerly, and `mlcc info` goes on."""
    core = CoreWithoutCpu()
    assert cli._cpu_rows(core) == [("cpu", "none: cpu backend: cannot be opened")]
    with pytest.raises(mlcc.Error, match="cannot be opened"):
        _compiled(core, None, {})
    monkeypatch.setattr(session, "has_cpu_code_generator", lambda: False)
    with pytest.raises(GraphUnsupported, match="cannot be opened"):
        _compiled(core, None, {})
