"""Tests of the Open vSwitch driver on a real switch. ``ofproto/trace`` shows which ports a frame reaches."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.programs.ovs_daemons import Daemons
from support.sbf_fakes.shells import LocalShell, TerminalShell

from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.switch.openvswitch import OpenVSwitch
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted, compare_switch
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

pytestmark = pytest.mark.openvswitch
PORTS = tuple(map(PortName, ("p1", "p2", "p3")))


@dataclass
class Bench:
    """An Open vSwitch whose ports are unconfigured at first, and its driver."""

    switch: Daemons
    driver: OpenVSwitch

    def converge(self, access: tuple[str, ...] = (), **wanted: str) -> SwitchDifference:
        ports = {port: VlanSet.parse(wanted.get(port, "")) for port in PORTS}
        target = SwitchWanted(ports=ports, access=access)
        managed = SwitchScope(PORTS, VlanSet.parse("100-199"), target.access)
        difference = compare_switch(target, self.driver.read(managed))
        self.driver.apply(difference)
        assert not compare_switch(target, self.driver.read(managed))
        return difference


@pytest.fixture
def bench(open_vswitch: Daemons) -> Bench:
    open_vswitch.reset()
    return Bench(open_vswitch, OpenVSwitch(Name("sw1"), LocalShell(open_vswitch.environment)))


def test_new_ports_carry_all_vlans_until_the_first_change(bench: Bench) -> None:
    assert bench.switch.reaches("p1", 150) == {"p2", "p3"}
    assert bench.converge(p1="100", p2="100").close == ("p1", "p2", "p3")
    assert (bench.switch.reaches("p1", 100), bench.switch.reaches("p1", 150)) == ({"p2"}, set())


def test_a_trunk_without_its_last_vlan_carries_no_vlan(bench: Bench) -> None:
    bench.converge(p1="100", p2="100", p3="101")
    bench.converge(p3="101")
    reached = [bench.switch.reaches("p1", tag) for tag in (None, 100, 101, 150)]
    assert reached == [set(), set(), set(), set()]


def test_untagged_frames_are_dropped_on_trunks(bench: Bench) -> None:
    bench.converge(p1="100", p2="100")
    assert bench.switch.reaches("p1") == set()


def test_an_access_port_accepts_untagged_frames_only(bench: Bench) -> None:
    bench.converge(("p2",), p1="100-101", p2="100")
    assert (bench.switch.reaches("p2"), bench.switch.reaches("p1", 100)) == ({"p1"}, {"p2"})
    assert (bench.switch.reaches("p1", 101), bench.switch.reaches("p2", 101)) == (set(), set())


def test_access_ports_without_a_cluster_do_not_reach_each_other(bench: Bench) -> None:
    bench.converge(("p1", "p2"), p1="100", p2="101")
    bench.converge(("p1", "p2"))
    assert [bench.switch.reaches(port, tag) for port in ("p1", "p2") for tag in (None, 100)] == [set()] * 4


def test_a_change_of_thousands_of_characters_is_one_transaction(bench: Bench) -> None:
    """The command is sent in several lines, because a terminal accepts at most 4095 characters per line."""
    odd, even = VlanSet(range(101, 3000, 2)), VlanSet(range(100, 3000, 2))
    line = TerminalShell(bench.switch.environment)
    driver = OpenVSwitch(Name("sw1"), line)
    driver.apply(SwitchDifference(add={PortName("p1"): odd, PortName("p2"): even}))
    managed = SwitchScope(PORTS, VlanSet.parse("100-2999"))
    assert driver.read(managed).ports == {"p1": odd, "p2": even, "p3": VlanSet()}
    line.close()


@contextmanager
def record_trunks(switch: Daemons) -> Iterator[list[list[int]]]:
    """Yield a list. After the context, the list contains all states of the managed ports' ``trunks`` columns."""
    command = "ovsdb-client", "--format=json", "monitor", f"unix:{switch.folder}/db.sock", "Port", "name,trunks"
    states: list[list[int]] = []
    with subprocess.Popen(command, env=switch.environment, stdout=subprocess.PIPE, text=True) as monitor:  # noqa: S603
        try:
            assert monitor.stdout
            assert '"initial"' in monitor.stdout.readline()
            yield states
            switch.alter("br0", "trunks=4000")  # a marker: the monitor reports all earlier changes first
            for line in monitor.stdout:
                rows = [row[2:] for row in json.loads(line)["data"] if row[1] in {"new", "insert"}]
                states += [_members(trunks) for port, trunks in rows if port in PORTS]
                if ["br0", 4000] in rows:
                    break
        finally:
            monitor.kill()
    switch.alter("br0", "trunks=[]")


def _members(trunks: Any) -> list[int]:
    return trunks[1] if isinstance(trunks, list) else [trunks]


def test_a_closed_trunk_never_has_an_empty_list_again(bench: Bench) -> None:
    bench.converge(p1="100", p2="100", p3="100")
    with record_trunks(bench.switch) as states:
        bench.converge(p1="101", p2="100-105,107")
        bench.converge(p2="100")
        bench.converge()
        bench.driver.apply(SwitchDifference(remove={PortName("p1"): VlanSet([101, 102])}))
    assert [101, 4095] in states
    assert [] not in states


@pytest.mark.parametrize(
    ("values", "access", "words"),
    [
        (("tag=112", "vlan_mode=native-untagged"), False, "port p1: expected VLAN 112 tagged or absent, found"),
        (
            ("tag=50",),
            True,
            "access port p1: expected at most one managed VLAN, untagged, found vlan_mode access, tag 5",
        ),
        (("trunks=50",), True, "access port p1: expected at most one managed VLAN, untagged, found vlan_mode trunk, "),
    ],
    ids=["managed VLAN untagged", "foreign access port", "foreign trunk"],
)
def test_a_port_with_another_mode_is_unsafe(bench: Bench, values: tuple[str, ...], access: bool, words: str) -> None:
    bench.switch.alter("p1", *values)
    with pytest.raises(Unsafe, match=words):
        bench.driver.read(SwitchScope(PORTS, VlanSet.parse("100-199"), PORTS if access else ()))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("tag=50",), "an access port in VLAN 50"),
        (("vlan_mode=dot1q-tunnel", "tag=2000"), "a dot1q-tunnel port"),
        (("vlan_mode=trunk",), "a trunk with every VLAN"),
        (("trunks=50",), "a trunk with VLAN 50"),
        (("vlan_mode=native-untagged", "tag=5", "trunks=4095"), "a trunk with no VLAN, native VLAN 5"),
    ],
    ids=["an access port", "a tunnel", "an open trunk", "a list", "a native VLAN"],
)
def test_a_port_in_other_use_is_reported_with_its_use(bench: Bench, values: tuple[str, ...], words: str) -> None:
    bench.switch.alter("p1", *values)
    carried = bench.driver.read(SwitchScope(PORTS, VlanSet.parse("100-199")))
    assert (carried.in_use, str(carried.untaken[PortName("p1")])) == ((PortName("p1"),), words)


def test_an_unconfigured_port_is_in_no_other_use(bench: Bench) -> None:
    carried = bench.driver.read(SwitchScope(PORTS, VlanSet.parse("100-199")))
    assert (carried.in_use, carried.open) == ((), PORTS)


@pytest.mark.parametrize(
    "values",
    [
        ("tag=50",),
        ("vlan_mode=trunk",),
        ("trunks=50,60",),
        ("vlan_mode=native-untagged", "tag=5", "trunks=50"),
        (),
    ],
    ids=["an access port", "an open trunk", "a list", "a native VLAN", "unconfigured"],
)
def test_a_returned_port_is_exactly_as_before(bench: Bench, values: tuple[str, ...]) -> None:
    port, pool = PortName("p1"), VlanSet.parse("100-199")
    if values:
        bench.switch.alter("p1", *values)
    before = bench.driver.read(SwitchScope((port,), pool)).untaken[port]
    taken = SwitchScope((port,), pool, taken=frozenset({port}), adopted={port: before})
    for vlans in ("112", ""):
        wanted = SwitchWanted(ports={port: VlanSet.parse(vlans)})
        bench.driver.apply(compare_switch(wanted, bench.driver.read(taken)))
        assert bench.driver.read(taken).ports == {port: VlanSet.parse(vlans)}
    returned = SwitchScope((), pool, returned={port: before})
    bench.driver.apply(compare_switch(SwitchWanted(ports={port: VlanSet()}), bench.driver.read(returned)))
    assert bench.driver.read(SwitchScope((port,), pool)).untaken[port] == before


def test_a_missing_port_is_named_with_the_existing_ports(bench: Bench) -> None:
    with pytest.raises(Unsafe, match="expected a port p9, found br0, p1, p2, p3: correct the topology"):
        bench.driver.read(SwitchScope((PortName("p9"),), VlanSet.parse("100-199")))


def test_a_foreign_vlan_stays_on_a_trunk(bench: Bench) -> None:
    bench.switch.alter("p1", "trunks=50")
    bench.converge(p1="100")
    bench.converge()
    assert bench.switch.get("p1", "trunks") == [50, 4095]


def test_a_database_without_a_running_switch_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While ovs-vswitchd does not run, its database still accepts changes."""
    monkeypatch.setattr("sbf_service.drivers.switch.openvswitch.TRANSACT", "ovs-vsctl --timeout=1")
    bench.switch.kill_switch()
    try:
        with pytest.raises(Refused, match=r"switch sw1: .*the switch printed .*Alarm clock"):
            bench.converge(p1="100")
        with pytest.raises(
            Refused, match=r"expected ovs-vswitchd to have applied configuration .*: check that ovs-vswitchd runs"
        ):
            bench.converge(p1="100")
    finally:
        bench.switch.start_switch()
    bench.converge(p1="100")


def test_all_ports_are_read_and_none_is_changed(bench: Bench) -> None:
    bench.switch.alter("p1", "vlan_mode=access", "tag=20")
    bench.switch.alter("p2", "trunks=50,60")
    before = bench.switch.run("ovs-vsctl", "list", "port")
    reading = bench.driver.read_all()
    assert bench.switch.run("ovs-vsctl", "list", "port") == before
    assert reading.vlans == VlanSet([20, 50, 60])
    ports = reading.ports
    assert (ports["p1"].access, ports["p2"].tagged, ports["p3"].open) == (20, VlanSet([50, 60]), True)
