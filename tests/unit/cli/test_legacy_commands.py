"""Tests of the legacy commands of ``sbf`` for schedulers."""

from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from fake_machine.clusters import FakeSbf

from sbf_command import main
from virtcloud.model.cluster import ClusterState


@pytest.fixture
def made(sbf: FakeSbf) -> FakeSbf:
    """A fake SBF with the network ``mine``."""
    assert verb(sbf, "requestvlan", "mine").exit_code == 0
    return sbf


def verb(sbf: FakeSbf, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["-q", "--url", sbf.url, *arguments], prog_name="sbf")


def states(sbf: FakeSbf) -> dict[str, str]:
    return {key: str(one.state) for key, one in sbf.clusters.items()}


def test_a_network_is_created_and_its_vlan_id_printed(sbf: FakeSbf) -> None:
    ran = verb(sbf, "requestvlan", "MojeVLAN4711")
    assert (ran.exit_code, ran.stdout) == (0, "100\n")
    spec = sbf.clusters["mojevlan4711"].spec
    assert (spec.owner, spec.sites, spec.all_hosts, spec.lease_s) == ("pbs", ("brno",), (), 31 * 86400)


def test_a_repeated_request_prints_the_same(made: FakeSbf) -> None:
    assert verb(made, "requestvlan", "mine").stdout == "100\n"
    assert len(made.requests) == 1


def test_a_network_that_misses_its_deadline_is_removed(sbf: FakeSbf) -> None:
    sbf.stuck = True
    ran = verb(sbf, "requestvlan", "mine", "--timeout", "1s")
    assert ran.exit_code == 1
    assert ran.stderr == "sbf: network mine was not set up within 1 s; new parts are being removed\n"
    assert states(sbf) == {"mine": "draining"}


def test_each_host_is_a_separate_member(made: FakeSbf) -> None:
    assert verb(made, "addhosts", "mine", "Brno-h1.ics.muni.cz", "brno-h2").exit_code == 0
    assert states(made) == {"mine": "active", "mine_brno-h1": "active", "mine_brno-h2": "active"}
    assert [(one.spec.joins, one.spec.all_hosts) for one in made.requests[1:]] == [
        ("mine", ("brno-h1",)),
        ("mine", ("brno-h2",)),
    ]


def test_a_failed_host_removes_only_hosts_of_its_call(made: FakeSbf) -> None:
    verb(made, "addhosts", "mine", "h1")
    made.refused["mine_h3"] = (404, "no-such-host", "host h3 is not known")
    ran = verb(made, "addhosts", "mine", "h1", "h2", "h3")
    assert (ran.exit_code, ran.stderr) == (2, "sbf: host h3 is not known\n")
    assert states(made) == {"mine": "active", "mine_h1": "active", "mine_h2": "released"}


OTHERS = (409, "other-spec", "the key has another spec")


def test_a_host_added_by_another_call_is_not_removed(made: FakeSbf) -> None:
    verb(made, "addhosts", "mine", "h1")
    made.networks["mine"] = ["mine"]
    made.refused["mine_h1"] = OTHERS
    assert verb(made, "addhosts", "mine", "h2", "h1", "--lease", "1d").exit_code == 1
    assert states(made) == {"mine": "active", "mine_h1": "active", "mine_h2": "released"}


def test_a_network_created_by_another_call_is_not_removed(made: FakeSbf) -> None:
    made.networks["mine"] = []
    made.refused["mine"] = OTHERS
    assert verb(made, "requestvlan", "mine", "--lease", "1d").exit_code == 1
    assert states(made) == {"mine": "active"}


def test_a_host_whose_answer_was_lost_is_removed_too(made: FakeSbf) -> None:
    made.mute.add("mine_h1")
    assert verb(made, "addhosts", "mine", "h1").exit_code == 2
    assert states(made) == {"mine": "active", "mine_h1": "released"}


def test_a_host_that_fails_is_removed_with_the_others(made: FakeSbf) -> None:
    made.next[ClusterState.CONFIGURING] = ClusterState.FAILING
    ran = verb(made, "addhosts", "mine", "h1", "h2")
    assert ran.exit_code == 1
    assert set(states(made).values()) == {"active", "released"}


def test_hosts_of_an_unknown_network_are_refused(sbf: FakeSbf) -> None:
    ran = verb(sbf, "addhosts", "mine", "h1")
    assert (ran.exit_code, ran.stderr) == (2, "sbf: network mine is not known: create it with sbf requestvlan mine\n")


def test_hosts_are_removed_and_the_network_stays(made: FakeSbf) -> None:
    verb(made, "addhosts", "mine", "h1", "h2")
    assert verb(made, "removehosts", "mine", "h1", "h9").exit_code == 0
    assert states(made) == {"mine": "active", "mine_h1": "released", "mine_h2": "active"}


def test_a_network_with_hosts_is_released_only_by_force(made: FakeSbf) -> None:
    verb(made, "addhosts", "mine", "h1")
    ran = verb(made, "releasevlan", "mine")
    remedy = "remove them first (sbf removehosts), or release it with them (sbf forcereleasevlan)"
    assert (ran.exit_code, ran.stderr) == (1, f"sbf: network mine still has h1: {remedy}\n")
    assert verb(made, "forcereleasevlan", "mine").exit_code == 0
    assert states(made)["mine"] == "released"


def test_a_network_without_hosts_is_released(made: FakeSbf) -> None:
    assert verb(made, "releasevlan", "mine").exit_code == 0
    assert states(made) == {"mine": "released"}


@pytest.mark.parametrize("words", [("releasevlan", "x"), ("forcereleasevlan", "x"), ("removehosts", "x", "h1")])
def test_releasing_an_unknown_network_succeeds(sbf: FakeSbf, words: tuple[str, ...]) -> None:
    assert verb(sbf, *words).exit_code == 0


def test_the_state_has_the_format_of_legacy_scripts(made: FakeSbf) -> None:
    verb(made, "addhosts", "mine", "h2", "h1")
    text = verb(made, "dumpstate").stdout
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
    assert verb(sbf, "requestvlan", "not good").exit_code == 2


def test_the_service_has_the_same_command() -> None:
    listed = CliRunner().invoke(main, ["--help"]).stdout
    assert all(f"  {name} " in listed for name in ("serve", "openapi", "token", "dumpstate"))
