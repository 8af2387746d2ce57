"""mlcc.jit: answers, gradients, mutation, signatures, and what it refuses."""

from typing import Any

import pytest
import torch

import mlcc

SCALE = 3.0


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


def test_a_value_read_from_a_global_is_refused_by_name() -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    with pytest.raises(
        mlcc.Error, match=r"f: reads 'SCALE' \(float\) from a global; pass it as an argument"
    ):
        f(torch.ones(2))


def test_a_tensor_read_from_a_closure_is_refused_by_name() -> None:
    bias = torch.ones(2)

    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + bias

    with pytest.raises(mlcc.Error, match=r"reads 'bias' \(tensor\) from a closure"):
        f(torch.ones(2))


def test_control_flow_on_a_tensor_is_refused() -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(mlcc.Error, match="control flow on the value of a tensor"):
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


def test_a_new_size_is_a_logged_recompile(mlcc_log: Any) -> None:
    @mlcc.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with mlcc_log("recompiles") as lines:
        assert f(torch.zeros(3)).shape == (3,)
        assert lines == []
        assert f(torch.zeros(4)).shape == (4,)
        assert f(torch.zeros(3)).shape == (3,)
    assert len(lines) == 1
    assert "recompile 1 of f" in lines[0]


def test_under_a_mode_the_original_runs() -> None:
    calls = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            calls.append(op)
            return op(*args, **(kwargs or {}))

    f = mlcc.jit(lambda x: torch.sin(x) + 1)
    x = torch.ones(2)
    with Count():
        f(x)
    assert len(calls) == 2
