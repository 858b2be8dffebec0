"""Translates NetBox's devices, cables and VLANs to elements, links and pools. Pure.

Cables are followed through patch panels (``connected_endpoints``). A device's custom fields take precedence:
``virtcloud_name`` over the device's name in NetBox, ``virtcloud_platform`` over the platform in NetBox, and
``virtcloud_credential`` over the credential in the import's settings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from virtcloud.model.errors import BadInput
from virtcloud.model.message_text import printable
from virtcloud.model.values import DeviceAddress, Name, PortName, PortRef
from virtcloud.model.vlans import VlanSet
from virtcloud.netbox.reading import NetBoxData, Row
from virtcloud.netbox.settings import NetBoxFile

INTERFACE = "dcim.interface"
FREE_STATUSES = frozenset({"reserved", "deprecated"})
"""The statuses of VLANs that are not in use."""


@dataclass(frozen=True, slots=True)
class TranslatedDevice:
    """A switch or a host. ``ports`` are the ports with a cable to another switch or host of the import."""

    name: Name
    site: Name
    is_switch: bool
    ports: tuple[PortName, ...]
    aggregates: Mapping[PortName, tuple[PortName, ...]]
    platform: str | None = None
    address: DeviceAddress | None = None
    credential: Name | None = None


@dataclass(frozen=True, slots=True)
class NetBoxTranslation:
    """The devices, links and pools of NetBox. ``problems`` lists the objects that cannot be imported, with remedies."""

    devices: tuple[TranslatedDevice, ...]
    links: tuple[tuple[PortRef, PortRef], ...]
    pools: Mapping[Name, VlanSet]
    sites: tuple[Name, ...]
    problems: tuple[str, ...] = ()


@dataclass
class _Translator:
    file: NetBoxFile
    data: NetBoxData
    problems: list[str] = field(default_factory=list)

    def run(self) -> NetBoxTranslation:
        sites = {row["id"]: name for row in self.data.sites if (name := self._site_name(row))}
        masters = self._masters()
        names = self._device_names(sites, masters)
        by_device: dict[int, dict[int, Row]] = {}
        for row in self.data.interfaces:
            device = row["device"]["id"]
            by_device.setdefault(masters.get(device, device), {})[row["id"]] = row
        names |= {member: names[master] for member, master in masters.items() if master in names}
        links = tuple(self._sole_links(list(self._links(names, by_device))))
        devices = tuple(
            self._device(row, names[row["id"]], sites[row["site"]["id"]], by_device.get(row["id"], {}), links)
            for row in self.data.devices
            if row["id"] in names and row["id"] not in masters
        )
        pools = {name: self._pool(identifier) for identifier, name in sites.items()}
        return NetBoxTranslation(devices, links, pools, tuple(sites.values()), tuple(self.problems))

    def _site_name(self, row: Row) -> Name | None:
        text = str(row["slug"])
        if Name.matches(text):
            return Name(text)
        self.problems.append(f"site {text}: its slug is not a valid name of a site ({Name.meaning}): change the slug")
        return None

    def _masters(self) -> dict[int, int]:
        """Return the master of each member of a virtual chassis, both as device IDs.

        The masters are not among the keys. Omit members whose chassis has no master in NetBox's data. SBF's topology
        has one element for a chassis, with the name of the master.
        """
        known = {row["id"] for row in self.data.devices}
        chassis = {row["id"]: row["virtual_chassis"] for row in self.data.devices if row.get("virtual_chassis")}
        masters = {member: _id_of(row, "master") for member, row in chassis.items()}
        return {member: master for member, master in masters.items() if master and master in known - {member}}

    def _device_names(self, sites: Mapping[int, Name], masters: Mapping[int, int]) -> dict[int, Name]:
        """Return the name of each device, by the device's ID. Record a problem for each invalid or repeated name.

        Omit devices with such a name, the devices in ``masters``, and devices whose site is not in ``sites``. The first
        of several devices with the same name is not omitted.
        """
        names: dict[int, Name] = {}
        owners: dict[Name, int] = {}
        for row in self.data.devices:
            if row["id"] in masters:
                continue
            text = str(_custom(row, "virtcloud_name") or _short_name(row))
            label = f"device {printable(str(row.get('name') or ''))!r} (NetBox id {row['id']})"
            if not Name.matches(text):
                remedy = "rename it, or set its custom field virtcloud_name"
                self.problems.append(f"{label}: expected {Name.meaning}, got {printable(text)!r}: {remedy}")
            elif Name(text) in owners:
                other = owners[Name(text)]
                self.problems.append(f"{label}: id {other} also has the name {text}: set virtcloud_name of one device")
            elif row["site"]["id"] in sites:
                names[row["id"]], owners[Name(text)] = Name(text), row["id"]
        return names

    def _links(
        self, names: Mapping[int, Name], by_device: Mapping[int, Mapping[int, Row]]
    ) -> Iterator[tuple[PortRef, PortRef]]:
        """Yield each link once. All cables of an aggregate together are one link."""
        seen = set[tuple[PortRef, PortRef]]()
        interfaces = {row["id"]: row for rows in by_device.values() for row in rows.values()}
        for device, rows in by_device.items():
            for row in rows.values():
                name = names.get(device)
                local = self._end(name, row) if name and row.get("connected_endpoints") else None
                for peer in row.get("connected_endpoints") or ():
                    other = names.get((peer.get("device") or {}).get("id", -1))
                    if row.get("connected_endpoints_type") != INTERFACE or local is None or other in {None, name}:
                        continue
                    remote = self._end(other, interfaces.get(peer["id"], peer))
                    if remote is not None and (pair := (min(local, remote), max(local, remote))) not in seen:
                        seen.add(pair)
                        yield pair

    def _sole_links(self, links: Sequence[tuple[PortRef, PortRef]]) -> Iterator[tuple[PortRef, PortRef]]:
        """Yield the links whose ports have no other link. Record a problem for each port with several links.

        A port with a breakout cable, or an aggregate with two peers, has several links.
        """
        peers: dict[PortRef, list[PortRef]] = {}
        for a, b in links:
            peers.setdefault(a, []).append(b)
            peers.setdefault(b, []).append(a)
        for port, others in sorted(peers.items()):
            if len(others) > 1:
                self.problems.append(
                    f"port {port}: expected a cable to one port, found {', '.join(sorted(others))}: these links are "
                    "left out; give each cable of a breakout an interface of its own"
                )
        yield from (link for link in links if all(len(peers[end]) == 1 for end in link))

    def _end(self, element: Name, row: Row) -> PortRef | None:
        """Return the port for an interface: the aggregate that contains it, or else the interface itself.

        None: invalid name.
        """
        text = str((row.get("lag") or row)["name"])
        if PortName.matches(text):
            return PortRef.of(element, PortName(text))
        problem = f"interface {printable(text)!r} of {element}: expected {PortName.meaning} without spaces: rename it"
        if problem not in self.problems:
            self.problems.append(problem)
        return None

    def _device(
        self,
        row: Row,
        name: Name,
        site: Name,
        interfaces: Mapping[int, Row],
        links: Sequence[tuple[PortRef, PortRef]],
    ) -> TranslatedDevice:
        ports = tuple(sorted({end.port for link in links for end in link if end.element == name}))
        aggregates: dict[PortName, list[PortName]] = {}
        for interface in interfaces.values():
            lag, member = interface.get("lag"), str(interface["name"])
            if lag and lag["name"] in ports and PortName.matches(member):
                aggregates.setdefault(PortName(lag["name"]), []).append(PortName(member))
        is_switch = _slug(row, "role", "device_role") in self.file.switch_roles
        return TranslatedDevice(
            name,
            site,
            is_switch,
            ports,
            {port: tuple(sorted(members)) for port, members in aggregates.items()},
            platform=self._platform(row, name) if is_switch else None,
            address=_address(row) if is_switch else None,
            credential=self._credential(row, name) if is_switch else None,
        )

    def _platform(self, row: Row, name: Name) -> str | None:
        slug = _slug(row, "platform")
        platform = _custom(row, "virtcloud_platform") or self.file.platforms.get(slug) or slug.replace("-", "_")
        if not platform:
            self.problems.append(
                f"switch {name}: NetBox has no platform for it: set its platform, or virtcloud_platform"
            )
        return platform or None

    def _credential(self, row: Row, name: Name) -> Name | None:
        text = _custom(row, "virtcloud_credential")
        if text and not Name.matches(text):
            self.problems.append(
                f"switch {name}: virtcloud_credential: expected {Name.meaning}, got {printable(text)!r}"
            )
            return self.file.credential
        return Name(text) if text else self.file.credential

    def _pool(self, site: int) -> VlanSet:
        """Return a site's pool of VLAN IDs.

        The pool contains the IDs of the site's VLANs with the tag ``file.tag``, and the VLAN IDs in the ranges of the
        site's VLAN groups with this tag. The pool omits a VLAN ID of a range if the site has a VLAN with this ID that
        is in use and lacks the tag. All VLANs of a group whose scope is the site count as VLANs of the site, whether or
        not the group has the tag.
        """
        groups = [row for row in self.data.groups if _scope_site(row) == site]
        ids = {row["id"] for row in groups}
        ranges = VlanSet(vlan for row in groups if self.file.tag in _tags(row) for vlan in _group_vlans(row))
        here = [row for row in self.data.vlans if _id_of(row, "site") == site or _id_of(row, "group") in ids]
        tagged = VlanSet(row["vid"] for row in here if self.file.tag and self.file.tag in _tags(row))
        used = VlanSet(row["vid"] for row in here if _value(row, "status") not in FREE_STATUSES)
        return (ranges - used) | tagged


def translate(file: NetBoxFile, data: NetBoxData) -> NetBoxTranslation:
    """Return the elements, links and pools of NetBox's data."""
    return _Translator(file, data).run()


def _short_name(row: Row) -> str:
    return str(row.get("name") or "").partition(".")[0].lower()


def _custom(row: Row, key: str) -> str:
    value = (row.get("custom_fields") or {}).get(key)
    return "" if value is None else str(value)


def _slug(row: Row, *keys: str) -> str:
    """Return the slug of the object under the first key that is set, or "" if no key is set.

    NetBox before 4.0 names a device's role ``device_role``.
    """
    return next((str(row[key]["slug"]) for key in keys if row.get(key)), "")


def _value(row: Row, key: str) -> str:
    choice = row.get(key)
    return str(choice.get("value", "")) if isinstance(choice, dict) else str(choice or "")


def _id_of(row: Row, key: str) -> int | None:
    return row[key]["id"] if row.get(key) else None


def _tags(row: Row) -> set[str]:
    return {str(tag["slug"]) for tag in row.get("tags") or ()}


def _scope_site(group: Row) -> int | None:
    return group.get("scope_id") if group.get("scope_type") == "dcim.site" else None


def _group_vlans(group: Row) -> Iterator[int]:
    """Yield the VLAN IDs of a group: ``vid_ranges`` since NetBox 4.2, ``min_vid`` and ``max_vid`` before."""
    ranges = group.get("vid_ranges") or ([[group["min_vid"], group["max_vid"]]] if "min_vid" in group else [])
    for first, last in ranges:
        yield from range(max(2, first), min(4094, last) + 1)


def _address(row: Row) -> DeviceAddress | None:
    text = str((row.get("primary_ip") or {}).get("address") or "").partition("/")[0]
    try:
        return DeviceAddress(text) if text else None
    except BadInput:
        return None
