from typing import Any

import pytest
from support.cli_calls import RunCommand
from support.fake_machine import clusters

PUBLICATION: dict[str, Any] = {
    "cluster": "demo",
    "cluster_id": "4c1f",
    "guest": "g1",
    "guest_port": 22,
    "site": "brno",
    "gateway": "brno-gw",
    "address": "198.51.100.7",
    "port": 40000,
    "created_at": "2026-11-23T07:00:00Z",
    "created_by": "alice",
    "lease_ends": "2026-11-23T09:00:00Z",
}
PATH = "/v1/clusters/demo/publications"


def test_publishing_names_the_address_and_the_end(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clusters.DOCUMENTS, PATH, PUBLICATION)
    result = run("cluster", "publish", "demo", "g1:22")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("198.51.100.7:40000 will lead to g1:22 of cluster demo until ")
    assert result.output.endswith("; the publication begins when gateway brno-gw confirms it\n")


def test_the_list_shows_why_a_publication_is_suspended(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "guests without an image that is certified"
    monkeypatch.setitem(clusters.DOCUMENTS, PATH, [PUBLICATION | {"suspended": reason}])
    result = run("cluster", "publications", "demo")
    assert f"suspended: {reason}" in " ".join(result.stdout.split())
    assert result.stderr == (
        "virtcloud: to restore a suspended publication, remove the reason for the suspension, and repeat "
        "'cluster publish'\n"
    )


@pytest.mark.parametrize(("ended", "text"), [([PUBLICATION], "no longer leads to g1:22"), ([], "is not published")])
def test_unpublishing_names_what_ended(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, ended: list[Any], text: str
) -> None:
    monkeypatch.setitem(clusters.DOCUMENTS, f"{PATH}/g1/22", ended)
    result = run("cluster", "unpublish", "demo", "g1:22")
    assert (result.exit_code, text in result.output) == (0, True), result.output


@pytest.mark.parametrize("target", ["g1", "g1:0", "g1:65536", "g1:ssh", "G 1:22", "g1:53/sctp", "g1:53/"])
def test_a_bad_target_is_refused(run: RunCommand, target: str) -> None:
    result = run("cluster", "publish", "demo", target)
    assert (result.exit_code, "expected" in result.output) == (2, True), result.output


def test_a_udp_port_is_shown_with_its_protocol(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clusters.DOCUMENTS, PATH, PUBLICATION | {"guest_port": 53, "protocol": "udp"})
    output = run("cluster", "publish", "demo", "g1:53/udp").output
    assert output.startswith("198.51.100.7:40000/udp will lead to g1:53/udp of cluster demo until ")


def test_the_list_shows_the_gateway_that_failed(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clusters.DOCUMENTS, PATH, [PUBLICATION | {"moved_from": "brno-gw2"}])
    output = " ".join(run("cluster", "publications", "demo").output.split())
    assert "published; moved from brno-gw2, which did not answer" in output
