"""Merges NetBox's devices, links and pools with SBF's topology. Pure.

The ports, aggregates, links, platforms, addresses and pools of the imported sites are those of NetBox. If NetBox has no
platform or no address for a device, the platform or address in SBF's topology remains. A device that moved to another
imported site leaves its former site.

SBF's topology keeps what NetBox cannot describe: transports, attachments, gateways, edges, rules, credentials and
latencies. The topology also keeps the switches, hosts and links that NetBox lacks, with two exceptions:

- A link is removed if NetBox has another link at one of the link's ports.
- If ``prune`` is true, the imported sites lose the switches and hosts that NetBox lacks. A link is then also removed if
  NetBox has both devices of the link, but lacks the link.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from virtcloud.model.element import Element, Host, Switch
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link, Site
from virtcloud.model.validation_errors import format_validation_errors
from virtcloud.model.values import Name, PortName, PortRef
from virtcloud.model.vlans import VlanSet
from virtcloud.netbox.translation import NetBoxTranslation, TranslatedDevice


@dataclass(frozen=True, slots=True)
class NetBoxMerge:
    """The merged topology, the pools of NetBox's sites, and notes for the administrator about the differences."""

    topology: Topology
    pools: Mapping[Name, VlanSet]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Merger:
    translation: NetBoxTranslation
    former: Topology | None
    prune: bool

    def run(self) -> NetBoxMerge:
        """Return the result of the merge. Raise BadInput if the merged topology is invalid."""
        notes = list(self.translation.problems)
        try:
            topology = self._topology(notes)
        except ValidationError as error:
            faults = format_validation_errors(error)
            raise BadInput(
                f"NetBox and SBF give an invalid topology:\n{faults}\ncorrect NetBox or SBF's topology first"
            ) from error
        pools = {name: vlans for name, vlans in self.translation.pools.items() if vlans}
        notes += [
            f"site {name}: NetBox has no VLANs for its pool" for name in self.translation.sites if name not in pools
        ]
        return NetBoxMerge(topology, pools, tuple(notes))

    def _topology(self, notes: list[str]) -> Topology:
        sites = {site.name: site for site in self.former.sites} if self.former else {}
        for name in self.translation.sites:
            sites[name] = self._site(sites.get(name) or Site(name=name), notes)
        self._remove_moved(sites, notes)
        return Topology.model_validate(
            {
                "name": self.former.name if self.former else Name("topology"),
                "transports": self.former.transports if self.former else (),
                "sites": tuple(sites.values()),
                "links": tuple(self._links(sites, notes)),
            }
        )

    def _site(self, site: Site, notes: list[str]) -> Site:
        devices = {device.name: device for device in self.translation.devices if device.site == site.name}
        switches = {switch.name: switch for switch in site.switches}
        hosts = {host.name: host for host in site.hosts}
        sites = self.former.sites if self.former else ()
        former_switches = {switch.name: switch for former in sites for switch in former.switches}
        former_hosts = {host.name: host for former in sites for host in former.hosts}
        for device in devices.values():
            kept = self._kept_ports(device, former_switches.get(device.name) or former_hosts.get(device.name))
            if not device.ports and not kept:
                notes.append(f"{device.name}: NetBox shows no cable to another device: the device is not imported")
            elif not device.is_switch:
                hosts[device.name] = _merge_host(device, former_hosts.get(device.name), kept)
                switches.pop(device.name, None)  # its role in NetBox has changed
            elif (merged := _merge_switch(device, former_switches.get(device.name), kept)) is not None:
                switches[device.name] = merged
                hosts.pop(device.name, None)
        known = {device.name for device in self.translation.devices}
        for element in (*site.switches, *site.hosts):
            if element.name not in known:
                notes.append(f"{element.name} is not in NetBox: SBF {'removes' if self.prune else 'keeps'} the element")
                if self.prune:
                    switches.pop(element.name, None)
                    hosts.pop(element.name, None)
        return site.model_copy(update={"switches": tuple(switches.values()), "hosts": tuple(hosts.values())})

    def _remove_moved(self, sites: dict[Name, Site], notes: list[str]) -> None:
        for device in self.translation.devices:
            if device.name not in {element.name for element in sites[device.site].elements}:
                continue
            for name in self.translation.sites:
                site = sites[name]
                if name != device.site and device.name in {each.name for each in (*site.switches, *site.hosts)}:
                    notes.append(f"{device.name} moves from site {name} to site {device.site}, as in NetBox")
                    switches = tuple(each for each in site.switches if each.name != device.name)
                    hosts = tuple(each for each in site.hosts if each.name != device.name)
                    sites[name] = site.model_copy(update={"switches": switches, "hosts": hosts})

    def _kept_ports(self, device: TranslatedDevice, former: Element | None) -> tuple[PortName, ...]:
        """Return the ports of ``former`` that have no link in NetBox, but have an attachment or a remaining link."""
        if former is None or self.former is None:
            return ()
        used = {attachment.port for site in self.former.sites for attachment in site.attachments}
        used |= {end for link in self._remaining_links() for end in link.ends}
        return tuple(
            port for port in former.ports if port not in device.ports and PortRef.of(device.name, port) in used
        )

    def _remaining_links(self) -> Iterator[Link]:
        """Yield the links of SBF's topology that remain: neither port has a link in NetBox.

        If ``prune`` is true, NetBox must also lack at least one of the link's two devices.
        """
        linked = {end for pair in self.translation.links for end in pair}
        known = {device.name for device in self.translation.devices}
        for link in self.former.links if self.former else ():
            is_known = {link.a.element, link.b.element} <= known
            if not {link.a, link.b} & linked and not (self.prune and is_known):
                yield link

    def _links(self, sites: Mapping[Name, Site], notes: list[str]) -> Iterator[Link]:
        elements = {element.name for site in sites.values() for element in site.elements}
        former = {frozenset(link.ends): link for link in self.former.links} if self.former else {}
        for a, b in self.translation.links:
            if {a.element, b.element} <= elements:
                yield former.get(frozenset((a, b))) or Link(a=a, b=b)
        known = {device.name for device in self.translation.devices}
        for link in self._remaining_links():
            if {link.a.element, link.b.element} <= elements:
                if {link.a.element, link.b.element} <= known:
                    notes.append(f"link {link.a} to {link.b} is not in NetBox: SBF keeps the link")
                yield link


def merge(translation: NetBoxTranslation, former: Topology | None, *, prune: bool = False) -> NetBoxMerge:
    """Return SBF's topology and pools after an import from NetBox. ``former`` is None if SBF has no topology yet.

    If ``prune`` is true, remove from the imported sites each switch and host that NetBox lacks. Also remove each link
    that NetBox lacks, if NetBox has both devices of the link. Raise BadInput if the merged topology is invalid.
    """
    return _Merger(translation, former, prune).run()


def _merge_switch(device: TranslatedDevice, former: Switch | None, kept: tuple[PortName, ...]) -> Switch | None:
    platform = device.platform or (former.platform if former else None)
    if platform is None:
        return None
    credential = (former.credential if former else None) or device.credential
    ports, aggregates = _merge_ports(device, former, kept)
    fields = {
        "name": device.name,
        "ports": ports,
        "aggregates": aggregates,
        "platform": platform,
        "address": device.address or (former.address if former else None),
        "credential": credential,
    }
    return Switch.model_validate({**(former.model_dump() if former else {}), **fields})


def _merge_host(device: TranslatedDevice, former: Host | None, kept: tuple[PortName, ...]) -> Host:
    ports, aggregates = _merge_ports(device, former, kept)
    fields = {"name": device.name, "ports": ports, "aggregates": aggregates}
    return Host.model_validate({**(former.model_dump() if former else {}), **fields})


def _merge_ports(
    device: TranslatedDevice, former: Element | None, kept: tuple[PortName, ...]
) -> tuple[tuple[PortName, ...], dict[PortName, tuple[PortName, ...]]]:
    every = {*device.ports, *kept}
    order = [port for port in (former.ports if former else ()) if port in every]
    ports = tuple(dict.fromkeys([*order, *sorted(every)]))
    kept_aggregates = {port: members for port, members in (former.aggregates if former else {}).items() if port in kept}
    return ports, {**kept_aggregates, **device.aggregates}
