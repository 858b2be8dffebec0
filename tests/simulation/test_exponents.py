"""Tests of ``compute_exponent``, which returns the exponent ``e`` with which costs grow as ``size ** e``."""

import pytest

from benchmarks.scale.exponents import compute_exponent


def test_a_constant_cost_has_the_exponent_zero() -> None:
    assert compute_exponent([100, 1_000, 10_000], [3.0, 3.0, 3.0]) == pytest.approx(0)


def test_a_proportional_cost_has_the_exponent_one() -> None:
    assert compute_exponent([100, 1_000, 10_000], [2.0, 20.0, 200.0]) == pytest.approx(1)
