"""A job as PBS shows it to a hook."""

import pytest

from virtcloud.pbs.hooks.job import hosts_of


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
    """Each once, in order."""
    assert hosts_of(exec_vnode) == hosts
