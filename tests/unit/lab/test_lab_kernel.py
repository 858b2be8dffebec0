"""Tests of the choice of the processor to which User-mode Linux is bound."""

from virtcloud.lab.lab_kernel import choose_processor


def test_a_kernel_is_bound_to_the_processor_with_fewest_processes() -> None:
    assert choose_processor({0, 1, 2}, [0, 0, 1, 1, 1, 2]) == 2


def test_only_allowed_processors_are_chosen() -> None:
    assert choose_processor({1}, [1, 1]) == 1
