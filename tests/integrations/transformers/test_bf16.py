"""In bfloat16, reading from the hot buffer differs from stock as the stock backends differ from one another.

Tokens can't be compared in bfloat16: the two stock backends already select different rows. What can be compared is
the logits of one fixed continuation. Where every run chooses rows and experts itself, the largest difference is
that of a flipped choice; with the choices of the stock run imposed on all, it is that of rounding.
Architectures without sdpa have one stock backend only: the same weights in float32 stand in for the other.
"""

import sys
from dataclasses import replace
from typing import Any

import precision
import pytest
import torch
import zoo

SEEDS = (0, 1)
STEPS, CONTEXT = 12, 64
CASES = [case for case in zoo.CASES if case.name != "glm_moe_dsa-FSFS"]

# Of what the second backend gives (torch 2.13, one core), absorbed attention gives 0.87 to 1.02 of the RMS and 0.75
# to 1.07 of the largest difference with imposed choices, and errs 0.85 to 1.06 times as much as the first backend;
# one wrong row in each selection gives an imposed RMS of more than 20. With its own choices a flip more or less makes
# 0.4 to 1.7 of the RMS. That nothing is rounded on the way is for `test_attention.py` to see.
IMPOSED_RMS_RATIO = 1.1
IMPOSED_PEAK_RATIO = 1.75
OWN_RMS_RATIO = 2.5
ACCURACY_RATIO = 1.1


class Measured:
    """All runs of one architecture, over its seeds: of the base, of the second stock backend, of each mode."""

    def __init__(self, case: zoo.ModelCase) -> None:
        """Run every contender for every seed."""
        self.name = case.name
        subjects = [precision.random_subject(replace(case, seed=s), steps=STEPS, context=CONTEXT) for s in SEEDS]
        self._runs = [subject.measure() for subject in subjects]
        self.base, self.other, *rest = self._runs[0]
        self.modes = [name for name in rest if name.startswith("hisparse")]

    def free(self, name: str, other: str) -> torch.Tensor:
        """Return the logits' difference between two contenders that choose themselves, float32[N, V]."""
        return torch.cat([runs[name].free - runs[other].free for runs in self._runs])

    def fixed(self, name: str, other: str) -> torch.Tensor:
        """Return the difference between two contenders that choose as the base did, float32[N, V]."""
        return torch.cat([runs[name].fixed - runs[other].fixed for runs in self._runs])


def rms(difference: torch.Tensor) -> float:
    """Root of the mean square."""
    return float(difference.square().mean().sqrt())


def peak(difference: torch.Tensor) -> float:
    """Largest absolute value."""
    return float(difference.abs().max())


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def measured(request: pytest.FixtureRequest) -> Measured:
    """All runs of one architecture, made once."""
    return Measured(request.param)


def test_no_accuracy_is_lost(measured: Measured) -> None:
    """Against float32 of the same weights, the hot buffer errs no more than the worse stock backend."""
    for difference in (measured.free, measured.fixed):
        stock_error = max(rms(difference(name, "float32")) for name in (measured.base, measured.other))
        assert stock_error > 0
        for mode in measured.modes:
            assert rms(difference(mode, "float32")) <= ACCURACY_RATIO * stock_error


def test_rounding_is_the_stock_backends_own(measured: Measured) -> None:
    """With one run's choices imposed on all, every mode differs from stock as the second stock backend does."""
    stock = measured.fixed(measured.other, measured.base)
    for mode in measured.modes:
        hot = measured.fixed(mode, measured.base)
        assert rms(hot) <= IMPOSED_RMS_RATIO * rms(stock)
        assert peak(hot) <= IMPOSED_PEAK_RATIO * peak(stock)


def test_difference_is_the_stock_backends_own(
    measured: Measured, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own choices, every mode differs from stock as the second stock backend does."""
    stock = measured.free(measured.other, measured.base)
    for mode in measured.modes:
        hot = measured.free(mode, measured.base)
        report = {"hisparse": peak(hot), measured.other: peak(stock)}
        record_property(f"max_logit_difference_{mode}", report)
        with capsys.disabled():
            sys.stdout.write(f"\n  bf16 {measured.name} {mode}: max |dlogit| {report} ")
        assert rms(hot) <= OWN_RMS_RATIO * rms(stock)


def test_expanding_stays_within_the_largest_difference(measured: Measured) -> None:
    """Where the stock attention itself reads the selected rows, no logit is further off than the stock pair's worst."""
    for mode in measured.modes:
        if mode != "hisparse absorbed":
            assert peak(measured.free(mode, measured.base)) <= peak(measured.free(measured.other, measured.base)) / 4
