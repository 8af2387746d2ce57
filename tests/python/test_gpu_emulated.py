"""Kernels for a GPU run by the emulator, on tensors of the CPU: what they compute, for which inputs, their errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from benchmarks import models
from mlcc import config
from mlcc.capture import backend
from tests.conformance import run
from tests.python import functions, test_backend, test_jit, test_models
from tests.python.accuracy import check_all, to_double
from tests.python.test_backend import check_compiled, compiled

LIBRARY = Path(mlcc.__file__).parent / "libmlcc_emulator.so"
SCHEDULES = ("forward", "reverse", "random", "skew-first", "skew-last")
# Every so many ops of the op table, and functions of the tests of the CPU.
EVERY_OP = 8
EVERY_FUNCTION = 3

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="built without the emulator")


class Launch(ctypes.Structure):
    """MlccEmulatorLaunch of tools/emulator/emulator.h."""

    _fields_ = [
        ("function", ctypes.c_char_p),
        ("schedule", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("result", ctypes.c_int),
        ("from_graph", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("switches", ctypes.c_ulonglong),
    ]


class Emulator:
    """The controls of the emulator in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        self.set_schedule("rotate")

    def set_schedule(self, name: str) -> None:
        """In which order threads run from now on; "rotate" takes another one at each launch."""
        assert self._library.mlcc_emulator_set_schedule(name.encode()) == 1

    def functions(self, call: Callable[[], Any]) -> list[str]:
        """The functions that a call launches."""
        self._library.mlcc_emulator_clear_launches()
        call()
        found, launch = [], Launch()
        for index in range(self._library.mlcc_emulator_launch_count()):
            assert self._library.mlcc_emulator_launch(index, ctypes.byref(launch)) == 1
            found.append(launch.function.decode())
        return found


@pytest.fixture(autouse=True)
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A GPU for the tensors of the CPU; launches take all orders of threads in turn."""
    monkeypatch.setenv("MLCC_EMULATOR_SCHEDULE", "rotate")  # of worker processes
    torch._dynamo.reset()
    with config.patch(gpu="emulate"):
        yield Emulator()


# -- ops and models


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_sample_of_some_ops(dtype: str, tmp_path: Path) -> None:
    """Forward and backward; `run.py --gpu=emulate --every=1` takes all."""
    tasks = run.list_tasks(None, dtype, EVERY_OP, 1)
    kept = run.environment(str(tmp_path), "emulate")
    records = [record for _, record in run.check_tasks(tasks, "mlcc", 1, 60.0, kept)]
    known = run.read_known_failures()
    failed = [r for r in records if not run.record_ok(r) and (r["op"], r["dtype"]) not in known]
    assert not failed, "\n".join(f"{r['op']} {r['dtype']}: {r['reasons'][0]}" for r in failed)
    assert len(records) == len(tasks) > 60


@pytest.mark.nightly
@pytest.mark.parametrize("name", models.NAMES)
def test_model(name: str) -> None:
    pytest.importorskip("transformers")
    test_models.test_right_at_every_size_and_compiled_twice(name)


@pytest.mark.parametrize("table", ["MOVEMENTS", "REDUCTIONS", "GATHERS", "CREATIONS"])
def test_functions(table: str) -> None:
    for name in list(getattr(functions, table))[::EVERY_FUNCTION]:
        check_compiled(getattr(functions, table)[name], functions.A)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_reductions_of_other_dtypes(dtype: torch.dtype) -> None:
    for name in ("sum", "var", "argmax", "max with index"):
        test_backend.test_reduction(name, dtype)


@pytest.mark.parametrize("dtype", test_backend.DTYPES)
def test_dtypes(dtype: torch.dtype) -> None:
    """Elementwise, a comparison, a cast and two reductions in one graph; 3 rows of 37."""
    x = (torch.randn(3, 37) * 4).to(dtype)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + x, x > 1, x.to(torch.float32) * 0.5, x.amax(1), x.sum(0), x[:, ::2].clone()]

    check_all(compiled(function)(x), function(x), function(to_double(x)))


# -- tests of the CPU that meet the same questions here

AS_ON_A_CPU = [
    test_backend.test_autocast,
    test_backend.test_dynamic_shapes_compile_once,
    test_backend.test_reductions_of_single_elements,
    test_backend.test_softmax_over_nothing,
    test_backend.test_strides_of_inputs,
    test_backend.test_channels_last,
    test_backend.test_large_reductions,
    test_backend.test_numbers_that_change,
    test_backend.test_number_read_from_a_tensor,
    test_backend.test_input_is_written,
    test_backend.test_reads_before_a_write_see_the_old_values,
    test_backend.test_a_view_is_written,
    test_backend.test_arguments_that_overlap,
    test_backend.test_views_of_inputs_are_views,
    test_backend.test_equal_results_are_distinct_tensors,
    test_backend.test_results_share_memory_as_in_eager,
    test_backend.test_an_input_is_written_with_a_view_of_inputs,
    test_backend.test_batch_norm_updates_its_statistics,
    test_backend.test_training_step,
    test_backend.test_double_call_keeps_results_apart,
    test_backend.test_random_numbers,
    test_backend.test_index_out_of_range_raises_what_eager_raises,
    test_jit.test_answers_are_eagers,
    test_jit.test_gradients_are_eagers,
    test_jit.test_mutated_arguments_are_written_back,
    test_jit.test_a_view_of_an_argument_comes_back_as_a_view,
    test_jit.test_sizes_and_numbers_are_symbols,
    test_jit.test_an_error_is_eagers_own,
    test_jit.test_a_tensor_given_twice_runs_the_original,
    test_jit.test_threads,
]


@pytest.mark.parametrize("test", AS_ON_A_CPU, ids=lambda test: test.__name__)
def test_as_on_a_cpu(test: Callable[[], None]) -> None:
    test()


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (1,), ()])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    test_backend.test_small_shapes(shape)


# -- what is particular to the code for GPUs


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_orders_of_threads(emulator: Emulator, schedule: str) -> None:
    """Exchanges through shared memory, of rows in a block, a warp, and parts of a warp."""
    emulator.set_schedule(schedule)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.softmax(-1), F.layer_norm(x, x.shape[-1:]), x.sum(0), x.std(-1)]

    for shape in [(2, 5000), (3, 257), (40, 24)]:
        x = torch.randn(shape)
        check_all(compiled(function)(x), function(x), function(x.double()))


def test_shifted_inputs_take_the_general_code(emulator: Emulator) -> None:
    """The same call with addresses that are no multiples of 16, and back."""
    x = torch.randn(4 * 64 + 1)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid() * x

    run = mlcc.jit(function)
    aligned, shifted = x[:256].view(4, 64), x[1:].view(4, 64)
    seen = []
    for view in (aligned, shifted, aligned):
        seen.append(emulator.functions(lambda view=view: run(view)))  # type: ignore[misc]
        check_all(run(view), function(view), function(view.double()))
    assert seen[0] == seen[2]
    assert len(seen[0]) == len(seen[1]) == 1
    assert seen[0] != seen[1]


def test_sizes_that_no_width_divides(emulator: Emulator) -> None:
    """One dynamic graph: rows that begin aligned, and rows that do not."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.transpose(0, 1) + y).softmax(-1)

    run = compiled(function, dynamic=True)
    for rows, columns in [(8, 64), (5, 61), (16, 128), (3, 2)]:
        x, y = torch.randn(columns, rows), torch.randn(rows, columns)
        check_all(run(x, y), function(x, y), function(x.double(), y.double()))


def test_every_launch_is_seen(emulator: Emulator) -> None:
    """That these tests test something: kernels run on the emulated GPU."""
    run = compiled(lambda x: x.exp() + 1)
    assert len(emulator.functions(lambda: run(torch.randn(300)))) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ulp_of_functions(dtype: torch.dtype) -> None:
    for name in ("exp", "log", "tanh", "erf", "sigmoid", "rsqrt", *functions.LIBRARY_FUNCTIONS):
        test_backend.test_ulp_of_elementwise_ops(name, dtype)


def test_indices_that_leave_32_bits() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[(torch.arange(x.shape[0]) * 1103515245) % x.shape[0]] + 1

    x = torch.randn(1000)
    assert torch.equal(compiled(function)(x), function(x))
    assert torch.equal(compiled(function, dynamic=True)(x), function(x))


def test_numbers_without_dimensions() -> None:
    a, x = torch.tensor(1.5, dtype=torch.float64), torch.randn(5, 33)

    def function(x: torch.Tensor, a: torch.Tensor) -> list[torch.Tensor]:
        return [x * a, torch.where(x > a, x, a), x + torch.tensor(2.0), a * 2]

    check_all(compiled(function)(x, a), function(x, a), function(x.double(), a))


def test_failed_checks_of_later_calls() -> None:
    """A failure is told once, and the next call is right."""

    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] * 2

    x, good, bad = torch.randn(4, 3), torch.tensor([1, -1, 3]), torch.tensor([0, 7, 1])
    run = compiled(function)
    for _ in range(2):
        check_all(run(x, good), function(x, good))
        with pytest.raises(IndexError) as ours:
            run(x, bad)
        with pytest.raises(IndexError) as eager:
            function(x, bad)
        assert str(ours.value) == str(eager.value)
    check_all(run(x, good), function(x, good))


@pytest.mark.parametrize("seed", range(4))
def test_drawn_layouts(seed: int) -> None:
    """Permuted, stretched and shifted operands of one kernel that reads three and reduces."""
    torch.manual_seed(seed)
    base = [torch.randn(9, 11, 13) for _ in range(3)]
    orders = [torch.randperm(3).tolist() for _ in base]
    views = [
        b.permute(order)[1:5, -6:-1, ::2][:, :, :4] for b, order in zip(base, orders, strict=True)
    ]
    views[seed % 3] = views[seed % 3][:, :1].expand(4, 5, 4)

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        total = x * y + z.tanh()
        return [total, total.sum((0, 2)), total.transpose(0, 2).contiguous()]

    check_all(compiled(function)(*views), function(*views), function(*to_double(views)))


def test_ints_as_data_and_in_indices(emulator: Emulator) -> None:
    """As data they keep 64 bits in the usual code; in indices negative and huge ones take code of their own."""

    def data(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        return [x + n, torch.full((4,), n) * x[:4]]

    def place(x: torch.Tensor, n: int) -> torch.Tensor:
        return x[(torch.arange(x.shape[0]) + n) // 3 % x.shape[0]]

    x = torch.arange(40)
    seen = set()
    for function in (data, place):
        torch._dynamo.reset()
        run = torch.compile(function, backend=backend.compile, dynamic=True)
        for n in (5, 7, -7, (1 << 31) + 5, -(1 << 33) - 1, (1 << 40) + 3):
            launched = emulator.functions(lambda n=n: run(x, n))  # type: ignore[misc]
            if function is data:
                seen.add(tuple(launched))
            found, expected = run(x, n), function(x, n)
            check_all(found, expected, expected)
    assert len(seen) == 1


def test_casts_of_floats_to_bytes() -> None:
    """Those outside of u8 as well, which torch casts by way of i64."""
    x = torch.tensor([0.0, 1.9, 255.9, 256.0, 300.5, -1.0, -300.0, 3e9, -3e9, 6.5e9, 1e15])
    for dtype in (torch.float32, torch.float64):
        values = x.to(dtype)
        expected = values.long().to(torch.uint8)
        assert torch.equal(compiled(lambda x: x.to(torch.uint8))(values), expected)


# -- sizes that are symbols

ROWS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, w: x.sum(-1),
    "amax": lambda x, w: x.amax(-1),
    "softmax": lambda x, w: x.softmax(-1),
    "log softmax": lambda x, w: x.log_softmax(-1),
    "layer norm": lambda x, w: F.layer_norm(x, w.shape, w),
    "rms norm": lambda x, w: F.rms_norm(x, w.shape, w),
    "cross entropy": lambda x, w: F.cross_entropy(x, torch.arange(x.shape[0])),
    "columns": lambda x, w: x.sum(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", ROWS)
def test_aligned_dynamic_rows_run_their_usual_code(
    name: str, dtype: torch.dtype, mlcc_log: Any
) -> None:
    x, w = torch.randn(64, 64, dtype=dtype), torch.ones(64, dtype=dtype)
    run = mlcc.jit(ROWS[name])
    with config.patch(gpu="emulate"), mlcc_log("kernels") as lines:
        result = run(x, w)
    torch.testing.assert_close(result, ROWS[name](x, w))
    assert lines
    assert not [line for line in lines if "general code" in line]
