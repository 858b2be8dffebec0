"""Text output of differences: changes of elements (``+ p1: VLAN 100``), and unified diffs of documents."""

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any

import click
import yaml

from virtcloud.cli.printing import format_time
from virtcloud.model.changes import ClusterDryRun, ElementDifference, ElementReconciliation, HostDifference
from virtcloud.model.document import Document
from virtcloud.model.edge import DEVICE_KINDS, NO_SERVICE, Circuit, CircuitRemnant, DeviceDifference, EdgeDifference
from virtcloud.model.message_text import count_of
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import PortName
from virtcloud.model.views import ClusterTransport

SERVICE_ID_NAMES = {TransportKind.QINQ: "S-tag", TransportKind.VPLS: "VPN id", TransportKind.EVPN: "VNI"}
CARRIES_ALL_VLANS = "carries every VLAN; its VLAN list is emptied"


def print_cluster_dry_run(dry_run: ClusterDryRun) -> None:
    """Print the changes that the creation of a cluster would cause."""
    vlans = ", ".join(f"VLAN {vlan} at {site}" for site, vlan in sorted(dry_run.vlans.items())) or "no VLAN"
    verb = "would be created with" if dry_run.created else "exists already, with"
    over = f", joined by {format_transport_service(dry_run.joined)}" if dry_run.joined else ""
    click.echo(f"cluster {dry_run.key} {verb} {vlans}{over}; nothing was changed")
    for difference in dry_run.elements:
        print_difference(difference)


def format_transport_service(transport: ClusterTransport) -> str:
    """Format the transport that joins a cluster's sites, and the cluster's service ID, such as ``evpn: VNI 10100``."""
    return (
        f"{transport.transport}: {SERVICE_ID_NAMES[transport.kind]} {transport.service}"
        if transport.service
        else transport.transport
    )


def print_difference(difference: ElementDifference) -> None:
    """Print the changes that a reconciliation would make on an element."""
    click.echo(f"{difference.kind} {difference.element} at {difference.site}, {_format_reading(difference)}:")
    for line in _format_lines(difference) or ["nothing to change"]:
        click.echo(f"  {line}")
    if difference.lines:
        click.echo("commands that would be sent:")
        click.echo("\n".join(f"  {line}" for line in difference.lines))


def print_reconciliation(reconciliation: ElementReconciliation) -> None:
    """Print the changes that a reconciliation made on the device, or why there are no changes."""
    name = f"{reconciliation.element.kind} {reconciliation.element.name}"
    if reconciliation.mended is None:
        outcome = "was read" if reconciliation.element.reachable else "could not be read"
        click.echo(f"{name} {outcome}; nothing was changed")
        return
    click.echo(f"{name} was read and changed:")
    for line in format_change(reconciliation.mended):
        click.echo(f"  {line}")


def format_change(change: DeviceDifference | HostDifference) -> list[str]:
    """Return the lines of a change: VLANs of ports, circuits of an edge, or clusters of a host."""
    if isinstance(change, HostDifference):
        return list(_format_host(change))
    return list(_format_edge(change) if isinstance(change, EdgeDifference) else _format_switch(change))


def _format_lines(difference: ElementDifference) -> list[str]:
    change = difference.switch or difference.edge or difference.host
    return format_change(change) if change else []


def _format_edge(change: EdgeDifference) -> Iterator[str]:
    yield from (f"! {_format_circuit(circuit)}: remnant" for circuit in change.clear)
    yield from (f"- {_format_circuit(circuit)}" for circuit in change.remove)
    yield from (f"+ {_format_circuit(circuit)}" for circuit in change.add)


def _format_circuit(circuit: Circuit | CircuitRemnant) -> str:
    port = "" if circuit.port is None else f"{circuit.port}: "
    if circuit.service == NO_SERVICE:
        return f"{port}VLAN {circuit.vlan} in no service"
    vlan = "" if circuit.vlan is None else f"VLAN {circuit.vlan} in "
    return f"{port}{vlan}service {circuit.service} of {circuit.transport}"


def _format_switch(change: SwitchDifference) -> Iterator[str]:
    for port in change.close:
        yield f"! {port}: {'removed from all VLANs' if port in change.access else CARRIES_ALL_VLANS} first"
    yield from (f"- {_format_port(change, port)}: VLAN {vlans}" for port, vlans in change.remove.items())
    if change.delete:
        yield f"- VLAN {change.delete}"
    if change.create:
        yield f"+ VLAN {change.create}"
    yield from (f"+ {_format_port(change, port)}: VLAN {vlans}" for port, vlans in change.add.items())


def _format_port(change: SwitchDifference, port: PortName) -> str:
    return f"{port} (untagged)" if port in change.access else port


def _format_host(change: HostDifference) -> Iterator[str]:
    yield from (f"- cluster {key}" for key in change.remove)
    for placement in change.add:
        tagging = " (untagged)" if placement.untagged else ""
        yield f"+ {placement.port}{tagging}: VLAN {placement.vlan} for cluster {placement.key}"
        yield from (
            f"+ guest {guest.name} ({guest.image}, {guest.memory_mb} MiB, {count_of(guest.cpus, 'CPU')})"
            for guest in placement.guests
        )


def _format_reading(difference: ElementDifference) -> str:
    verb = "read" if difference.kind in DEVICE_KINDS else "reported"
    return f"{verb} {format_time(difference.read_at)}" if difference.read_at else f"never {verb}"


def format_yaml(document: Document, **first: object) -> str:
    """Format a document as YAML, without keys that have their default value. The keys of ``first`` come first."""
    plain: Mapping[str, Any] = first | document.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True))


def unified_yaml_diff(former: Document | None, wanted: Document, name: str) -> str:
    """Format two documents as YAML and return the unified diff of the texts; ``""`` if the documents are equal."""
    before = "" if former is None else format_yaml(former)
    lines = unified_diff(
        before.splitlines(), format_yaml(wanted).splitlines(), f"{name} (current)", f"{name} (new)", lineterm=""
    )
    return "\n".join(lines)
