"""The invariants (docs/explanation/invariants.md), checked after each step and at the end of a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulation.devices import OTHERS_SERVICE, Edge, EdgeConfig, Host, Switch, SwitchConfig
from simulation.stage import Stage, Watched
from simulation.store import Cluster, MemoryStore
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.edge import EdgeWanted
from virtcloud.model.switch_state import SwitchWanted
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted


class BrokenError(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str | Callable[[], str]) -> None:
    """Raise BrokenError with the text ``what`` unless ``holds``.

    To save time, ``what`` can be a function that returns the text. The function is called only for an error.
    """
    if not holds:
        raise BrokenError(what if isinstance(what, str) else what())


@dataclass
class Invariants:
    """Compares the store with the state of devices and hosts.

    ``foreign`` maps each device to the part of its configuration that SBF does not manage.
    """

    store: MemoryStore
    stage: Stage
    devices: Mapping[Name, Switch | Edge]
    hosts: Mapping[Name, Host]
    foreign: dict[Name, object] = field(default_factory=dict)
    _checked: int | None = None
    _carried: dict[tuple[Name, bool], tuple[object, object, set[tuple[PortName, int]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.foreign = {name: device.read_foreign() for name, device in self.devices.items()}

    def check(self) -> None:
        """Raise BrokenError if the stage recorded a fault, or if an invariant does not hold."""
        if self.stage.broken:
            raise BrokenError("; ".join(self.stage.broken))
        changes = Watched.changes.count
        if changes != self._checked:
            self.check_all()
            self._checked = changes

    def check_all(self) -> None:
        """Check the invariants 1, 2, 4 and 5."""
        held = [(at, vlan) for one in self.store.clusters for at, vlan in one.claims.items()]
        require(len(held) == len(set(held)), lambda: f"invariant 1: a VLAN ID is claimed twice: {held}")
        self.check_transports()
        services = [one.service for one in self.store.clusters if one.service is not None]
        require(len(services) == len(set(services)), lambda: f"invariant 1: a service ID is claimed twice: {services}")
        stray = self.list_carried_services() - set(services)
        require(not stray, f"invariant 2: service IDs {stray} are carried, but no cluster has claimed them")
        for row in self.store.clusters:
            holds = row.joined is None and not row.is_settled
            if bool(row.claims) != holds:
                raise BrokenError(f"{row.id} is {row.state} and holds {row.claims}")
            if row.joined is not None and not row.is_settled and not row.joined.claims:
                raise BrokenError(f"invariant 2: {row.id} is {row.state}, and its network's VLAN IDs were released")
            if row.state is ClusterState.ACTIVE:
                missing = [
                    name
                    for name, part in row.placements.items()
                    if part.removed is None and not self.carries(row, name)
                ]
                if missing:
                    raise BrokenError(f"invariant 5: {row.id} is active, and not carried by {missing}")
        self.check_vlans_unshared()
        for name, device in self.devices.items():
            if device.read_foreign() != self.foreign[name]:
                found = device.read_foreign()
                raise BrokenError(f"invariant 4: {name}: expected foreign {self.foreign[name]}, found {found}")

    def check_transports(self) -> None:
        """Check invariant 1 across sites, on transports that separate networks only by their VLAN IDs."""
        shared = {one.name for one in self.store.topology.transports if not one.translates}
        used = [
            (one.transport, vlan)
            for one in self.store.clusters
            if one.transport in shared
            for vlan in set(one.claims.values())
        ]
        require(len(used) == len(set(used)), lambda: f"invariant 1: a transport has a VLAN ID twice: {used}")

    def check_vlans_unshared(self) -> None:
        """Check invariant 2: an element carries only VLANs of clusters on this element, now and after a restart."""
        allowed = self.allowed()
        for name, device in self.devices.items():
            for config in () if device.doubtful else (device.running, device.startup):
                if stray := self.carried(device, config) - allowed[name]:
                    when = "" if config is device.running else " after a restart"
                    raise BrokenError(f"invariant 2: {name}{when} carries {stray}, which no cluster has claimed there")
        for name, host in self.hosts.items():
            if not host.doubtful and (strays := set(host.segments.items()) - self.segments(name)):
                raise BrokenError(f"invariant 2: {name} carries {strays}, which no cluster has claimed there")

    def carried(self, device: Switch | Edge, config: SwitchConfig | EdgeConfig) -> set[tuple[PortName, int]]:
        theirs = device.foreign_vlans if isinstance(device, Switch) else None
        at = device.name, config is device.running
        before = self._carried.get(at)
        if before is None or before[0] is not config or before[1] is not theirs:
            before = self._carried[at] = config, theirs, carried(device, config, self.store.pool)
        return before[2]

    def allowed(self) -> dict[Name, set[tuple[PortName, int]]]:
        """Return the VLANs that each device may carry, with their ports.

        These are the VLANs of all clusters whose removal the device has not confirmed.
        """
        found: dict[Name, set[tuple[PortName, int]]] = {name: set() for name in self.devices}
        for row in self.store.clusters:
            claims = row.network.claims
            if not claims:
                continue
            gone = self.find_gone(row)
            for name, port in row.path:
                if name in found and name not in gone:
                    found[name].add((port, claims[self.store.elements[name].site]))
        return found

    def find_gone(self, row: Cluster) -> set[Name]:
        elements = self.store.elements
        return {
            name
            for name, part in row.placements.items()
            if part.removed is not None and elements[name].confirmed >= part.removed
        }

    def segments(self, host: Name) -> set[tuple[str, int]]:
        at = self.store.elements[host].site
        return {(one.id, int(one.claims[at])) for one in self.store.clusters if at in one.claims}

    def list_carried_vlans(self, at: Name) -> set[int]:
        """Return the VLAN IDs carried at a site. Omit devices and hosts in an unknown state."""
        devices = [one for name, one in self.devices.items() if name.startswith(at) and not one.doubtful]
        hosts = [one for name, one in self.hosts.items() if name.startswith(at) and not one.doubtful]
        return {
            vlan for one in devices for config in (one.running, one.startup) for _, vlan in self.carried(one, config)
        } | {vlan for one in hosts for vlan in one.segments.values()}

    def list_carried_services(self) -> set[int]:
        """Return SBF's service IDs that edges carry. Omit edges in an unknown state."""
        edges = [one for one in self.devices.values() if isinstance(one, Edge) and not one.doubtful]
        configs = [config for edge in edges for config in (edge.running, edge.startup)]
        circuits = {circuit.service for config in configs for circuit in config.circuits}
        found = circuits | {part.service for config in configs for part in config.parts}
        return found - {OTHERS_SERVICE}

    def find_element(self, name: Name) -> Switch | Edge | Host:
        return self.hosts[name] if name in self.hosts else self.devices[name]

    def carries(self, row: Cluster, name: Name) -> bool:
        """Return whether an element carries a cluster on all necessary ports, now and after a restart.

        Return True if the element's ``unread`` is true, because SBF then cannot know the element's state yet.
        """
        thing, vlan = self.find_element(name), row.network.claims[self.store.elements[name].site]
        if thing.unread:
            return True
        if isinstance(thing, Host):
            return thing.segments.get(row.network.id) == vlan
        ways = {(port, int(vlan)) for element, port in row.path if element == name}
        return all(ways <= self.carried(thing, config) for config in (thing.running, thing.startup))

    def check_converged(self) -> None:
        """Check invariant 3. Call this method only after all faults were removed and the actors ran for some time."""
        for name, thing in (*self.devices.items(), *self.hosts.items()):
            revision, confirmed, wanted = self.store.read_wanted(name)
            require(confirmed == revision, f"invariant 3: {name} confirmed {confirmed}, wanted is {revision}")
            found = (
                set(thing.segments.items())
                if isinstance(thing, Host)
                else carried(thing, thing.running, self.store.pool)
            )
            expected = expected_vlans(wanted)
            require(found == expected, f"invariant 3: {name} carries {found}, wanted is {expected}")
            if isinstance(thing, Switch):
                exist = {vlan for vlan in thing.running.vlans - thing.foreign_vlans if vlan in self.store.pool}
                used = {vlan for _, vlan in found}
                require(exist == used, f"invariant 3: {name} has VLANs {exist}, and carries {found}")
            if isinstance(thing, Edge):
                require(not thing.running.parts, f"invariant 3: {name} has parts: {thing.running.parts}")
            if not isinstance(thing, Host):
                require(thing.startup == thing.running, f"invariant 3: {name} would lose {found} in a restart")
        for row in self.store.clusters:
            rests = row.state in {ClusterState.ACTIVE, *ENDED_STATES} and not row.quarantined
            require(rests, f"invariant 3: {row.id} does not come to rest: {row.state}")


def carried(device: Switch | Edge, config: SwitchConfig | EdgeConfig, pool: VlanSet) -> set[tuple[PortName, int]]:
    """Return each port with each VLAN that it carries in ``config``.

    Omit VLANs outside the pool, and the ``foreign_vlans`` of a switch.
    """
    if isinstance(config, SwitchConfig):
        assert isinstance(device, Switch)
        ours = frozenset(pool) - device.foreign_vlans
        return {(port, vlan) for port in device.managed for vlan in config.carried(port) & ours}
    return {(one.port, int(one.vlan)) for one in config.circuits if one.vlan in pool}


def expected_vlans(wanted: SwitchWanted | EdgeWanted | HostWanted) -> set[tuple[str, int]]:
    """Return the VLANs that an element must carry.

    For a device, the result has the form of :func:`carried`. For a host, it contains cluster IDs with VLAN IDs.
    """
    if isinstance(wanted, HostWanted):
        return {(one.id, int(one.vlan)) for one in wanted.segments}
    if isinstance(wanted, EdgeWanted):
        return {(one.port, int(one.vlan)) for one in wanted.circuits}
    return {(port, int(vlan)) for port, vlans in wanted.ports.items() for vlan in vlans}
