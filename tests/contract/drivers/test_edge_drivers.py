"""Tests of every provider-edge driver on an emulated edge of each platform."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from support.emulators.edge_bench import (
    ATTACH,
    DETACH,
    EDGES,
    FOREIGN,
    IGNORED,
    NESTED,
    OTHER_FORMS,
    OTHER_USES,
    PAIRS,
    READY,
    REFUSAL_PATTERN,
    EdgeBench,
    edge_driver_for,
    open_direct_bench,
)
from support.emulators.switch_bench import set_read_timeout

from sbf_service.drivers.contract import EdgeDriver, ListsCommands
from sbf_service.drivers.edge.dialects import EDGE_DIALECTS
from sbf_service.drivers.registry import EDGE_PLATFORMS
from virtcloud.model.edge import (
    Circuit,
    EdgeDifference,
    EdgeObserved,
    EdgeWanted,
    compare_edge,
)
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.values import Name, PortName, VlanId

MakeBench = Callable[..., EdgeBench]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    pair: tuple[str, str] = request.param
    return pair


@pytest.fixture
def bench(pair: tuple[str, str], make_edge_bench: MakeBench) -> EdgeBench:
    return make_edge_bench(*pair)


@pytest.fixture
def direct(pair: tuple[str, str]) -> EdgeBench:
    return open_direct_bench(*pair)


@pytest.fixture(params=list(dict(PAIRS)))
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def first_bench(platform: str, make_edge_bench: MakeBench) -> EdgeBench:
    return make_edge_bench(platform, next(kind for name, kind in PAIRS if name == platform))


def test_every_platform_and_kind_of_transport_is_tested() -> None:
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
    """The remaining configuration stays byte-identical (docs/explanation/invariants.md, 4)."""
    bench.device.configure(*FOREIGN[bench.device.platform])
    before = bench.device.running_config()
    assert not bench.converge(112, 120)
    assert bench.reached() == bench.expected(112, 120)
    assert not bench.converge(120, 130)
    assert bench.reached() == bench.expected(120, 130)
    assert not bench.converge()
    assert bench.device.running_config() == before


def test_clusters_with_separate_services_are_never_joined(direct: EdgeBench) -> None:
    """A bridge domain contains VLANs of several clusters only if these clusters share one service."""
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


def test_the_next_session_completes_the_change_of_a_lost_session(first_bench: EdgeBench) -> None:
    first_bench.device.fail("disconnect", ATTACH[first_bench.device.platform])
    with pytest.raises(Unreachable, match=r"edge pe1 .*ended the session"):
        first_bench.converge(112, 120)
    assert not first_bench.converge(112, 120)
    assert first_bench.reached() == first_bench.expected(112, 120)


def list_commands(driver: EdgeDriver, difference: EdgeDifference) -> tuple[str, ...]:
    assert isinstance(driver, ListsCommands)
    return driver.list_commands(difference)


@pytest.mark.parametrize("done", [False, True])
def test_a_session_lost_at_any_line_is_repaired(direct: EdgeBench, done: bool) -> None:
    before = direct.device.running_config()
    for line in list_commands(direct.driver, EdgeDifference(add=(direct.circuit(112),))):
        with direct.device.failing("disconnect", line, done=done), suppress(Unreachable):
            direct.converge(112)
        assert not direct.converge(112)
        assert direct.reached() == direct.expected(112)
        assert not direct.converge()
        assert direct.device.running_config() == before
    direct.converge(112)
    for line in list_commands(direct.driver, EdgeDifference(remove=(direct.circuit(112),))):
        with direct.device.failing("disconnect", line, done=done), suppress(Unreachable):
            direct.converge()
        assert not direct.converge()
        assert direct.device.running_config() == before
        assert not direct.converge(112)


def _build_wanted(bench: EdgeBench, *vlans: int) -> EdgeWanted:
    return EdgeWanted(circuits=tuple(bench.circuit(vlan) for vlan in vlans))


def test_the_effect_of_any_refused_line_is_repaired(direct: EdgeBench) -> None:
    before = direct.device.running_config()
    for line in dict.fromkeys(list_commands(direct.driver, EdgeDifference(add=(direct.circuit(112),)))):
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
def test_a_vlan_of_a_service_joins_no_other_service(platform: str) -> None:
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
    """The driver raises Unsafe, except on platforms with device-wide VLANs, where the driver skips the VLAN."""
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


@pytest.mark.parametrize(
    ("platform", "lines"), [(name, lines) for name, misuses in OTHER_USES.items() for lines in misuses]
)
def test_no_cluster_is_joined_to_a_service_in_other_use(platform: str, lines: tuple[str, ...]) -> None:
    for kind in (kind for name, kind in PAIRS if name == platform):
        bench = open_direct_bench(platform, kind)
        bench.device.configure(*lines)
        before, joined = bench.device.running_config(), bench.device.joined()
        with suppress(Unsafe):
            bench.converge(112)
            assert {domain: bench.device.joined()[domain] for domain in joined} == joined
            bench.converge()
        assert bench.device.running_config() == before


def test_the_driver_needs_only_one_session(platform: str, make_edge_bench: MakeBench) -> None:
    bench = make_edge_bench(platform, next(kind for name, kind in PAIRS if name == platform), sessions=1)
    bench.read()
    before = bench.device.logins
    assert not bench.converge(112)
    assert not bench.converge()
    assert bench.device.logins == before
    second = edge_driver_for(bench.device, bench.transport, *bench.ports, read_timeout=0.5)
    with pytest.raises(Unreachable, match=r"edge pe1 .*does not answer"):
        second.read(bench.managed)


def test_the_driver_reads_the_saved_configuration_after_a_reboot(first_bench: EdgeBench) -> None:
    first_bench.converge(112)
    saves = bool(EDGE_DIALECTS[first_bench.device.platform].save)
    first_bench.device.save = lambda: None
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


def test_a_hanging_device_is_unreachable_after_its_timeout(platform: str, make_edge_bench: MakeBench) -> None:
    kind = next(kind for name, kind in PAIRS if name == platform)
    bench = make_edge_bench(platform, kind)
    bench.read()
    bench.device.fail("hang", "^show ")
    set_read_timeout(bench.driver, 0.5)
    with pytest.raises(Unreachable, match=r"no output for 0\.5 s"):
        bench.read()
    set_read_timeout(bench.driver, 5)
    assert bench.read() == EdgeObserved()


def test_an_unsupported_transport_is_refused_without_a_change(first_bench: EdgeBench) -> None:
    before = first_bench.device.running_config()
    circuit = Circuit(transport=Name("other"), port=first_bench.ports[0], vlan=VlanId(112), service=5)
    with pytest.raises(Refused, match=r"edge pe1: wanted service 5 of transport other, which .* cannot create"):
        first_bench.driver.apply(EdgeDifference(add=(circuit,)))
    assert first_bench.device.running_config() == before


def test_an_unsupported_transport_stops_no_other_circuit(direct: EdgeBench) -> None:
    direct.converge(120)
    other = Circuit(transport=Name("other"), port=direct.ports[0], vlan=VlanId(113), service=5)
    change = EdgeDifference(add=(direct.circuit(112), other), remove=(direct.circuit(120),))
    with pytest.raises(
        Refused, match=r"^edge pe1: wanted service 5 of transport other, which .* cannot create"
    ) as error:
        direct.driver.apply(change)
    assert error.value.about.keys() == {113}
    assert direct.read() == EdgeObserved(circuits=(direct.circuit(112),))


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


def test_the_driver_reconnects_after_the_device_forgets_a_lost_session(make_edge_bench: MakeBench) -> None:
    bench = make_edge_bench("cisco_iosxr", "vpls", sessions=1, linger=60, read_timeout=3)
    bench.device.fail("disconnect", ATTACH["cisco_iosxr"])
    with pytest.raises(Unreachable, match="ended the session"):
        bench.converge(112)
    with pytest.raises(Unreachable):
        bench.converge(112)
    bench.device.lost.clear()
    assert not bench.converge(112)


def test_a_slow_device_is_awaited(make_edge_bench: MakeBench) -> None:
    bench = make_edge_bench("cisco_nxos", "evpn", slowness=0.1, read_timeout=2)
    assert not bench.converge(112)
    assert bench.reached() == bench.expected(112)


SAVE_FAILURES = [
    (name, cause) for name, kind in EDGES.items() if EDGE_DIALECTS[name].save for cause in kind.save_failures
]


@pytest.mark.parametrize(("name", "cause"), SAVE_FAILURES)
def test_a_failed_save_of_an_edge_is_refused(name: str, cause: str, make_edge_bench: MakeBench) -> None:
    bench = make_edge_bench(name, next(kind for platform, kind in PAIRS if platform == name))
    bench.device.fail_save(cause)
    with pytest.raises(Refused, match="edge pe1"):
        bench.driver.save()
    assert bench.device.saves == 0
    assert bench.driver.save()
    assert not bench.device.unsaved
