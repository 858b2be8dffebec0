"""Tests of commands that print lists page by page, with a real SBF."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from virtcloud.cli import main
from virtcloud.client.sbf import SbfClient
from virtcloud.model.topology import Topology

SITES = [f"s{number:03}" for number in range(120)]


def make_site(name: str) -> dict[str, object]:
    switch = {"name": f"{name}-sw", "ports": ["p1"], "platform": "linux_bridge", "address": "127.0.0.1:1"}
    return {"name": name, "switches": [switch], "hosts": [{"name": f"{name}-h1", "ports": ["eth0"]}]}


@pytest.fixture
def address(sbf: str) -> Iterator[str]:
    with SbfClient(sbf) as client:
        links = [{"a": f"{name}-sw:p1", "b": f"{name}-h1:eth0"} for name in SITES]
        topology = {"name": "many", "sites": [make_site(name) for name in SITES], "links": links}
        client.put_topology(Topology.model_validate(topology), "*")
        yield sbf


def run(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--url", address, *arguments])


def test_a_list_prints_all_pages_as_one_table(address: str) -> None:
    head, *lines = run(address, "site", "list").stdout.splitlines()
    assert (head.split()[0], [line.split()[0] for line in lines]) == ("site", SITES)
    lines = run(address, "element", "list", "--kind", "host").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"{name}-h1" for name in SITES]


def test_all_pages_are_one_json_array(address: str) -> None:
    assert [site["name"] for site in json.loads(run(address, "site", "list", "--json").stdout)] == SITES
    assert json.loads(run(address, "cluster", "list", "--json").stdout) == []


@pytest.mark.parametrize("limit", [1, 100, 101, 1000])
def test_a_limit_ends_the_list(address: str, limit: int) -> None:
    assert len(run(address, "site", "list", "--limit", str(limit)).stdout.splitlines()) == 1 + min(limit, 120)


def test_audit_prints_the_rows_of_a_period(address: str) -> None:
    rows = [json.loads(line) for line in run(address, "audit", "--since", "1h", "--json").stdout.splitlines()]
    assert ("topology_put" in {row["what"] for row in rows}, [row["id"] for row in rows]) == (
        True,
        sorted(row["id"] for row in rows),
    )
    assert run(address, "audit", "--until", "2020-01-01").stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "site list --limit 0",
        "site list --limit -1",
        "cluster list --limit x",
        "cluster list --element nothing",
        "cluster list --site nowhere",
        "cluster list --state sleeping",
        "cluster list --ended --limit 1001",
        "element list --site nowhere",
        "element list --kind router",
        "audit --element nothing",
        "audit --since tomorrow",
        "audit --since 1h --until 2h",
        "audit --who eva --follow",
    ],
)
def test_bad_input_of_a_list_ends_with_code_2(address: str, arguments: str) -> None:
    result = run(address, *arguments.split())
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert result.stderr
