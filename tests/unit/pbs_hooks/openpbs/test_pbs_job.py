"""Hosts of a job, and the reason that travels in a job's variable."""

import pytest

from pbs_hooks.openpbs.hooks.pbs_job import (
    REASON_VARIABLE,
    REPORTED_VARIABLE,
    format_reason,
    read_unreported_reason,
)
from virtcloud.jobs.host_names import parse_exec_vnode


@pytest.mark.parametrize(
    ("exec_vnode", "hosts"),
    [
        ("(n1:ncpus=4)+(n2:ncpus=4)", ("n1", "n2")),
        ("(n1:ncpus=4+n2:ncpus=4)", ("n1", "n2")),
        ("(n1:ncpus=1)+(n1:ncpus=1)", ("n1",)),
        ("n1", ("n1",)),
    ],
)
def test_hosts_are_read_from_what_pbs_chose(exec_vnode: str, hosts: tuple[str, ...]) -> None:
    assert parse_exec_vnode(exec_vnode) == hosts


TEXT = "vcluster: host brno-h2 has not confirmed (50%, twice); the job will be tried again"


def test_it_arrives_as_it_was_said() -> None:
    assert read_unreported_reason({REASON_VARIABLE: format_reason(3, TEXT)}, 3) == TEXT


def test_nothing_is_in_it_that_pbs_cuts_a_variable_at() -> None:
    value = format_reason(3, "a,b\nc\"d\\e it's")
    assert value == "3 a%2Cb%0Ac%22d%5Ce it%27s"


def test_it_is_of_the_run_before_and_of_no_other() -> None:
    assert read_unreported_reason({REASON_VARIABLE: format_reason(2, TEXT)}, 3) is None


def test_it_is_told_once() -> None:
    assert read_unreported_reason({REASON_VARIABLE: format_reason(3, TEXT), REPORTED_VARIABLE: "3"}, 3) is None
    assert read_unreported_reason({REASON_VARIABLE: format_reason(4, TEXT), REPORTED_VARIABLE: "3"}, 4) == TEXT


def test_a_job_that_never_failed_has_none() -> None:
    assert read_unreported_reason({}, None) is None
