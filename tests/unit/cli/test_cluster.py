import json
import time
from datetime import UTC, datetime

import pytest
from support.cli_calls import CREATE, RunCommand
from support.fake_machine.clusters import DOCUMENTS, FakeSbf

from virtcloud.model.cluster import ClusterState
from virtcloud.model.values import ClusterKey, UserName


def test_watch_prints_each_change_until_the_end(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--no-wait")
    sbf.next[ClusterState.ACTIVE] = ClusterState.RELEASED
    result = run("cluster", "watch", "demo")
    assert [line[10:] for line in result.stdout.splitlines()] == [
        "demo: configuring",
        "demo, brno-sw: adding",
        "demo, brno-h1: adding",
        "demo: active",
        "demo, brno-sw: confirmed",
        "demo, brno-h1: confirmed",
        "demo: released",
        "demo, brno-sw: removed",
        "demo, brno-h1: removed",
    ]


def test_watch_prints_one_json_document_per_line(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--no-wait")
    sbf.stuck = True
    first, *_ = run("cluster", "watch", "demo", "--timeout", "1s", "--json").stdout.splitlines()
    assert json.loads(first) == {
        "cluster": "demo",
        "element": None,
        "before": None,
        "after": "configuring",
        "detail": None,
    }


def test_the_list_has_one_line_per_cluster_in_a_pipe(run: RunCommand) -> None:
    run(*CREATE)
    head, line = run("cluster", "list").stdout.splitlines()
    assert head.split() == ["cluster", "owner", "state", "VLANs", "guests", "network", "lease", "ends", "reason"]
    assert line.split()[:9] == ["demo", "eva", "active", "VLAN", "100", "at", "brno,", "praha", "1"]


def test_a_list_with_ended_clusters_names_the_next_page(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE)
    result = run("cluster", "list", "--ended", "--limit", "1", "--before", "77aa")
    assert result.stderr == "for older clusters: --before 4c1f\n"
    assert sbf.listed[-1] == {"limit": ["1"], "before": ["77aa"], "ended": ["true"]}
    assert run("cluster", "list", "--ended").stderr == ""
    assert run("cluster", "list", "--limit", "1").stderr == ""


@pytest.mark.parametrize("others", [(), ("--ended", "--newest"), ("--ended", "--site", "brno")])
def test_the_option_before_requires_the_option_ended(run: RunCommand, others: tuple[str, ...]) -> None:
    result = run("cluster", "list", "--before", "77aa", *others)
    assert result.exit_code == 2
    assert "--before: expected --ended, and none of --newest" in result.stderr


def test_the_list_as_json_is_a_list(run: RunCommand) -> None:
    run(*CREATE)
    assert [cluster["key"] for cluster in json.loads(run("cluster", "list", "--json").stdout)] == ["demo"]


def test_an_empty_list_prints_only_to_stderr(run: RunCommand) -> None:
    result = run("cluster", "list")
    assert (result.stdout, result.stderr) == ("", "no clusters\n")


def test_list_and_show_print_members(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--no-wait")
    run(
        "cluster",
        "create",
        "more",
        "--host",
        "plzen-h1",
        "--image",
        "busybox",
        "--join",
        "demo",
        "--owner",
        "bob",
        "--no-wait",
    )
    sbf.clusters["more"] = sbf.clusters["more"].model_copy(update={"network": ClusterKey("demo")})
    with_member(sbf)
    assert " in demo " in run("cluster", "list").stdout.splitlines()[2]
    assert "members of this network: more of bob\n" in run("cluster", "show", "demo").stdout
    assert "\nmember of the network of cluster demo\n" in run("cluster", "show", "more").stdout


def test_show_has_guests_and_elements(run: RunCommand) -> None:
    run(*CREATE, "--network", "10.0.0.0/24")
    output = run("cluster", "show", "demo").stdout
    assert "cluster demo of eva is active\n" in output
    assert [line.split()[:4] for line in output.splitlines() if line.startswith(("g1", "brno-sw"))] == [
        ["g1", "brno-h1", "busybox", "10.0.0.1/24"],
        ["brno-sw", "switch", "brno", "confirmed"],
    ]


def test_show_has_the_time_of_an_unreachable_elements_state(
    run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    run(*CREATE)
    cluster = sbf.clusters["demo"]
    unreachable = {"reachable": False, "seen_at": datetime(2026, 1, 1, 8, tzinfo=UTC)}
    placements = tuple(placement.model_copy(update=unreachable) for placement in cluster.placements)
    sbf.clusters["demo"] = cluster.model_copy(update={"placements": placements})
    assert "confirmed as of 2026-01-01 08:00:00" in run("cluster", "show", "demo").stdout


def test_delete_waits_until_every_element_has_confirmed(run: RunCommand) -> None:
    run(*CREATE)
    result = run("cluster", "delete", "demo")
    assert (result.exit_code, result.stdout.startswith("cluster demo is released after ")) == (0, True)


def with_member(sbf: FakeSbf) -> None:
    members = {ClusterKey("more"): UserName("bob")}
    sbf.clusters["demo"] = sbf.clusters["demo"].model_copy(update={"members": members})


def test_members_are_named_before_their_network_is_deleted(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE)
    with_member(sbf)
    result = run("cluster", "delete", "demo")
    assert (result.exit_code, sbf.clusters["demo"].state) == (2, ClusterState.ACTIVE)
    assert "deleting cluster demo also deletes the clusters that joined its network: more of bob\n" in result.stderr
    assert "there is no terminal for the confirmation; pass --yes to confirm" in result.stderr


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0)])
def test_a_network_with_members_is_deleted_only_after_confirmation(
    run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setattr("virtcloud.cli.confirmation.is_terminal", lambda: True)
    run(*CREATE)
    with_member(sbf)
    result = run("cluster", "delete", "demo", stdin=answer)
    assert (result.exit_code, sbf.clusters["demo"].state is ClusterState.ACTIVE) == (code, code == 1)


def test_yes_deletes_a_network_with_members_without_confirmation(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE)
    with_member(sbf)
    assert run("cluster", "delete", "demo", "--yes").exit_code == 0


def test_sharing_prints_the_current_shares(run: RunCommand) -> None:
    run(*CREATE)
    assert run("cluster", "share", "demo", "bob", "carol").stdout == (
        "the network of cluster demo is shared with: bob, carol\n"
    )
    assert run("cluster", "unshare", "demo", "bob").stdout == "the network of cluster demo is shared with: carol\n"


def test_an_extension_reports_that_a_longer_lease_is_not_shortened(run: RunCommand) -> None:
    run(*CREATE)
    assert "which is later than requested. A lease is never shortened." in run("cluster", "extend", "demo", "1m").stdout


def test_wait_exits_with_1_after_its_timeout(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE, "--no-wait")
    sbf.stuck = True
    result = run("cluster", "wait", "demo", "--timeout", "0.1s")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        "virtcloud: cluster demo is configuring after 0.1 s, not active; SBF continues",
    )


def test_a_lease_is_extended_in_seconds(run: RunCommand, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*CREATE)
    monkeypatch.setitem(DOCUMENTS, "/v1/clusters/demo/lease", sbf.clusters["demo"].model_dump(mode="json"))
    result = run("cluster", "extend", "demo", "4h")
    assert sbf.put == [("/v1/clusters/demo/lease?attempt=0&owner=eva&id=4c1f", {"seconds": 14400.0})]
    assert result.stdout.startswith("cluster demo is active; lease ends 2026-07-01")


def test_a_lease_of_two_years_is_not_requested(run: RunCommand, sbf: FakeSbf) -> None:
    run(*CREATE)
    result = run("cluster", "extend", "demo", "730d")
    assert (result.exit_code, sbf.put) == (2, [])
    assert "'LENGTH': expected a duration of at most 366d, got '730d'" in result.stderr


def test_known_hosts_are_printed_as_lines(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [
        {"name": "g1", "cluster": "demo", "addresses": ["10.0.0.1/24"], "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5"},
        {"name": "old", "cluster": "root"},
    ]
    monkeypatch.setitem(DOCUMENTS, "/v1/clusters/demo/peers", {"key": "demo", "user": "alice", "peers": peers})
    result = run("cluster", "known-hosts", "demo")
    assert result.stdout == "g1,10.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5\n"
    assert result.stderr == "the host keys of old are not known: an earlier version of SBF created their cluster\n"
