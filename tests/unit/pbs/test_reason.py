"""A reason goes from a host to the server's hook in a variable, and is told once."""

from virtcloud.pbs.hooks.reason import NAME, TOLD, untold, written

TEXT = "vcluster: host brno-h2 has not confirmed (50%, twice); the job will be tried again"


def test_it_arrives_as_it_was_said() -> None:
    assert untold({NAME: written(3, TEXT)}, 3) == TEXT


def test_nothing_is_in_it_that_pbs_cuts_a_variable_at() -> None:
    value = written(3, "a,b\nc\"d\\e it's")
    assert value == "3 a%2Cb%0Ac%22d%5Ce it%27s"


def test_it_is_of_the_run_before_and_of_no_other() -> None:
    assert untold({NAME: written(2, TEXT)}, 3) is None


def test_it_is_told_once() -> None:
    assert untold({NAME: written(3, TEXT), TOLD: "3"}, 3) is None
    assert untold({NAME: written(4, TEXT), TOLD: "3"}, 4) == TEXT


def test_a_job_that_never_failed_has_none() -> None:
    assert untold({}, None) is None
