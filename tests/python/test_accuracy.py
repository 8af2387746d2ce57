"""The rule of tests/python/accuracy.py, mostly where it judges many results of one call together."""

from __future__ import annotations

import torch

from tests.python.accuracy import judge, judge_together
from tests.python.roundings import OtherRoundings

NOISE = 1e-9  # beside a reference of 1e-24: what rounding leaves of a gradient that is zero


def _step(seed: int) -> list[torch.Tensor]:
    """Three gradients with eager's rounding, and one that is zero in exact arithmetic."""
    generator = torch.Generator().manual_seed(seed)
    exact = _exact()
    rounded = [(g * (1 + 1e-7 * torch.randn(32, generator=generator))).float() for g in exact[:-1]]
    return [*rounded, NOISE * torch.randn(32, generator=generator)]


def _exact() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    gradients = [torch.randn(32, dtype=torch.double, generator=generator) for _ in range(3)]
    return [*gradients, torch.full([32], 1e-24, dtype=torch.double)]


def test_other_rounding_is_right() -> None:
    assert judge_together(_step(1), _step(2), _exact())


def test_noise_of_one_result_excuses_no_other() -> None:
    wrong = _step(1)
    wrong[1] = wrong[1] * 1.001
    verdict = judge_together(wrong, _step(2), _exact())
    assert verdict.reason.startswith("result 1: rms error")


def test_noise_may_be_larger_than_eagers() -> None:
    noisy = _step(1)
    noisy[3] = noisy[3] * 8
    assert judge_together(noisy, _step(2), _exact())


def test_noise_of_one_result_may_be_larger_too() -> None:
    noise, eager, exact = _step(1)[3], _step(2)[3], _exact()[3]
    assert judge(noise * 8, eager, exact)
    assert not judge(noise * 40, eager, exact)


def test_what_is_more_than_noise_is_wrong() -> None:
    wrong = _step(1)
    wrong[3] = wrong[3] * 40
    assert judge_together(wrong, _step(2), _exact()).reason.startswith("result 3: rms error")


def test_exactness_by_luck_is_not_demanded() -> None:
    eager = _step(2)
    eager[0] = _exact()[0].float()
    assert judge_together(_step(1), eager, _exact())


def test_integers_are_equal() -> None:
    steps = torch.arange(4)
    assert judge_together([steps], [steps], [steps])
    assert not judge_together([steps + 1], [steps], [steps])


def test_missing_results_are_told() -> None:
    assert not judge_together(_step(1)[:3], _step(2), _exact())


def test_eager_with_other_roundings_allows_that_result_alone() -> None:
    amplified, other = _step(1), _step(2)
    amplified[1], other[1] = amplified[1] * 1.001, other[1] * 0.9995
    assert not judge_together(amplified, _step(2), _exact())
    assert judge_together(amplified, _step(2), _exact(), [_step(3), other])
    amplified[2] = amplified[2] * 1.001
    verdict = judge_together(amplified, _step(2), _exact(), [other])
    assert verdict.reason.startswith("result 2: rms error")


def test_other_roundings_part_by_what_a_program_amplifies() -> None:
    x = torch.linspace(1.1, 1.9, 64)
    with OtherRoundings(0):
        once, cancelled = x * 3, (x * 3 + 1e4) - 1e4
    eps = torch.finfo(torch.float32).eps
    assert 0 < (once / (x * 3) - 1).abs().max() < 3 * eps
    assert (cancelled - x * 3).abs().max() > 1e-4
