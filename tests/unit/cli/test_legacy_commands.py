from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from support.fake_machine.clusters import FakeSbf

from sbf_command import main
from virtcloud.model.cluster import ClusterState


@pytest.fixture
def sbf_with_network(sbf: FakeSbf) -> FakeSbf:
    assert run_sbf(sbf, "requestvlan", "mine").exit_code == 0
    return sbf


def run_sbf(sbf: FakeSbf, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["-q", "--url", sbf.url, *arguments], prog_name="sbf")


def states(sbf: FakeSbf) -> dict[str, str]:
    return {key: str(cluster.state) for key, cluster in sbf.clusters.items()}


def test_a_network_is_created_and_its_vlan_id_printed(sbf: FakeSbf) -> None:
    result = run_sbf(sbf, "requestvlan", "MojeVLAN4711")
    assert (result.exit_code, result.stdout) == (0, "100\n")
    spec = sbf.clusters["mojevlan4711"].spec
    assert (spec.owner, spec.sites, spec.all_hosts, spec.lease_s) == ("pbs", ("brno",), (), 31 * 86400)


def test_a_repeated_request_prints_the_same_vlan_id(sbf_with_network: FakeSbf) -> None:
    assert run_sbf(sbf_with_network, "requestvlan", "mine").stdout == "100\n"
    assert len(sbf_with_network.requests) == 1


def test_a_network_that_misses_its_deadline_is_removed(sbf: FakeSbf) -> None:
    sbf.stuck = True
    result = run_sbf(sbf, "requestvlan", "mine", "--timeout", "1s")
    assert result.exit_code == 1
    assert result.stderr == "sbf: network mine was not set up within 1 s; new clusters are being removed\n"
    assert states(sbf) == {"mine": "draining"}


def test_each_host_is_a_separate_member(sbf_with_network: FakeSbf) -> None:
    assert run_sbf(sbf_with_network, "addhosts", "mine", "Brno-h1.ics.muni.cz", "brno-h2").exit_code == 0
    assert states(sbf_with_network) == {"mine": "active", "mine_brno-h1": "active", "mine_brno-h2": "active"}
    assert [(request.spec.joins, request.spec.all_hosts) for request in sbf_with_network.requests[1:]] == [
        ("mine", ("brno-h1",)),
        ("mine", ("brno-h2",)),
    ]


def test_a_failed_host_removes_only_hosts_of_its_call(sbf_with_network: FakeSbf) -> None:
    run_sbf(sbf_with_network, "addhosts", "mine", "h1")
    sbf_with_network.refused["mine_h3"] = (404, "no-such-host", "host h3 is not known")
    result = run_sbf(sbf_with_network, "addhosts", "mine", "h1", "h2", "h3")
    assert (result.exit_code, result.stderr) == (2, "sbf: host h3 is not known\n")
    assert states(sbf_with_network) == {"mine": "active", "mine_h1": "active", "mine_h2": "released"}


OTHER_SPEC = (409, "other-spec", "the key has another spec")


def test_a_host_added_by_another_call_is_not_removed(sbf_with_network: FakeSbf) -> None:
    run_sbf(sbf_with_network, "addhosts", "mine", "h1")
    sbf_with_network.networks["mine"] = ["mine"]
    sbf_with_network.refused["mine_h1"] = OTHER_SPEC
    assert run_sbf(sbf_with_network, "addhosts", "mine", "h2", "h1", "--lease", "1d").exit_code == 1
    assert states(sbf_with_network) == {"mine": "active", "mine_h1": "active", "mine_h2": "released"}


def test_a_network_created_by_another_call_is_not_removed(sbf_with_network: FakeSbf) -> None:
    sbf_with_network.networks["mine"] = []
    sbf_with_network.refused["mine"] = OTHER_SPEC
    assert run_sbf(sbf_with_network, "requestvlan", "mine", "--lease", "1d").exit_code == 1
    assert states(sbf_with_network) == {"mine": "active"}


REFUSALS = [
    (409, "conflict", "the key mine_h1 belongs to another owner until its cluster has ended"),
    (422, "beyond-limit", "spec.lease_s: expected at most 86400"),
    (429, "too-many-requests", "pbs requested clusters too often"),
    (503, "database-unavailable", "the database does not answer"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one[1])
def test_a_failed_creation_does_not_remove_another_users_cluster(
    sbf_with_network: FakeSbf, refusal: tuple[int, str, str]
) -> None:
    run_sbf(sbf_with_network, "requestvlan", "mine_h1", "--owner", "bob")
    sbf_with_network.refused["mine_h1"] = refusal
    run_sbf(sbf_with_network, "addhosts", "mine", "h1")
    assert states(sbf_with_network) == {"mine": "active", "mine_h1": "active"}


def test_a_network_of_another_owner_is_refused(sbf: FakeSbf) -> None:
    run_sbf(sbf, "requestvlan", "mine", "--owner", "bob")
    result = run_sbf(sbf, "requestvlan", "mine", "--owner", "alice")
    message = "network mine: expected the owner alice, found bob; choose another ID"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"sbf: {message}\n")


def test_a_host_whose_answer_was_lost_is_removed_too(sbf_with_network: FakeSbf) -> None:
    sbf_with_network.mute.add("mine_h1")
    assert run_sbf(sbf_with_network, "addhosts", "mine", "h1").exit_code == 2
    assert states(sbf_with_network) == {"mine": "active", "mine_h1": "released"}


def test_a_host_that_fails_is_removed_with_the_others(sbf_with_network: FakeSbf) -> None:
    sbf_with_network.next[ClusterState.CONFIGURING] = ClusterState.FAILING
    result = run_sbf(sbf_with_network, "addhosts", "mine", "h1", "h2")
    assert result.exit_code == 1
    assert set(states(sbf_with_network).values()) == {"active", "released"}


def test_hosts_of_an_unknown_network_are_refused(sbf: FakeSbf) -> None:
    result = run_sbf(sbf, "addhosts", "mine", "h1")
    assert (result.exit_code, result.stderr) == (
        2,
        "sbf: network mine is not known: create it with sbf requestvlan mine\n",
    )


def test_hosts_are_removed_and_the_network_stays(sbf_with_network: FakeSbf) -> None:
    run_sbf(sbf_with_network, "addhosts", "mine", "h1", "h2")
    assert run_sbf(sbf_with_network, "removehosts", "mine", "h1", "h9").exit_code == 0
    assert states(sbf_with_network) == {"mine": "active", "mine_h1": "released", "mine_h2": "active"}


def test_a_network_with_hosts_is_released_only_by_force(sbf_with_network: FakeSbf) -> None:
    run_sbf(sbf_with_network, "addhosts", "mine", "h1")
    result = run_sbf(sbf_with_network, "releasevlan", "mine")
    removal = "first remove these hosts (sbf removehosts)"
    remedy = f"{removal}, or release the network together with its hosts (sbf forcereleasevlan)"
    assert (result.exit_code, result.stderr) == (1, f"sbf: network mine still has hosts: h1; {remedy}\n")
    assert run_sbf(sbf_with_network, "forcereleasevlan", "mine").exit_code == 0
    assert states(sbf_with_network)["mine"] == "released"


def test_a_network_listed_after_a_member_is_found(sbf_with_network: FakeSbf) -> None:
    """SBF lists clusters by creation time.

    If SBF's clock was set back, a cluster that joined the network can precede the cluster that created the network.
    """
    run_sbf(sbf_with_network, "addhosts", "mine", "h1")
    sbf_with_network.networks["mine"] = ["mine_h1", "mine"]
    assert run_sbf(sbf_with_network, "addhosts", "mine", "h1").exit_code == 0
    assert run_sbf(sbf_with_network, "forcereleasevlan", "mine").exit_code == 0
    assert states(sbf_with_network)["mine"] == "released"


def test_a_network_without_hosts_is_released(sbf_with_network: FakeSbf) -> None:
    assert run_sbf(sbf_with_network, "releasevlan", "mine").exit_code == 0
    assert states(sbf_with_network) == {"mine": "released"}


def test_removing_hosts_of_an_unknown_network_is_refused(sbf: FakeSbf) -> None:
    result = run_sbf(sbf, "removehosts", "mien", "h1")
    message = "network mien is not known; list the networks: sbf dumpstate"
    assert (result.exit_code, result.stderr) == (2, f"sbf: {message}\n")


def test_removing_hosts_of_a_released_network_succeeds(sbf_with_network: FakeSbf) -> None:
    run_sbf(sbf_with_network, "addhosts", "mine", "h1")
    run_sbf(sbf_with_network, "forcereleasevlan", "mine")
    assert run_sbf(sbf_with_network, "removehosts", "mine", "h1").exit_code == 0


@pytest.mark.parametrize("words", [("releasevlan", "x"), ("forcereleasevlan", "x")])
def test_releasing_an_unknown_network_succeeds(sbf: FakeSbf, words: tuple[str, ...]) -> None:
    assert run_sbf(sbf, *words).exit_code == 0


def test_dumpstate_prints_xml_for_legacy_scripts(sbf_with_network: FakeSbf) -> None:
    run_sbf(sbf_with_network, "addhosts", "mine", "h2", "h1")
    text = run_sbf(sbf_with_network, "dumpstate").stdout
    assert [line.strip() for line in text.splitlines()] == [
        "<state>",
        '<vlan ID="mine">',
        "<tag>100</tag>",
        "<host>h1</host>",
        "<host>h2</host>",
        "</vlan>",
        "</state>",
    ]
    assert ET.fromstring(text).tag == "state"  # noqa: S314 - the XML is from the command under test


def test_a_malformed_id_is_refused(sbf: FakeSbf) -> None:
    assert run_sbf(sbf, "requestvlan", "not good").exit_code == 2


def test_sbf_lists_service_and_legacy_commands() -> None:
    listed = CliRunner().invoke(main, ["--help"]).stdout
    assert all(f"  {name} " in listed for name in ("serve", "openapi", "token", "dumpstate"))
