"""Tests of the hosts of a PBS job, and of the job variable that contains the reason for a failed start."""

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
def test_hosts_are_parsed_from_exec_vnode(exec_vnode: str, hosts: tuple[str, ...]) -> None:
    assert parse_exec_vnode(exec_vnode) == hosts


TEXT = "vcluster: host brno-h2 has not confirmed (50%, twice); the job will be tried again"


def test_the_reason_arrives_unchanged() -> None:
    assert read_unreported_reason({REASON_VARIABLE: format_reason(3, TEXT)}, 3) == TEXT


def test_the_reason_contains_no_separator_of_pbs() -> None:
    value = format_reason(3, "a,b\nc\"d\\e it's")
    assert value == "3 a%2Cb%0Ac%22d%5Ce it%27s"


def test_only_the_last_runs_reason_is_read() -> None:
    assert read_unreported_reason({REASON_VARIABLE: format_reason(2, TEXT)}, 3) is None


def test_the_reason_is_reported_once() -> None:
    assert read_unreported_reason({REASON_VARIABLE: format_reason(3, TEXT), REPORTED_VARIABLE: "3"}, 3) is None
    assert read_unreported_reason({REASON_VARIABLE: format_reason(4, TEXT), REPORTED_VARIABLE: "3"}, 4) == TEXT


def test_a_job_without_failure_has_no_reason() -> None:
    assert read_unreported_reason({}, None) is None
