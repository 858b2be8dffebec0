import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.kernel.guest_filter_wire import (
    ADDRESSED_DEVICES,
    ATTACKS,
    GUEST_MAC,
    GUEST_PORT,
    OTHER_PORT,
    PORT,
    SUBNETS,
    connected,
    find_passing,
)
from support.kernel.network_namespaces import Run

from virtcloud.agent.gateway import namespace_program
from virtcloud.agent.gateway.outside_difference import ObservedOutside, RouteOutside, find_outside_changes
from virtcloud.agent.gateway.outside_links import TABLE
from virtcloud.agent.host_bootstrap import _open_filters
from virtcloud.agent.network import libnftables, nftables
from virtcloud.agent.network.guest_filters import GuestPort, list_elements
from virtcloud.agent.network.libnftables import run_commands
from virtcloud.agent.network.nftables import KernelTables, NftablesFilters, _run
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.settings import AgentSettings
from virtcloud.model.errors import Refused, Unsafe


def nft(*arguments: str) -> str:
    return subprocess.run(["nft", *arguments], text=True, capture_output=True, check=True).stdout  # noqa: S603, S607 - Debian's nft


def test_replaced_filters_are_read_back(in_namespace: Run) -> None:
    addresses = ("10.0.0.1/24", "fd00::1/64", "::5/64")
    first, second = (
        (GUEST_PORT,),
        (
            GUEST_PORT._replace(serves=("dhcp", "ra")),
            GuestPort(OTHER_PORT, "02:00:00:00:00:02", addresses),
            ADDRESSED_DEVICES._replace(routed=(*SUBNETS, "10.9.9.9/32")),
        ),
    )

    def work() -> object:
        filters = NftablesFilters()
        observed = [filters.read()]
        for ports in (first, second, second, (), ()):
            filters.replace(ports)
            observed.append(filters.read())
        return observed

    expected = [(), first, second, second, (), ()]
    assert in_namespace(work) == [ObservedFilters(list_elements(ports)) for ports in expected]


def test_ipv6_addresses_with_an_ipv4_part_are_read_back(in_namespace: Run) -> None:
    ports = (
        GuestPort(PORT, "02:00:00:00:00:01", ("::102:304/96", "::ffff:102:304/120")),
        ADDRESSED_DEVICES._replace(routed=("::102:300/120",)),
    )

    def work() -> object:
        NftablesFilters().replace(ports)
        return NftablesFilters().read()

    assert in_namespace(work) == ObservedFilters(list_elements(ports))


def test_overlapping_subnets_of_routers_are_accepted(in_namespace: Run) -> None:
    ports = (GUEST_PORT, ADDRESSED_DEVICES._replace(routed=("10.9.0.0/16", "10.9.9.0/24", "fd09::/48", "fd09::/64")))

    def work() -> object:
        NftablesFilters().replace(ports)
        return NftablesFilters().read()

    assert in_namespace(work) == ObservedFilters(list_elements(ports))


@pytest.mark.parametrize(
    "command",
    [
        "flush chain bridge virtcloud guest",
        "delete rule bridge virtcloud ingress handle HANDLE",
        "insert rule bridge virtcloud guest accept",
        "flush set bridge virtcloud ports",
        "flush set bridge virtcloud guests",
        "flush map bridge virtcloud senders",
        f'delete element bridge virtcloud senders {{ "{PORT}" . {GUEST_MAC} . ip }}',
        (
            f'delete element bridge virtcloud senders {{ "{PORT}" . {GUEST_MAC} . ip }}; '
            f'add element bridge virtcloud senders {{ "{PORT}" . {GUEST_MAC} . ip : drop }}'
        ),
        f'add element bridge virtcloud routers {{ "{PORT}" }}',
        "delete table bridge virtcloud",
        "add table bridge virtcloud { flags dormant; }",
        "flush ruleset",
        "add chain bridge virtcloud ingress { policy drop; }",
    ],
)
def test_a_change_by_somebody_else_is_found(in_namespace: Run, command: str) -> None:
    ports = (GUEST_PORT,)

    def work() -> object:
        filters = NftablesFilters()
        filters.replace(ports)
        listing = nft("-a", "list chain bridge virtcloud ingress")
        handle = next(line.rpartition(" ")[2] for line in listing.splitlines() if "goto" in line)
        nft(command.replace("HANDLE", handle))
        return filters.read() == ObservedFilters(list_elements(ports))

    assert in_namespace(work) is False


def test_the_table_of_an_older_agent_is_replaced(in_namespace: Run) -> None:
    older = (
        "set ports { type ifname; }; set guests { typeof iifname . ether saddr; }; "
        "set free { typeof iifname . ether saddr . ether type; }; "
        "chain ingress { type filter hook prerouting priority -300; }"
    )

    def work() -> object:
        _run(f"table bridge virtcloud {{ {older}; }}")
        filters = NftablesFilters()
        found = filters.read()
        filters.replace((GUEST_PORT,))
        return found.foreign, "the set senders is missing" in found.faults, filters.read()

    assert in_namespace(work) == (False, True, ObservedFilters(list_elements([GUEST_PORT])))


def test_without_nf_tables_the_filters_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_commands: str) -> object:
        raise Refused("the kernel refused the filters of guests")

    monkeypatch.setattr(nftables, "_run", refuse)
    settings = AgentSettings.model_validate({"element": "h1", "sbf": "http://sbf", "guests": {"filters": "off"}})
    assert _open_filters(settings) is None


WITHOUT_DESCRIPTORS = """
import resource
from virtcloud.agent.network import libnftables, nftables
from virtcloud.model.errors import Refused
libnftables.is_installed()
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 64))
try:
    nftables._run("list tables bridge")
except Refused as error:
    print(error)
"""


def test_a_lack_of_file_descriptors_does_not_end_the_agent() -> None:
    """If libnftables cannot open a netlink socket, it ends the process with the C function ``exit``."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, check=False)  # noqa: S603
    message = "cannot open a netlink socket for the packet filter: Too many open files\n"
    assert (done.returncode, done.stdout) == (0, message), done.stderr


FIREWALLD = """
table inet firewalld
delete table inet firewalld
table inet firewalld { chain filter_INPUT { type filter hook input priority 10; policy accept; }; }
"""
"""The commands by which firewalld replaces its own table when its settings are reloaded."""
DOCKER = """
table ip nat { chain DOCKER { }; chain PREROUTING { type nat hook prerouting priority -100; jump DOCKER; }; }
table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }
table bridge filter { chain FORWARD { type filter hook prerouting priority -300; policy accept; accept; }; }
"""
"""Tables like those of Docker and ebtables. The last table precedes the filters of guests, and accepts all frames."""


@pytest.mark.parametrize(
    ("commands", "tables"),
    [
        ("flush ruleset", []),
        (f"flush ruleset; {FIREWALLD}", ["inet firewalld"]),
        (FIREWALLD, ["inet firewalld"]),
        (DOCKER, ["bridge filter", "ip filter", "ip nat"]),
        ("delete table bridge virtcloud", []),
        ("flush table bridge virtcloud", []),
        ("add table bridge virtcloud { flags dormant; }", []),
    ],
)
def test_filters_survive_other_programs(in_namespace: Run, commands: str, tables: list[str]) -> None:
    """Another program runs ``commands``. Then the agent reads its filters, and replaces them if they differ."""

    def work() -> object:
        with connected() as wire:
            filters = NftablesFilters()
            filters.replace((GUEST_PORT,))
            _run(commands)
            if filters.read() != ObservedFilters(list_elements([GUEST_PORT])):
                filters.replace((GUEST_PORT,))
            found = {line.removeprefix("table ") for line in nft("list tables").splitlines()}
            return find_passing(wire, ATTACKS), sorted(found - {"bridge virtcloud"})

    assert in_namespace(work) == ([], tables)


def test_a_foreign_table_of_the_same_name_is_not_replaced(in_namespace: Run) -> None:
    foreign = "table bridge virtcloud {\n\tchain mine {\n\t\tcounter packets 0 bytes 0\n\t}\n}\n"

    def work() -> object:
        _run(foreign)
        filters = NftablesFilters()
        with pytest.raises(Unsafe, match="virtcloud did not create; left unchanged"):
            filters.replace((GUEST_PORT,))
        filters.remove()
        return filters.read().faults, nft("list ruleset")

    assert in_namespace(work) == (("virtcloud did not create the table bridge virtcloud",), foreign)


@contextmanager
def without_json(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block, a listing in JSON fails, because libnftables 1.0.6 could end the process."""

    def run(commands: str, output_flags: int = 0) -> str:
        assert output_flags != libnftables.JSON_OUTPUT
        return run_commands(commands, output_flags)

    with monkeypatch.context() as patched:
        patched.setattr(libnftables, "run_commands", run)
        yield


@pytest.mark.parametrize(
    ("commands", "foreign"),
    [("", False), ("chain mine { }", True), ("set ports { type ifname; }; chain mine { }", True)],
)
def test_a_table_with_flags_is_replaced_unless_it_is_foreign(
    in_namespace: Run, monkeypatch: pytest.MonkeyPatch, commands: str, *, foreign: bool
) -> None:
    def work() -> object:
        filters = NftablesFilters()
        if not foreign:
            filters.replace((GUEST_PORT,))
        _run(f"table bridge virtcloud {{ flags dormant; {commands}; }}")
        with without_json(monkeypatch):
            observed = filters.read()
            if not foreign:
                filters.replace((GUEST_PORT,))
        return observed.foreign if foreign else (observed, filters.read())

    flagged = ObservedFilters(faults=("the table has flags, for example dormant",))
    assert in_namespace(work) == (foreign or (flagged, ObservedFilters(list_elements([GUEST_PORT]))))


@pytest.mark.parametrize("read", [KernelTables().read, lambda family, _name: namespace_program._read_table(family)])
def test_no_table_with_flags_is_listed_in_json(
    in_namespace: Run, monkeypatch: pytest.MonkeyPatch, read: Callable[[str, str], object]
) -> None:
    """Such a table differs from each wanted table."""

    def work() -> object:
        _run("table bridge virtcloud { flags dormant; chain mine { }; }")
        with without_json(monkeypatch):
            return read("bridge", "virtcloud")

    assert in_namespace(work) == {"nftables": []}


def refuse_listings(monkeypatch: pytest.MonkeyPatch) -> None:

    def run(commands: str, output_flags: int = 0) -> str:
        if commands.startswith("list table "):
            raise Refused("the kernel refused the packet filter: Cannot allocate memory")
        return _run(commands, output_flags)

    monkeypatch.setattr(nftables, "_run", run)


def test_a_table_that_cannot_be_read_is_not_replaced(in_namespace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table may be foreign, so the agent must neither replace nor remove it."""

    def work() -> object:
        nft("add table bridge virtcloud")
        with monkeypatch.context() as patched:
            refuse_listings(patched)
            for change in (lambda: NftablesFilters().replace(()), NftablesFilters().remove):
                with pytest.raises(Refused, match="Cannot allocate memory"):
                    change()
        return nft("list tables")

    assert in_namespace(work) == "table bridge virtcloud\n"


def test_an_unwanted_table_that_cannot_be_read_is_removed(in_namespace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> object:
        nft("add", "table", *TABLE)
        with monkeypatch.context() as patched:
            refuse_listings(patched)
            observed = ObservedOutside(KernelTables().read(*TABLE))
        return list(find_outside_changes((), observed))

    assert in_namespace(work) == [RouteOutside((), ("no network needs the packet filter",))]


@pytest.mark.parametrize(
    ("reason", "is_absent"),
    [("Operation not permitted", False), ("Invalid argument", True), ("Protocol not supported", True)],
)
def test_a_refused_table_is_absent_only_without_packet_filter(
    monkeypatch: pytest.MonkeyPatch, reason: str, is_absent: bool
) -> None:
    """If the kernel has no packet filter, the table counts as absent. After any other refusal, it is unreadable."""

    def run(_commands: str) -> object:
        raise Refused(f"the kernel refused the packet filter: Error: cache initialization failed: {reason}")

    monkeypatch.setattr(nftables, "_run", run)
    assert (KernelTables().read(*TABLE) is None) == is_absent


def test_tables_of_others_are_left_alone(in_namespace: Run) -> None:
    def work() -> object:
        nft("add table bridge filter; add table inet virtcloud")
        filters = NftablesFilters()
        filters.replace((GUEST_PORT,))
        filters.replace(())
        return nft("list tables")

    assert in_namespace(work) == "table bridge filter\ntable inet virtcloud\n"


def test_a_failed_removal_of_a_table_is_an_error(in_namespace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_commands: str) -> object:
        raise Refused("the kernel refused the packet filter: Cannot allocate memory")

    def work() -> object:
        nft("add", "table", "inet", "virtcloud")
        with monkeypatch.context() as patched:
            patched.setattr(nftables, "_run", refuse)
            with pytest.raises(Refused, match="Cannot allocate memory"):
                KernelTables().remove("inet", "virtcloud")
        KernelTables().remove("inet", "virtcloud")
        KernelTables().remove("inet", "virtcloud")
        return nft("list", "tables")

    assert in_namespace(work) == ""
