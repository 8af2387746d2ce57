"""mlcc.jit: answers, gradients, mutation, signatures, and what it refuses."""

import collections
import copy
import functools
import gc
import math
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import mlcc
import mlcc.capture.backend
import mlcc.capture.session
from tests.python.accuracy import check_all
from tests.python.jit_contract import lookup

SCALE = 3.0
DIMS = [0]
DTYPE = torch.float32


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def test_answers_are_eagers() -> None:
    @mlcc.jit
    def f(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"soft": torch.softmax(x + y, -1), "norm": (x * y).sum(-1)}

    x, y = torch.randn(5, 33), torch.randn(5, 33)
    found = f(x, y=y)
    torch.testing.assert_close(found["soft"], torch.softmax(x + y, -1))
    torch.testing.assert_close(found["norm"], (x * y).sum(-1))


def test_gradients_are_eagers() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).sum()

    x = torch.randn(4, 6)
    w = torch.randn(6, 3, requires_grad=True)
    mlcc.jit(f)(x, w).backward()
    found, w.grad = w.grad, None
    f(x, w).backward()
    torch.testing.assert_close(found, w.grad)


def test_a_module_keeps_its_parameters_and_buffers() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    reference = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    reference.load_state_dict(module.state_dict())
    compiled = mlcc.jit(module)
    x = torch.randn(10, 6)
    torch.testing.assert_close(compiled(x), reference(x))
    torch.testing.assert_close(module[1].running_mean, reference[1].running_mean)
    module.eval()
    reference.eval()
    torch.testing.assert_close(compiled(x), reference(x))
    with torch.no_grad():
        module[0].weight.mul_(2)
        reference[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), reference(x))


def test_mutated_arguments_are_written_back() -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(7)
    assert f(x).tolist() == [2.0] * 7
    assert x.tolist() == [1.0] * 7


def test_a_view_of_an_argument_comes_back_as_a_view() -> None:
    f = mlcc.jit(lambda x: x[1:])
    x = torch.randn(5)
    view = f(x)
    assert view.data_ptr() == x[1:].data_ptr()


def test_shared_memory_among_arguments_is_another_signature() -> None:
    @mlcc.jit
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    x = torch.ones(4)
    assert f(x.clone(), x).tolist() == [3.0] * 4
    assert f(x, x).tolist() == [4.0] * 4


def test_numbers_and_strings_are_part_of_the_signature() -> None:
    @mlcc.jit
    def f(x: torch.Tensor, factor: float, kind: str) -> torch.Tensor:
        return x * factor if kind == "mul" else x + factor

    x = torch.ones(3)
    assert f(x, 2.0, "mul").tolist() == [2.0] * 3
    assert f(x, 5.0, "mul").tolist() == [5.0] * 3
    assert f(x, 5.0, "add").tolist() == [6.0] * 3


def test_a_plain_value_read_from_a_global_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return scaled(x).sum(DIMS).to(DTYPE)

    module = sys.modules[__name__]
    for name, value in (("SCALE", 3.0), ("SCALE", -0.0), ("DIMS", [1]), ("DTYPE", torch.float64)):
        for n in (2, 5):
            x = torch.randn(n, 4)
            torch.testing.assert_close(f(x), scaled(x).sum(DIMS).to(DTYPE))
        monkeypatch.setattr(module, name, value)
        x = torch.randn(3, 4)
        torch.testing.assert_close(f(x), scaled(x).sum(DIMS).to(DTYPE))
    DIMS.append(0)  # a list is held by what it holds
    torch.testing.assert_close(f(x), scaled(x).sum((0, 1)).to(DTYPE))


def test_a_global_that_did_not_change_needs_no_python() -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    f(torch.ones(2))
    calls = []
    f._read_call = lambda *_: calls.append(1)  # type: ignore[method-assign, assignment]
    assert f(torch.ones(3)).tolist() == [SCALE] * 3
    assert not calls


def test_a_plain_value_read_from_a_closure_is_held() -> None:
    def make(power: int) -> tuple[Callable[..., torch.Tensor], Callable[[int], None]]:
        shift = 1

        def inner(x: torch.Tensor) -> torch.Tensor:
            return x**power + shift

        def f(x: torch.Tensor) -> torch.Tensor:
            return inner(x) * shift

        def change(value: int) -> None:
            nonlocal shift
            shift = value

        return mlcc.jit(f), change

    squared, change = make(2)
    cubed, _ = make(3)
    x = torch.randn(7)
    for shift in (1, 5, 5, 1):
        change(shift)
        torch.testing.assert_close(squared(x), (x**2 + shift) * shift)
        torch.testing.assert_close(cubed(x), x**3 + 1)


FLOATS = (torch.float32, torch.float64)
KINDS = (torch.Tensor, torch.nn.Parameter)


def test_tuples_of_constants_and_classes_may_be_read() -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.dtype in FLOATS and isinstance(x, KINDS) else x

    assert f(torch.ones(2)).tolist() == [2, 2]
    assert f(torch.ones(2, dtype=torch.int32)).tolist() == [1, 1]


def test_functions_made_inside_read_their_own_variables() -> None:
    def scale_by(factor: torch.Tensor, power: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x * factor**power

    @mlcc.jit
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scale_by(y, 2)(x)

    for n in (3, 4):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(f(x, y), x * y**2)


def test_what_a_function_changes_outside_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    count = 0

    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x + 1

    @mlcc.jit
    def g(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return x + count

    @mlcc.jit
    def h(x: torch.Tensor) -> torch.Tensor:
        global SCALE
        SCALE = 7.0
        return x * SCALE

    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    for n in (1, 2, 3):
        assert f(torch.zeros(n)).tolist() == [1] * n
        assert len(seen) == n
        assert g(torch.zeros(n)).tolist() == [n] * n
        assert count == n
        assert h(torch.ones(n)).tolist() == [7] * n
        assert SCALE == 7


def test_a_tensor_read_from_a_closure_is_refused_by_name() -> None:
    bias = torch.ones(2)

    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + bias

    with pytest.raises(mlcc.Error, match=r"closure variable bias \(test_jit.py:\d+\) is a tensor"):
        f(torch.ones(2))


def test_what_packages_elsewhere_read_is_theirs() -> None:
    from mlcc.capture.code_owners import is_user_code

    assert is_user_code(__file__)
    assert is_user_code("/home/someone/site_packages_of_mine/model.py")
    assert not is_user_code(torch.__file__)
    assert not is_user_code("/elsewhere/lib/python3.11/site-packages/sympy/core/relational.py")
    assert not is_user_code("/usr/lib/python3/dist-packages/sympy/core/relational.py")


def test_control_flow_on_a_tensor_is_refused() -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(
        mlcc.Error, match=r"f \(test_jit.py:\d+\): Python code asks for the value of a tensor"
    ):
        f(torch.ones(2))


def test_an_error_is_eagers_own() -> None:
    @mlcc.jit
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    with pytest.raises(RuntimeError) as eager:
        torch.ones(2, 3) @ torch.ones(2, 3)
    with pytest.raises(RuntimeError) as found:
        f(torch.ones(2, 3), torch.ones(2, 3))
    assert str(found.value) == str(eager.value)


def test_what_is_traced_again_is_logged(mlcc_log: Any) -> None:
    @mlcc.jit
    def f(x: torch.Tensor, n: int = 2, kind: str = "add") -> torch.Tensor:
        return x + n if kind == "add" else x

    line = f.__wrapped__.__code__.co_firstlineno
    with mlcc_log("recompiles") as lines:
        for size in (3, 4, 100):  # one trace for all
            assert f(torch.zeros(size), size)[0] == size
        assert lines == []
        f(torch.zeros(1), 2)
        f(torch.zeros(4, 5), 2)
        f(torch.zeros(4, 5).double(), 2)
        f(torch.zeros(4, 5).double(), 2, kind="none")
        f(torch.zeros(4, 5).double(), n=2)
    place = f"f (test_jit.py:{line})"
    assert lines == [
        f"recompile 1 of {place}: x.size(0) was 3, now 1, for which a guard of the trace fails",
        f"recompile 2 of {place}: x.dim() was 1, now 2; each is traced once",
        f"recompile 3 of {place}: x.dtype was torch.float32, now torch.float64; each is traced once",
        f"recompile 4 of {place}: the nesting or number of the arguments changed",
        f"recompile 5 of {place}: the nesting or number of the arguments changed",
    ]


def test_under_a_mode_the_original_runs() -> None:
    calls = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append(op)
            return op(*args, **(kwargs or {}))

    f = mlcc.jit(lambda x: torch.sin(x) + 1)
    x = torch.ones(2)
    with Count():
        f(x)
    assert len(calls) == 2


def test_sizes_and_numbers_are_symbols() -> None:
    """One trace serves all sizes and numbers that take the same path."""
    before = mlcc.capture.backend.timings().graphs

    @mlcc.jit
    def f(x: torch.Tensor, n: int, a: float) -> torch.Tensor:
        y = x[:, 1:] * a + n
        return torch.cat([y, y * 2]).softmax(-1) * x.shape[0]

    for rows, columns, n, a in [(4, 5, 2, 0.5), (7, 9, -3, 2.0), (30, 100, 0, 1.0)]:
        x = torch.randn(rows, columns)
        torch.testing.assert_close(f(x, n, a), f.__wrapped__(x, n, a))
    assert mlcc.capture.backend.timings().graphs == before + 1


def test_nan_is_not_equal_to_itself() -> None:
    f = mlcc.jit(lambda x, n: x * n if n == n else x)
    x = torch.randn(3)
    for n in (1.0, math.nan, 2.0, math.nan, -math.nan, 3.0):
        check_all(f(x, n), f.__wrapped__(x, n))


def test_a_branch_on_a_size_is_a_guard() -> None:
    @mlcc.jit
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + 1 if x.shape[0] > 5 and n < 3 else x * 2

    for rows in (2, 7, 3, 9):
        for n in (1, 4):
            x = torch.randn(rows)
            torch.testing.assert_close(f(x, n), f.__wrapped__(x, n))


def test_sizes_that_must_agree() -> None:
    f = mlcc.jit(lambda x, y: x + y)
    for a, b in [((3, 4), (3, 4)), ((5, 6), (5, 6)), ((5, 6), (1, 6)), ((5, 6), (6,))]:
        x, y = torch.randn(a), torch.randn(b)
        torch.testing.assert_close(f(x, y), x + y)


def test_static_arguments_and_shapes() -> None:
    traced: list[int] = []
    note = traced.append

    @mlcc.jit(static=("n",), dynamic=False)
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        note(n)
        for _ in range(n):
            x = x * 2
        return x

    assert f(torch.ones(3), 2)[0] == 4
    assert f(torch.ones(3), n=3)[0] == 8
    count = len(traced)
    assert f(torch.ones(3), 3)[0] == 8
    assert len(traced) == count
    assert f(torch.ones(4), 3)[0] == 8
    assert len(traced) > count
    with pytest.raises(mlcc.Error, match="static parameter m: not one of x, n"):
        mlcc.jit(lambda x, n: x, static=("m",))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[1:, 2:],
        lambda x: x[:1].expand(4, 6),
        lambda x: x.unsqueeze(0),
        lambda x: x[2],
    ],
)
def test_layouts_of_arguments(view: Any) -> None:
    f = mlcc.jit(lambda x: torch.exp(x) + x.sum(-1, keepdim=True))
    for rows, columns in [(4, 6), (8, 10)]:
        x = view(torch.randn(rows, columns)) if rows == 4 else view(torch.randn(4, 6))
        found, eager = f(x), f.__wrapped__(x)
        torch.testing.assert_close(found, eager)
        assert found.stride() == eager.stride()


def test_the_result_keeps_its_structure() -> None:
    f = mlcc.jit(lambda x: {"a": [x + 1, None, 3], "b": (x.shape[0], "text")})
    for size in (3, 5):
        found = f(torch.zeros(size))
        assert found["b"] == (size, "text")
        assert found["a"][1:] == [None, 3]
        assert found["a"][0].tolist() == [1.0] * size


def test_results_are_put_together_anew_for_each_call() -> None:
    class Pair(NamedTuple):
        a: torch.Tensor
        b: list[Any]

    def nested(x: torch.Tensor) -> dict[Any, Any]:
        return {2: [x + 1, ()], "d": {"x": x * 3}, "flag": (True, None, [torch.float32, 1.5])}

    def named(x: torch.Tensor) -> list[Any]:
        return [Pair(x * 2, ["text", x - 1])]

    x = torch.randn(3)
    for function in (nested, named):
        jitted = mlcc.jit(function)
        first = jitted(x)
        assert found_in_core(jitted, x)
        second = jitted(x)
        for found in (first, second):
            assert repr(found) == repr(function(x))
        assert second is not first
        second.clear()
        assert repr(jitted(x)) == repr(function(x))


def test_containers_that_only_pytree_knows() -> None:
    class Pair(NamedTuple):
        a: torch.Tensor
        b: torch.Tensor

    def f(pair: Pair) -> Pair:
        return Pair(pair.b * 2, pair.a.sum(0))

    def g(tensors: Any) -> list[torch.Tensor]:
        return [x + 1 for x in (tensors.values() if isinstance(tensors, dict) else tensors)]

    first, second = mlcc.jit(f), mlcc.jit(g)
    for size in (3, 3, 1, 7):  # sizes are guards, which are read from the leaves
        x, y = torch.randn(size, 2), torch.randn(size)
        found, expected = first(Pair(x, y)), f(Pair(x, y))
        assert type(found) is Pair
        torch.testing.assert_close(found, expected)
        ordered = collections.OrderedDict(a=x, b=y)
        for many in (ordered, collections.defaultdict(int, ordered), collections.deque([x, y])):
            torch.testing.assert_close(second(many), g(many))


def test_modes_are_part_of_the_signature() -> None:
    f = mlcc.jit(lambda x, w: x @ w + 1)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f(x, w).dtype == f.__wrapped__(x, w).dtype
    assert f(x, w).dtype == torch.float32
    with torch.inference_mode():
        assert f(x, w).is_inference()
    assert not f(x, w).is_inference()


def test_a_module_that_changes_is_noticed() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.scale = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale

    module = Scaled()
    f = mlcc.jit(module)
    x = torch.randn(2, 3)
    torch.testing.assert_close(f(x), module(x))
    module.scale = 3.0
    torch.testing.assert_close(f(x), module(x))
    module.linear = torch.nn.Linear(3, 3)
    torch.testing.assert_close(f(x), module(x))
    module.linear.weight = torch.nn.Parameter(torch.ones(3, 3))
    torch.testing.assert_close(f(x), module(x))
    module.linear.register_forward_hook(lambda m, i, o: o + 1)
    torch.testing.assert_close(f(x), module(x))
    assert f.scale == 3.0


class _Configured(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.plain = torch.ones(3)
        self.factors = [2.0]
        self.names = {"a": 1.0}
        self.config = types.SimpleNamespace(shift=3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = (x * self.factors[0] + self.config.shift) * self.names["a"]
        result = result * self.weight + self.plain
        return result * 2 if getattr(self, "doubled", False) else result


def _replace_data(module: torch.nn.Module) -> None:
    module.weight.data = torch.full((1,), 7.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.factors.__setitem__(0, 5.0),
        lambda module: setattr(module, "factors", [6.0]),
        lambda module: module.names.__setitem__("a", 4.0),
        lambda module: setattr(module.config, "shift", 1.0),
        lambda module: setattr(module, "plain", torch.zeros(3)),
        lambda module: setattr(module, "doubled", True),
        lambda module: setattr(module, "forward", lambda x: x * 11),
        lambda module: module.double(),
        _replace_data,
    ],
)
def test_an_attribute_that_changes_is_noticed(change: Any) -> None:
    module, x = _Configured(), torch.ones(3)
    compiled = mlcc.jit(module)
    compiled(x), compiled(x)
    change(module)
    torch.testing.assert_close(compiled(x), module(x))
    torch.testing.assert_close(compiled(x), module(x))


def test_a_hook_of_all_modules_is_noticed() -> None:
    module, x = _Configured(), torch.ones(3)
    compiled = mlcc.jit(module)
    compiled(x)
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda m, inputs, output: output * 3
    )
    try:
        torch.testing.assert_close(compiled(x), module(x))
    finally:
        hook.remove()


def test_forward_mode_derivatives_are_eagers() -> None:
    compiled = mlcc.jit(lambda x: x * x)
    x = torch.randn(3)
    compiled(x)
    with torch.autograd.forward_ad.dual_level():
        result = compiled(torch.autograd.forward_ad.make_dual(x, torch.ones(3)))
        tangent = torch.autograd.forward_ad.unpack_dual(result).tangent
        torch.testing.assert_close(tangent, 2 * x)


def test_training_a_module() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    f = mlcc.jit(module)
    x = torch.randn(5, 4)
    f(x).sum().backward()
    found = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    module(x).sum().backward()
    for a, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(a, parameter.grad)
    with torch.no_grad():
        torch.testing.assert_close(f(x), module(x))


def test_under_torch_compile_the_original_is_traced() -> None:
    f = mlcc.jit(lambda x: x * 2)
    torch._dynamo.reset()
    run = torch.compile(lambda x: f(x) + 1, backend="eager", fullgraph=True)
    assert run(torch.ones(2)).tolist() == [3.0, 3.0]


def test_subclasses_and_conjugates_run_the_original() -> None:
    f = mlcc.jit(lambda x: x + 1)

    class Sub(torch.Tensor):
        pass

    assert type(f(torch.ones(2).as_subclass(Sub))) is Sub
    x = torch.ones(2, dtype=torch.complex64).conj()
    assert torch.equal(f(x), x + 1)


def test_what_is_no_function() -> None:
    with pytest.raises(mlcc.Error, match="found a int, expected a function"):
        mlcc.jit(3)  # type: ignore[call-overload]


def test_threads() -> None:
    import threading

    f = mlcc.jit(lambda x: torch.exp(x) + 1)
    x = torch.randn(50)
    expected = f.__wrapped__(x)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            if not torch.allclose(f(x), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_calls_while_another_thread_traces() -> None:
    """A trace replaces a module's parameters for all threads: others find what is compiled, or wait."""
    module = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).eval()
    compiled, sharing = mlcc.jit(module), mlcc.jit(torch.nn.Sequential(module, torch.nn.ReLU()))
    x = torch.randn(4, 64)
    with torch.no_grad():
        expected = compiled(x)
        torch.testing.assert_close(expected, module(x))
    is_done, errors, num_calls = threading.Event(), [], [0, 0]

    def call(place: int) -> None:
        with torch.no_grad():
            while not is_done.is_set():
                try:
                    found = (compiled, sharing)[place](x)
                    torch.testing.assert_close(found, (expected, expected.relu())[place])
                except Exception as error:
                    errors.append(error)
                    return
                num_calls[place] += 1

    threads = [threading.Thread(target=call, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        for rank in range(2, 6):  # each is a trace
            compiled(torch.randn(*[2] * rank, 64))
    is_done.set()
    for thread in threads:
        thread.join()
    assert errors == [] and min(num_calls) > 0


def test_parameters_may_be_swapped() -> None:
    """torch.utils.swap_tensors refuses tensors that something else holds, or has weak references to."""
    layer = torch.nn.Linear(64, 64)
    compiled = mlcc.jit(layer)
    x = torch.randn(3, 64)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layer(x))
            torch.utils.swap_tensors(layer.weight, torch.nn.Parameter(torch.randn(64, 64)))
            torch.testing.assert_close(compiled(x), layer(x))


def test_a_graph_that_does_not_compile_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, mlcc_log: Any, tmp_path: Any
) -> None:
    def fail(*_: Any) -> None:
        raise mlcc.InternalError("planted")

    monkeypatch.setenv("MLCC_DUMP_DIR", str(tmp_path))
    monkeypatch.setattr(mlcc.capture.session, "_compiled", fail)
    x = torch.randn(5)
    with mlcc.config.patch(strict=False), mlcc_log("fallback") as lines:
        with pytest.warns(UserWarning, match="planted"):
            found = mlcc.jit(lambda x: x * 2 + 1)(x)
        torch.testing.assert_close(found, x * 2 + 1)
    assert not any("trace failed" in line for line in lines)


def test_disable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCC_DISABLE", "1")
    before = mlcc.capture.backend.timings().graphs
    assert mlcc.jit(lambda x: x + 1)(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert mlcc.capture.backend.timings().graphs == before


# -- the core's dispatch


def found_in_core(jitted: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a call needs nothing of Python."""
    return lookup(jitted)._dispatch(*args, **kwargs) is not NotImplemented


def test_a_plain_call_stays_in_the_core() -> None:
    @mlcc.jit
    def function(x: Any, pair: Any, *, scale: float = 1.0, names: Any = None) -> Any:
        return {"a": x * scale + pair[0], "b": [pair[1]["y"] * 2, None, names]}

    def call(rows: int, scale: float) -> tuple[Any, Any]:
        x, y = torch.randn(rows, 3), torch.randn(3, rows).t()
        args, kwargs = (x, (x + 1, {"y": y})), {"scale": scale, "names": "n"}
        found = found_in_core(function, *args, **kwargs)
        result = function(*args, **kwargs)
        torch.testing.assert_close(result["a"], x * scale + args[1][0])
        torch.testing.assert_close(result["b"][0], y * 2)
        assert result["b"][1:] == [None, "n"]
        return found, result

    assert not call(4, 0.5)[0]
    assert call(4, 0.5)[0]
    assert call(7, -2.0)[0]
    assert not found_in_core(function, torch.randn(4, 3), (torch.randn(4, 3), {"z": 1}))


def step(x: torch.Tensor, moment: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    moment.mul_(0.9).add_(gradient, alpha=0.1)
    x.sub_(moment)
    return x.sum()


def test_a_call_that_writes_its_arguments_stays_in_the_core() -> None:
    function = mlcc.jit(step)
    for count, rows in enumerate((4, 7, 7)):
        given = [torch.randn(rows, 3) for _ in range(3)]
        expected = [tensor.clone() for tensor in given]
        assert found_in_core(function, *[tensor.clone() for tensor in given]) == (count > 0)
        torch.testing.assert_close(function(*given), step(*expected))
        torch.testing.assert_close(given, expected)
        assert [tensor._version > 0 for tensor in given] == [True, True, False]


def test_writes_that_overlap_or_that_autograd_follows_are_eagers() -> None:
    function = mlcc.jit(step)
    function(*(torch.randn(4) for _ in range(3)))

    def check(given: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        assert not found_in_core(function, *given)
        torch.testing.assert_close(function(*given), step(*expected))
        torch.testing.assert_close(given, expected)

    memory = torch.randn(12)
    check(*([base[:4], base[8:], base[2:6]] for base in (memory, memory.clone())))
    check(*([torch.empty(0) for _ in range(3)] for _ in range(2)))
    for _ in range(2):  # a write to a leaf raises, to what autograd made it has a gradient
        with pytest.raises(RuntimeError, match="leaf Variable"):
            function(torch.randn(4, requires_grad=True), torch.randn(4), torch.randn(4))
        weight = torch.ones(4, requires_grad=True)
        given, expected = ([weight * 1, torch.zeros(4), torch.ones(4)] for _ in range(2))
        check(given, expected)
        given[0].sum().backward()
        assert weight.grad is not None and weight.grad.tolist() == [1.0] * 4 and given[0].grad_fn
        weight.grad = None


class Shifted(torch.nn.Module):
    """Reads a buffer and an attribute around a write to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(64.0))
        self.constant = torch.arange(64.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.offset * 2 + self.constant
        x.add_(1)
        return x * 3 + before + self.offset.flip(0) + self.constant.flip(0)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["offset", "constant"])
def test_writes_to_what_a_module_holds_are_eagers(name: str, first: bool) -> None:
    ours, theirs = Shifted(), Shifted()
    function = mlcc.jit(ours)
    with torch.no_grad():
        if not first:
            assert torch.equal(function(torch.ones(64)), theirs(torch.ones(64)))
            assert found_in_core(function, torch.ones(64))
        assert torch.equal(function(getattr(ours, name)), theirs(getattr(theirs, name)))
    assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_buffers_that_a_module_writes_are_written_in_the_core() -> None:
    ours, theirs = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    function = mlcc.jit(ours)
    with torch.no_grad():
        for count in range(3):
            x = torch.randn(8, 3) + count
            torch.testing.assert_close(function(x), theirs(x))
            torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
            before = ours.running_mean.clone()
            assert found_in_core(function, x)
            assert not torch.equal(before, ours.running_mean)
            theirs(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.clone().requires_grad_(),
        lambda x: torch.nn.Parameter(x),
        lambda x: x[None],
        lambda x: torch.randn(1, 5),
    ],
)
def test_another_form_of_tensor_is_traced_anew(change: Any) -> None:
    function = mlcc.jit(lambda x: x * 2)
    x = torch.randn(4, 5)
    function(x)
    assert found_in_core(function, torch.randn(6, 5))
    other = change(x)
    if isinstance(other, torch.nn.Parameter) or other.requires_grad:
        assert not found_in_core(function, other)
    torch.testing.assert_close(function(other), other * 2)


def test_a_tensor_given_twice_runs_the_original() -> None:
    function = mlcc.jit(lambda x, y: x + 1 if x is y else x - 1)
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(function(x, y), x - 1)
    torch.testing.assert_close(function(x, x), x + 1)


def test_constants_are_told_apart_by_type() -> None:
    scaled = mlcc.jit(lambda x, n: x * n, static=("n",))
    x = torch.arange(3)
    for n in (1, 1.0, True):
        assert scaled(x, n).dtype == (x * n).dtype
    unfixed = mlcc.jit(lambda x, a: torch.copysign(x, torch.tensor(1.0) * a), dynamic=False)
    y = torch.ones(3)
    for a in (0.0, -0.0):
        torch.testing.assert_close(unfixed(y, a), torch.copysign(y, torch.tensor(a)))


class Scaled(torch.nn.Module):
    """A module whose plain attribute decides a dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.n: float = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x times n."""
        return x * self.n


def test_attributes_are_told_apart_by_type() -> None:
    module = Scaled()
    function = mlcc.jit(module)
    x = torch.arange(3)
    for n in (1, 1.0, True, 0.0, -0.0):
        module.n = n
        result = function(x)
        assert result.dtype == (x * n).dtype
        assert torch.equal(result.signbit(), (x * n).signbit())
        assert found_in_core(function, x)


def test_a_jitted_module_that_holds_its_jit_is_collected() -> None:
    module = torch.nn.Linear(3, 3)
    with torch.no_grad():
        module.fast = [mlcc.jit(module)]
        module.fast[0](torch.randn(2, 3))
    seen = weakref.ref(module)
    del module
    gc.collect()
    assert seen() is None


def test_a_size_that_a_guard_excludes_is_traced_anew() -> None:
    function = mlcc.jit(lambda x: x * 2 if x.shape[0] % 4 == 0 and x.shape[0] < 30 else x * 3)
    for rows, factor in ((8, 2), (9, 3), (12, 2), (13, 3), (32, 3)):
        x = torch.randn(rows)
        torch.testing.assert_close(function(x), x * factor)
    assert found_in_core(function, torch.randn(16))
    assert found_in_core(function, torch.randn(15))
    assert function._traces <= 4


def test_modes_are_seen_by_the_core() -> None:
    function = mlcc.jit(lambda x: x @ x + 1)
    x = torch.randn(4, 4)
    function(x)
    assert found_in_core(function, x)
    with torch.no_grad():
        assert not found_in_core(function, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert function(x).dtype == torch.bfloat16
    with torch.overrides.TorchFunctionMode():
        assert not found_in_core(function, x)
    torch.testing.assert_close(torch.func.vmap(function)(x[None]), (x @ x + 1)[None])


# -- what a trace would not repeat


class _Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[torch.Tensor] = []
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(x * 2)
        self.last = x * 3
        return x * self.calls


def test_a_module_that_changes_its_attributes_runs_the_original(mlcc_log: Any) -> None:
    module, x = _Counts(), torch.ones(3)
    jitted = mlcc.jit(module)
    with mlcc_log("fallback") as lines:
        for calls in (1.0, 2.0, 3.0):
            assert torch.equal(jitted(x), x * calls)
    (line,) = lines
    assert line.startswith("jit of _Counts (test_jit.py:")
    assert line.endswith("runs eagerly: it changes the module's calls")
    assert [type(one) for one in module.seen] == [torch.Tensor] * 3
    assert torch.equal(module.last, x * 3)


class _Reads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.zeros(3)  # no buffer
        self.scales = (2, 3)
        self.more = [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scales[0] * self.more[0] + self.shift


def test_attributes_that_are_no_plain_values_are_noticed() -> None:
    module, x = _Reads(), torch.ones(3)
    jitted = mlcc.jit(module)
    assert torch.equal(jitted(x), x * 2)
    module.shift = torch.ones(3)
    assert torch.equal(jitted(x), x * 2 + 1)
    module.shift.add_(1)
    assert torch.equal(jitted(x), x * 2 + 2)
    module.scales = (5, 3)
    assert torch.equal(jitted(x), x * 5 + 2)
    module.more[0] = 7
    assert torch.equal(jitted(x), x * 35 + 2)


@pytest.mark.parametrize("held", [torch.ones(()), torch.ones(3, requires_grad=True)])
def test_a_tensor_that_is_no_buffer_is_no_constant(held: torch.Tensor) -> None:
    module, x = _Reads(), torch.ones(3)
    module.shift = held
    jitted = mlcc.jit(module)
    assert jitted(x).requires_grad == held.requires_grad
    with torch.no_grad():
        held.add_(4)
    assert torch.equal(jitted(x), x * 2 + 5)


def test_lists_and_dicts_that_are_changed_run_the_original() -> None:
    def append(x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        seen.append(x * 2)
        return x + 1

    def put(x: torch.Tensor, named: dict[str, torch.Tensor]) -> torch.Tensor:
        named["x"] = x * 2
        return x + 1

    x, seen, named = torch.ones(3), [torch.ones(3)], {"y": torch.ones(3)}
    assert torch.equal(mlcc.jit(append)(x, seen), x + 1)
    assert torch.equal(mlcc.jit(put)(x, named), x + 1)
    assert torch.equal(seen[1], x * 2)
    assert torch.equal(named["x"], x * 2)


def set_data(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y * 2
    return x + 1


def set_grad(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.grad = y * 2
    return x + y


def require_grad(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    return x * y


def name(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.title = "x"
    return x * y


def make_leaf(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).requires_grad_()


@pytest.mark.parametrize("function", [set_data, set_grad, require_grad, name, make_leaf])
def test_what_no_graph_records_runs_the_original(function: Any, mlcc_log: Any) -> None:
    jitted = mlcc.jit(function)
    with mlcc_log("fallback") as lines:
        for _ in range(2):
            x, y, same = torch.ones(3), torch.randn(3), torch.ones(3)
            found, expected = jitted(x, y), function(same, y)
            torch.testing.assert_close(found, expected)
            assert (found.requires_grad, found.is_leaf) == (
                expected.requires_grad,
                expected.is_leaf,
            )
            torch.testing.assert_close(x, same)
            assert x.requires_grad == same.requires_grad
            assert x.__dict__ == same.__dict__
            if same.is_leaf and same.grad is not None:
                assert torch.equal(x.grad, same.grad)
    assert len([line for line in lines if "runs eagerly" in line]) == 1


class _Pair:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def test_results_of_other_classes_are_eagers() -> None:
    result = mlcc.jit(lambda x: _Pair(x * 2))(torch.ones(3))
    assert type(result.x) is torch.Tensor
    assert torch.equal(result.x, torch.full((3,), 2.0))


def test_a_method_of_a_module_reads_its_parameters() -> None:
    module, x = torch.nn.Linear(2, 2), torch.randn(1, 2)
    jitted = mlcc.jit(module.forward)
    assert jitted(x).requires_grad
    module.weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert torch.equal(jitted(x), module(x))


def test_what_a_partial_holds_are_arguments() -> None:
    weight, x = torch.ones((), requires_grad=True), torch.ones(2)
    jitted = mlcc.jit(functools.partial(torch.mul, weight))
    assert jitted(x).requires_grad
    with torch.no_grad():
        weight.add_(4)
    assert torch.equal(jitted(x), x * 5)


def test_methods_of_other_objects_are_refused() -> None:
    class Scale:
        def __init__(self) -> None:
            self.by = 2

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

        __call__ = scaled

    for one in (Scale(), Scale().scaled):
        with pytest.raises(mlcc.Error, match="attributes of a Scale would be read as constants"):
            mlcc.jit(one)


@pytest.mark.parametrize("inner", [lambda x: x, lambda x: x[None], lambda x: x[1:]])
def test_gradients_follow_what_is_written(inner: Callable[..., torch.Tensor]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        inner(x).mul_(3 * w)
        return x + w

    def gradients(function: Callable[..., torch.Tensor], given: int) -> list[torch.Tensor]:
        leaves = [torch.full((3,), 2.0, requires_grad=True), torch.ones(1, requires_grad=True)]
        x = leaves[0] * 1 if given else torch.full((3,), 2.0)
        out = function(x, leaves[1] * 1)
        found = torch.autograd.grad([out.sum(), x.sum()], leaves, allow_unused=True)
        return [x, out, *(g for g in found if g is not None)]

    jitted = mlcc.jit(f)
    for given in (0, 1, 0, 1):
        for found, expected in zip(gradients(jitted, given), gradients(f, given), strict=True):
            torch.testing.assert_close(found, expected)


def test_writing_to_a_leaf_that_requires_grad_is_eagers_error() -> None:
    jitted = mlcc.jit(lambda x: x.add_(1))
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        jitted(torch.ones(3, requires_grad=True))
    with torch.no_grad():
        assert torch.equal(jitted(torch.ones(3, requires_grad=True)), torch.full((3,), 2.0))


def test_training_batch_norm_and_lstm(mlcc_log: Any) -> None:
    """Where torch's own passes for Dynamo do not fit a trace without it."""
    norm = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3))
    other = copy.deepcopy(norm)
    x = torch.randn(2, 2, 4, 4)
    with mlcc_log("fallback") as lines:
        result = mlcc.jit(norm)(x)
    assert not any("trace failed" in line for line in lines)
    torch.testing.assert_close(result, other(x))
    torch.testing.assert_close(norm[1].running_var, other[1].running_var)
    lstm = torch.nn.LSTM(4, 5)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(mlcc.jit(lstm)(x)[0], lstm(x)[0])


def test_a_number_that_only_python_uses() -> None:
    jitted = mlcc.jit(lambda x, s: (x * 2, x * s)[0])
    assert torch.equal(jitted(torch.ones(2), 0.5), torch.full((2,), 2.0))


def test_copies_of_a_jitted_module_trace_anew() -> None:
    jitted, x = mlcc.jit(torch.nn.Linear(2, 2)), torch.randn(1, 2)
    expected = jitted(x)
    for other in (copy.deepcopy(jitted), pickle.loads(pickle.dumps(jitted))):
        torch.testing.assert_close(other(x), expected)
        assert other.weight is not jitted.weight


@torch.library.custom_op("mlcc_jit_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_ops_may_be_read_from_globals() -> None:
    assert torch.equal(mlcc.jit(lambda x: twice(x + 1) * 3)(torch.ones(3)), torch.full((3,), 12.0))


def _twice_and_turned(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x.t_()
    return x * 1


def _turned_twice(x: torch.Tensor) -> torch.Tensor:
    x.t_()
    x.mul_(2)
    x.t_()
    return x * 1


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize(
    ("function", "shape", "part"),
    [
        (_twice_and_turned, (6,), (slice(None, None, 2),)),
        (_turned_twice, (2, 6), (slice(None), slice(None, None, 2))),
    ],
)
def test_what_changes_elements_and_form_of_an_argument_leaves_its_neighbours_alone(
    function: Callable[[torch.Tensor], torch.Tensor],
    shape: tuple[int, ...],
    part: tuple[slice, ...],
    dynamic: bool | None,
) -> None:
    ours = torch.arange(float(math.prod(shape))).view(shape)
    eagers = ours.clone()
    x, y = ours[part], eagers[part]
    assert torch.equal(mlcc.jit(function, dynamic=dynamic)(x), function(y))
    assert x.stride() == y.stride() and torch.equal(ours, eagers)
