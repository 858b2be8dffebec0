"""Tests of every provider-edge driver on an emulated edge of each platform (DESIGN.md §7, §8)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from emulators.edge_bench import (
    ATTACH,
    DETACH,
    EDGES,
    FOREIGN,
    IGNORED,
    NESTED,
    OTHER_FORMS,
    OTHER_USES,
    PAIRS,
    PARTS,
    READY,
    REFUSAL_PATTERN,
    TRANSPORTS,
    EdgeBench,
    edge_driver_for,
    emulate_edge,
    make_ready,
    open_direct_bench,
)
from emulators.edge_junos import EdgeJunos

from sbf_service.drivers.edge.dialects import EDGE_DIALECTS
from sbf_service.drivers.registry import EDGE_PLATFORMS
from virtcloud.model.edge import (
    NO_SERVICE,
    Circuit,
    CircuitRemnant,
    EdgeDifference,
    EdgeObserved,
    EdgeWanted,
    compare_edge,
    find_blocked_circuits,
)
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ForeignVlan

MakeBench = Callable[..., EdgeBench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:

        def make(platform: str, kind: str, *, read_timeout: float = 5, **options: object) -> EdgeBench:
            device = stack.enter_context(emulate_edge(platform, **options))
            transport = Transport.model_validate({"name": kind, **TRANSPORTS[kind]})
            ports = (PortName(device.port_names[1]), PortName(device.port_names[2]))
            make_ready(device, *ports)
            driver = edge_driver_for(device, transport, *ports, read_timeout=read_timeout)
            stack.callback(driver.close)
            return EdgeBench(device, driver, transport, ports)

        yield make


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    pair: tuple[str, str] = request.param
    return pair


@pytest.fixture
def bench(pair: tuple[str, str], make_bench: MakeBench) -> EdgeBench:
    return make_bench(*pair)


@pytest.fixture
def direct(pair: tuple[str, str]) -> EdgeBench:
    return open_direct_bench(*pair)


@pytest.fixture(params=list(dict(PAIRS)))
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def first_bench(platform: str, make_bench: MakeBench) -> EdgeBench:
    """An emulated edge of each platform with its driver, for the platform's first kind of transport."""
    return make_bench(platform, next(kind for name, kind in PAIRS if name == platform))


def test_every_platform_and_recipe_is_tested_here() -> None:
    recipes = {
        (name, "shared" if shared else str(kind))
        for name, dialect in EDGE_DIALECTS.items()
        for kind, shared in dialect.recipes
    }
    assert recipes == set(PAIRS)
    assert set(EDGES) == set(EDGE_DIALECTS)


def test_a_new_edge_has_no_circuits(direct: EdgeBench) -> None:
    assert direct.read() == EdgeObserved()
    assert direct.device.saves == 0


def test_a_difference_is_applied_and_reversed_without_other_changes(bench: EdgeBench) -> None:
    """The remaining configuration stays identical, byte by byte (DESIGN.md §7.4)."""
    bench.device.configure(*FOREIGN[bench.device.platform])
    before = bench.device.running_config()
    assert not bench.converge(112, 120)
    assert bench.reached() == bench.expected(112, 120)
    assert not bench.converge(120, 130)
    assert bench.reached() == bench.expected(120, 130)
    assert not bench.converge()
    assert bench.device.running_config() == before


def test_clusters_with_separate_services_are_never_joined(direct: EdgeBench) -> None:
    """A bridge domain contains VLANs of several clusters only if these share one service (DESIGN.md §7.4)."""
    assert not direct.converge(112, 120)
    assert not direct.converge(120, 130)
    assert not direct.converge()
    joined = [sorted(vlans) for _, domains in direct.device.timeline for vlans in domains.values() if len(vlans) > 1]
    assert bool(joined) == (direct.transport.shared is not None)


def test_a_change_may_be_repeated(direct: EdgeBench) -> None:
    change = EdgeDifference(add=(direct.circuit(112),), remove=(direct.circuit(113),))
    direct.driver.apply(change)
    direct.driver.apply(change)
    assert direct.read().circuits == (direct.circuit(112),)


def test_the_same_vlan_moves_to_the_other_port(direct: EdgeBench) -> None:
    direct.converge(112)
    moved = EdgeWanted(circuits=(direct.circuit(112, port=1),))
    direct.driver.apply(compare_edge(moved, direct.read()))
    assert direct.read() == EdgeObserved(circuits=moved.circuits)


def test_50_circuits_need_one_save(direct: EdgeBench) -> None:
    assert not direct.converge(*range(100, 150))
    assert direct.device.saves == 1
    assert direct.reached() == direct.expected(*range(100, 150))


def test_after_a_lost_session_the_next_session_continues(first_bench: EdgeBench) -> None:
    first_bench.device.fail("disconnect", ATTACH[first_bench.device.platform])
    with pytest.raises(Unreachable, match=r"edge pe1 .*ended the session"):
        first_bench.converge(112, 120)
    assert not first_bench.converge(112, 120)
    assert first_bench.reached() == first_bench.expected(112, 120)


@pytest.mark.parametrize("done", [False, True])
def test_a_session_lost_at_any_line_is_repaired(direct: EdgeBench, done: bool) -> None:
    """The connection is lost at each line in turn during the creation or removal of a circuit (DESIGN.md §7.3)."""
    before = direct.device.running_config()
    for line in direct.driver.list_commands(EdgeDifference(add=(direct.circuit(112),))):
        with direct.device.failing("disconnect", line, done=done), suppress(Unreachable):
            direct.converge(112)
        assert not direct.converge(112)
        assert direct.reached() == direct.expected(112)
        assert not direct.converge()
        assert direct.device.running_config() == before
    direct.converge(112)
    for line in direct.driver.list_commands(EdgeDifference(remove=(direct.circuit(112),))):
        with direct.device.failing("disconnect", line, done=done), suppress(Unreachable):
            direct.converge()
        assert not direct.converge()
        assert direct.device.running_config() == before
        assert not direct.converge(112)


def _build_wanted(bench: EdgeBench, *vlans: int) -> EdgeWanted:
    return EdgeWanted(circuits=tuple(bench.circuit(vlan) for vlan in vlans))


def test_the_effect_of_any_refused_line_is_repaired(direct: EdgeBench) -> None:
    before = direct.device.running_config()
    for line in dict.fromkeys(direct.driver.list_commands(EdgeDifference(add=(direct.circuit(112),)))):
        with direct.device.failing("refuse", line), pytest.raises(Refused, match=REFUSAL_PATTERN):
            direct.converge(112)
        assert not direct.converge(112)
        assert not direct.converge()
        assert direct.device.running_config() == before


@pytest.mark.parametrize("where", [ATTACH, NESTED], ids=["attachment", "nested line"])
def test_a_refused_line_delays_other_clusters_only_on_atomic_devices(direct: EdgeBench, where: dict[str, str]) -> None:
    before = direct.device.running_config()
    direct.device.fail("refuse", where[direct.device.platform])
    with pytest.raises(Refused, match="edge pe1: "):
        direct.converge(112, 120)
    if EDGE_PLATFORMS[direct.device.platform].capabilities.atomic:
        assert direct.device.running_config() == before
    else:
        assert {120} in direct.reached().values()
        assert not any(112 in vlans for vlans in direct.reached().values())


@pytest.mark.parametrize("platform", ["cisco_iosxe", "arista_eos", "cisco_nxos"])
def test_a_vlan_that_stays_in_its_service_joins_no_other(platform: str) -> None:
    """If two services contained the same VLAN, the VLAN would connect two clusters."""
    bench = open_direct_bench(platform, next(kind for name, kind in PAIRS if name == platform))
    bench.converge(112)
    old = bench.circuit(112)
    new = old.model_copy(update={"service": old.service + 1})
    bench.device.fail("refuse", DETACH[platform])
    with pytest.raises(Refused, match="edge pe1: "):
        bench.driver.apply(EdgeDifference(remove=(old,), add=(new,)))
    assert new.service not in bench.device.reached()
    bench.driver.apply(compare_edge(EdgeWanted(circuits=(new,)), bench.read()))
    assert bench.read() == EdgeObserved(circuits=(new,))


def test_a_device_that_ignores_accepted_lines_is_detected(direct: EdgeBench) -> None:
    direct.device.fail("ignore", IGNORED[direct.device.platform], times=1000)
    direct.converge(112)
    assert compare_edge(_build_wanted(direct, 112), direct.read()).add == (direct.circuit(112),)


def test_an_unknown_answer_is_unsafe_and_nothing_is_changed(first_bench: EdgeBench) -> None:
    first_bench.device.fail("print", "^show ", text="\x01 what the manual does not say", times=10)
    before = first_bench.device.running_config()
    with pytest.raises(Unsafe, match=r"edge pe1.*cannot parse.*what the manual does not say"):
        first_bench.converge(112)
    assert first_bench.device.running_config() == before


@pytest.mark.parametrize(
    ("platform", "lines"), [(name, lines) for name, misuses in OTHER_USES.items() for lines in misuses]
)
def test_a_managed_vlan_in_other_use_is_left_unchanged(platform: str, lines: tuple[str, ...]) -> None:
    """The driver raises Unsafe. On platforms with device-wide VLANs, the driver skips the VLAN in other use instead."""
    detected = list[str]()
    for kind in (kind for name, kind in PAIRS if name == platform):
        bench = open_direct_bench(platform, kind)
        bench.device.configure(*lines)
        before = bench.device.running_config()
        with suppress(Unsafe):
            bench.converge(120)
            if bench.read().foreign:
                detected.append(kind)
                bench.converge()
                assert bench.device.running_config() == before
            continue
        detected.append(kind)
        assert bench.device.running_config() == before
        with pytest.raises(
            Unsafe, match=r"edge pe1: expected .*, found .*(112|77|1012).*: this configuration was left unchanged"
        ):
            bench.read()
    assert detected


def test_one_session_is_sufficient(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform, next(kind for name, kind in PAIRS if name == platform), sessions=1)
    assert not bench.converge(112)
    assert not bench.converge()
    assert bench.device.logins == 1
    second = edge_driver_for(bench.device, bench.transport, *bench.ports, read_timeout=0.5)
    with pytest.raises(Unreachable, match=r"edge pe1 .*does not answer"):
        second.read(bench.managed)


def test_a_reboot_restores_the_saved_configuration_visibly(first_bench: EdgeBench) -> None:
    first_bench.converge(112)
    saves = bool(EDGE_DIALECTS[first_bench.device.platform].save)
    first_bench.device.save = lambda: None  # type: ignore[method-assign]
    first_bench.converge(120)
    first_bench.device.reboot()
    with suppress(Unreachable):  # the driver may detect the end of the session before or after the next command
        first_bench.read()
    assert [circuit.vlan for circuit in first_bench.read().circuits] == ([112] if saves else [120])
    assert not first_bench.converge(120)


def test_every_form_of_a_ports_name_is_accepted(first_bench: EdgeBench) -> None:
    first_bench.ports = tuple(map(PortName, OTHER_FORMS[first_bench.device.platform]))  # type: ignore[assignment]
    assert not first_bench.converge(112)
    assert first_bench.reached() == first_bench.expected(112)


def test_a_missing_port_is_unsafe(first_bench: EdgeBench) -> None:
    first_bench.ports = (PortName("Ethernet99"), first_bench.ports[1])
    with pytest.raises(Unsafe, match=r"edge pe1: expected a port Ethernet99, found .*: correct the topology"):
        first_bench.read()


def test_a_wrong_password_is_refused(first_bench: EdgeBench) -> None:
    first_bench.device.password = "another"  # noqa: S105
    with pytest.raises(Refused, match=r"edge pe1 .*refuses the login of 'admin'"):
        first_bench.read()


def test_a_hanging_device_is_unreachable_after_its_timeout(platform: str, make_bench: MakeBench) -> None:
    kind = next(kind for name, kind in PAIRS if name == platform)
    bench = make_bench(platform, kind, read_timeout=0.5)
    bench.device.fail("hang", "^show ")
    with pytest.raises(Unreachable, match=r"no output for 0\.5 s"):
        bench.read()
    assert bench.read() == EdgeObserved()


def test_an_unsupported_transport_is_refused_without_a_change(first_bench: EdgeBench) -> None:
    before = first_bench.device.running_config()
    circuit = Circuit(transport=Name("other"), port=first_bench.ports[0], vlan=VlanId(112), service=5)
    with pytest.raises(Refused, match=r"edge pe1: wanted service 5 of transport other, which .* cannot create"):
        first_bench.driver.apply(EdgeDifference(add=(circuit,)))
    assert first_bench.device.running_config() == before


@pytest.mark.parametrize("platform", READY)
@pytest.mark.parametrize(
    ("mode", "native", "words"),
    [("trunk", 1, "found a trunk with every VLAN"), ("access", 20, "found an access port in VLAN 20")],
)
def test_a_port_in_other_use_is_refused_without_a_change(platform: str, mode: str, native: int, words: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    port = bench.device.running.ports[bench.ports[0]]
    port.mode, port.allowed, port.native = mode, None, native
    before = bench.device.running_config()
    with pytest.raises(
        Unsafe, match=rf"port {bench.ports[0]}: expected an unused port .*, {words}: the port was left unchanged"
    ):
        bench.converge(112)
    assert bench.device.running_config() == before


def erase_ports(bench: EdgeBench) -> None:
    """Remove all configuration from the two managed ports."""
    for name in bench.ports:
        bench.device.running.ports[name] = type(bench.device).new_port()


@pytest.mark.parametrize("platform", READY)
def test_an_unused_port_becomes_a_trunk_after_the_read_back(platform: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    erase_ports(bench)
    bench.device.commands.clear()
    assert not bench.converge(112)
    assert bench.device.running.ports[bench.ports[0]].allowed == {112}
    commands = bench.device.commands
    empty_list, trunk = commands.index("switchport trunk allowed vlan none"), commands.index("switchport mode trunk")
    assert any(line.startswith("show") for line in commands[empty_list:trunk])
    assert empty_list < trunk < commands.index("vlan 112")


@pytest.mark.parametrize("platform", READY)
def test_an_ignored_empty_list_makes_no_port_a_trunk(platform: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    erase_ports(bench)
    bench.device.fail("ignore", "allowed vlan none$", times=100)
    with pytest.raises(Refused, match="wanted an empty list of allowed VLANs before the port becomes a trunk"):
        bench.converge(112)
    assert bench.device.running.ports[bench.ports[0]].mode != "trunk"
    assert 112 not in bench.device.running.vlans


@pytest.mark.parametrize("platform", READY)
def test_an_incomplete_circuit_is_read_as_remnants(platform: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    bench.device.configure("vlan 112", "name vc-10112", "vlan 113", f"interface {bench.ports[1]}")
    bench.device.configure(f"interface {bench.ports[1]}", "switchport trunk allowed vlan add 114")
    name = bench.transport.name
    assert bench.read().parts == (
        CircuitRemnant(transport=name, service=10112, vlan=VlanId(112)),
        CircuitRemnant(transport=name, service=10100, vlan=VlanId(113)),
        CircuitRemnant(transport=name, service=NO_SERVICE, port=bench.ports[1], vlan=VlanId(114)),
    )
    assert not bench.converge()
    assert set(bench.device.running.vlans) == {1}


@pytest.mark.parametrize("platform", ["arista_eos", "cisco_nxos"])
@pytest.mark.parametrize(("name", "shown"), [((), None), (("name offices",), "offices")])
def test_a_vlan_that_sbf_did_not_create_is_left_unchanged(platform: str, name: tuple[str, ...], shown: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    bench.device.configure("vlan 112", *name)
    before = bench.device.running_config()
    unrecorded = replace(bench.managed, created=VlanSet())
    wanted = EdgeWanted(circuits=(bench.circuit(112),))
    observed = bench.driver.read(unrecorded)
    assert observed.foreign == (ForeignVlan(vlan=VlanId(112), name=shown),)
    assert not compare_edge(wanted, observed)
    assert str(find_blocked_circuits(wanted, observed)) == "112"
    assert bench.device.running_config() == before


def test_an_eos_without_bgp_is_refused_without_a_change() -> None:
    bench = open_direct_bench("arista_eos", "evpn")
    bench.device.fail("print", "^show", text="interface Ethernet2\n   switchport\ninterface Ethernet3", times=9)
    before = bench.device.running_config()
    with pytest.raises(Refused, match="edge pe1: expected a BGP process, found none"):
        bench.converge(112)
    assert bench.device.running_config() == before


def test_a_circuit_that_names_two_services_is_recreated() -> None:
    bench = open_direct_bench("cisco_iosxe", "vpls")
    bench.converge(112)
    (lines,) = bench.device.units("GigabitEthernet0/0/1").values()
    lines[lines.index("description vc-10112")] = "description vc-10150"
    assert bench.read().circuits == ()
    assert not bench.converge(112)
    assert "description vc-10112" in bench.device.running_config()


@pytest.mark.parametrize("kind", ["vpls", "shared"])
def test_a_vfi_without_a_neighbour_is_recreated(kind: str, make_bench: MakeBench) -> None:
    bench = make_bench("cisco_iosxe", kind)
    bench.converge(112)
    (lines,) = bench.device.services.values()
    lines.remove("neighbor 10.0.0.3 encapsulation mpls")
    service = bench.circuit(112).service
    assert bench.read().parts == (
        CircuitRemnant(transport=bench.transport.name, service=service, port=bench.ports[0], vlan=VlanId(112)),
    )
    assert not bench.converge(112)
    assert "neighbor 10.0.0.3 encapsulation mpls" in bench.device.running_config()


def test_the_tag_is_kept_only_in_a_shared_vfi(make_bench: MakeBench) -> None:
    for kind, rewrites in (("shared", 0), ("vpls", 2)):
        bench = make_bench("cisco_iosxe", kind)
        bench.converge(112, 120)
        assert bench.device.running_config().count("rewrite ingress tag pop 1 symmetric") == rewrites


def test_a_shared_vpn_id_above_4094_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_iosxe", "shared")
    bench.transport = bench.transport.model_copy(update={"vpn_id": 5000})
    bench.driver = edge_driver_for(bench.device, bench.transport, *bench.ports)
    with pytest.raises(Refused, match="expected a vpn_id up to 4094 for IOS-XE, got 5000"):
        bench.converge(112)


def test_a_shared_vpn_id_in_the_pool_is_unsafe() -> None:
    bench = open_direct_bench("cisco_iosxe", "shared")
    bench.transport = bench.transport.model_copy(update={"vpn_id": 112})
    with pytest.raises(Unsafe, match="expected the vpn_id of transport shared outside the pool, got 112"):
        bench.read()


def test_a_junos_locked_by_another_user_is_tried_again() -> None:
    bench = open_direct_bench("juniper_junos", "vpls")
    device = bench.device
    assert isinstance(device, EdgeJunos)
    device.locked = True
    with pytest.raises(Unreachable, match=r"is being configured by another user: .*locked by: alice .*SBF tries again"):
        bench.converge(112)
    device.locked = False
    assert not bench.converge(112)


def test_deactivated_configuration_on_junos_is_unsafe() -> None:
    bench = open_direct_bench("juniper_junos", "vpls")
    bench.converge(112)
    shown = f"{bench.device.running_config()}\ndeactivate routing-instances vc-10112\n"
    interfaces, instances = ([line for line in shown.splitlines() if f" {part} " in line] for part in PARTS)
    bench.device.fail("print", "^show configuration interfaces", text="\n".join(interfaces))
    bench.device.fail("print", "^show configuration routing", text="\n".join(instances))
    with pytest.raises(
        Unsafe, match="edge pe1: expected only SBF's configuration on managed VLANs, found instance vc-10112"
    ):
        bench.read()


@pytest.mark.parametrize("kind", ["vpls", "shared"])
def test_only_subinterfaces_of_shared_services_filter_and_keep_tags(kind: str) -> None:
    """Without the filter, a frame of one VLAN would leave through the subinterfaces of all VLANs."""
    bench = open_direct_bench("cisco_iosxr", kind)
    bench.converge(112, 120)
    shown = bench.device.running_config()
    counts = shown.count("ethernet egress-filter strict"), shown.count("rewrite ingress tag pop 1 symmetric")
    assert counts == ((2, 0) if kind == "shared" else (0, 2))


def test_a_session_that_the_device_counts_as_open_is_awaited(make_bench: MakeBench) -> None:
    """Many devices count a lost session as open for a minute (SWITCHES.md, pitfall 6)."""
    bench = make_bench("cisco_iosxr", "vpls", sessions=1, linger=60, read_timeout=3)
    bench.device.fail("disconnect", ATTACH["cisco_iosxr"])
    with pytest.raises(Unreachable, match="ended the session"):
        bench.converge(112)
    with pytest.raises(Unreachable):
        bench.converge(112)
    bench.device.lost.clear()
    assert not bench.converge(112)


def test_a_slow_device_is_awaited(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_nxos", "evpn", slowness=0.05, read_timeout=1)
    assert not bench.converge(112)
    assert bench.reached() == bench.expected(112)


SAVE_FAILURES = [
    (name, cause) for name, kind in EDGES.items() if EDGE_DIALECTS[name].save for cause in kind.save_failures
]


@pytest.mark.parametrize(("name", "cause"), SAVE_FAILURES)
def test_a_failed_save_of_an_edge_is_refused(name: str, cause: str, make_bench: MakeBench) -> None:
    bench = make_bench(name, next(kind for platform, kind in PAIRS if platform == name))
    bench.device.fail_save(cause)
    with pytest.raises(Refused, match="edge pe1"):
        bench.driver.save()
    assert bench.device.saves == 0
    assert bench.driver.save()
    assert not bench.device.unsaved
