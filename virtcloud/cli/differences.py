"""What would be changed, as commands print it: ``+ p1: VLAN 100`` and ``- p1: VLAN 139``.

PURE. The difference between a document that is in force and one that shall be, as text.
"""

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any

import click
import yaml

from virtcloud.cli.printing import format_time
from virtcloud.model.changes import ClusterDryRun, ElementDifference, ElementReconciliation, HostDifference
from virtcloud.model.document import Document
from virtcloud.model.edge import DEVICE_KINDS, NO_SERVICE, Circuit, CircuitRemnant, DeviceDifference, EdgeDifference
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import PortName
from virtcloud.model.views import ClusterTransport
from virtcloud.model.wanted import SwitchDifference

SERVICE_ID_NAMES = {TransportKind.QINQ: "S-tag", TransportKind.VPLS: "VPN id", TransportKind.EVPN: "VNI"}
CARRIES_ALL_VLANS = "it carries every VLAN: an empty list"


def print_cluster_dry_run(preview: ClusterDryRun) -> None:
    """Say what asking for a cluster would do."""
    numbers = ", ".join(f"VLAN {vlan} at {site}" for site, vlan in sorted(preview.vlans.items())) or "no VLAN"
    verb = "would take" if preview.created else "is there already, with"
    over = f", joined by {format_transport_service(preview.joined)}" if preview.joined else ""
    click.echo(f"cluster {preview.key} {verb} {numbers}{over}; nothing was changed")
    for one in preview.elements:
        print_difference(one)


def format_transport_service(found: ClusterTransport) -> str:
    """Say what joins a cluster's sites, such as ``evpn: VNI 10100``."""
    return f"{found.transport}: {SERVICE_ID_NAMES[found.kind]} {found.service}" if found.service else found.transport


def print_difference(found: ElementDifference) -> None:
    """Say what would be changed on an element."""
    click.echo(f"{found.kind} {found.element} at {found.site}, {_since(found)}:")
    for line in _lines(found) or ["nothing to change"]:
        click.echo(f"  {line}")
    if found.lines:
        click.echo("it would be told:")
        click.echo("\n".join(f"  {line}" for line in found.lines))


def print_reconciliation(found: ElementReconciliation) -> None:
    """Print what was changed on a device; a device that could not be read to the end was not found as wanted."""
    name = f"{found.element.kind} {found.element.name}"
    if found.mended is None:
        read = "was read" if found.element.reachable else "could not be read"
        click.echo(f"{name} {read}; nothing was changed")
        return
    click.echo(f"{name} was read and changed:")
    for line in format_change(found.mended):
        click.echo(f"  {line}")


def format_change(change: DeviceDifference | HostDifference) -> list[str]:
    """Write a change, line by line: ports and numbers of a switch, circuits of an edge, clusters of a host."""
    if isinstance(change, HostDifference):
        return list(_host(change))
    return list(_edge(change) if isinstance(change, EdgeDifference) else _switch(change))


def _lines(found: ElementDifference) -> list[str]:
    change = found.switch or found.edge or found.host
    return format_change(change) if change else []


def _edge(change: EdgeDifference) -> Iterator[str]:
    yield from (f"! {_circuit(one)}: what is left of it" for one in change.clear)
    yield from (f"- {_circuit(one)}" for one in change.remove)
    yield from (f"+ {_circuit(one)}" for one in change.add)


def _circuit(one: Circuit | CircuitRemnant) -> str:
    port = "" if one.port is None else f"{one.port}: "
    if one.service == NO_SERVICE:
        return f"{port}VLAN {one.vlan} in no service"
    vlan = "" if one.vlan is None else f"VLAN {one.vlan} in "
    return f"{port}{vlan}service {one.service} of {one.transport}"


def _switch(change: SwitchDifference) -> Iterator[str]:
    for port in change.close:
        yield f"! {port}: {'taken out of all VLANs' if port in change.access else CARRIES_ALL_VLANS} first"
    yield from (f"- {_port(change, port)}: VLAN {vlans}" for port, vlans in change.remove.items())
    if change.delete:
        yield f"- VLAN {change.delete}"
    if change.create:
        yield f"+ VLAN {change.create}"
    yield from (f"+ {_port(change, port)}: VLAN {vlans}" for port, vlans in change.add.items())


def _port(change: SwitchDifference, port: PortName) -> str:
    return f"{port} (untagged)" if port in change.access else port


def _host(change: HostDifference) -> Iterator[str]:
    yield from (f"- cluster {key}" for key in change.remove)
    for one in change.add:
        how = " (untagged)" if one.untagged else ""
        yield f"+ {one.port}{how}: VLAN {one.vlan} for cluster {one.key}"
        yield from (
            f"+ guest {guest.name} ({guest.image}, {guest.memory_mb} MiB, {guest.cpus} cpus)" for guest in one.guests
        )


def _since(found: ElementDifference) -> str:
    verb = "read" if found.kind in DEVICE_KINDS else "last heard of"
    return f"{verb} {format_time(found.read_at)}" if found.read_at else f"never {verb}"


def format_yaml(document: Document, **first: object) -> str:
    """Return a document as YAML, with keys of its file first; what is as by default is left out."""
    plain: Mapping[str, Any] = first | document.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True))


def unified_yaml_diff(former: Document | None, wanted: Document, name: str) -> str:
    """Return a unified difference of both as YAML; empty when they are the same."""
    before = "" if former is None else format_yaml(former)
    lines = unified_diff(
        before.splitlines(), format_yaml(wanted).splitlines(), f"{name} now", f"{name} then", lineterm=""
    )
    return "\n".join(lines)
