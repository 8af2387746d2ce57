"""Collectives run beside kernels: they begin early and are waited for late, in one order in all processes."""

from __future__ import annotations

from tests.distributed.processes import Processes


def common(pair: Processes, name: str) -> list[list[str]]:
    """Steps of each graph, which are the same in both processes."""
    first, second = pair.run(f"overlap.{name}")
    assert first == second
    steps: list[list[str]] = first
    return steps


def test_a_product_runs_while_a_tensor_is_gathered(pair: Processes) -> None:
    (steps,) = common(pair, "beside_a_product")
    begins = steps.index("gather")
    # What is gathered, and where the product is code, rows in its order, at the same time.
    assert steps[:begins] in (["kernel"], ["kernel"] * 2)
    assert steps[begins + 1 : -2] in (["kernel"], ["product"])
    assert steps[-2:] == ["wait", "kernel"]


def test_layers_are_gathered_ahead_and_gradients_scattered_behind(pair: Processes) -> None:
    forward, backward = common(pair, "layers")
    assert forward[:4] == ["gather"] * 4
    assert forward.count("wait") == 4
    after = forward[4:]
    assert after[0] == "wait"
    for _ in range(3):  # nothing is waited for before the layer before is computed
        before = after[1 : after.index("wait", 1)]
        assert before and set(before) <= {"kernel", "product"}
        after = after[after.index("wait", 1) :]
    scattered = [place for place, step in enumerate(backward) if step == "scatter"]
    waited = [place for place, step in enumerate(backward) if step == "wait"]
    assert len(scattered) == len(waited) == 4
    # Kernels of the next gradients; the last two may be made at the same time.
    for place in scattered[:-2]:
        meanwhile = backward[place + 1 : min(one for one in waited if one > place)]
        assert {"kernel", "product"} & set(meanwhile)


def test_a_trace_shows_a_call_between_beginning_and_end(pair: Processes) -> None:
    for names in pair.run("overlap.trace"):
        assert names[0] == "all_gather_into_tensor"
        assert names[-1] == "wait_tensor"
        assert "sort" in names


def test_what_is_read_is_not_written_meanwhile(pair: Processes) -> None:
    (steps,) = common(pair, "written_afterwards")
    assert steps.index("wait") < steps.index("aten.copy_")


def test_sums_of_two_layers_are_under_way_at_once(pair: Processes) -> None:
    forward, _ = common(pair, "tensor_parallel")
    assert [step for step in forward if step in ("reduce", "wait")] == ["reduce"] * 2 + ["wait"] * 2
