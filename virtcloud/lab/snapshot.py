"""Snapshots of the lab: the states of switches, edges, cores, hosts and guests, read without SBF."""

import csv
import json
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from virtcloud.lab import openvswitch
from virtcloud.lab.lab import Lab
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

INTERFACES = """
cd /sys/class/net
for name in *; do
  [ -d "$name" ] && echo "$name"  # the folder also contains a file: bonding_masters
done
true"""
RUNNING_GUESTS = """
for file in /run/libvirt/lxc/vc-*.pid /run/libvirt/qemu/vc-*.pid; do
  pid=
  [ -e "$file" ] && read -r pid <"$file"  # sets pid, then fails: the file has no newline at its end
  [ -n "$pid" ] && [ -d "/proc/$pid" ] && echo "$file"
done
true"""
"""A shell script that prints the path of libvirt's PID file of each running guest."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The VLANs of each port of switches and cores, and the interfaces and guests of each host.

    An edge's entry contains its interfaces, its bridge's VLANs and learnt MAC addresses, and its bgpd's EVPN routes.
    """

    switches: dict[str, dict[str, str]]
    hosts: dict[str, tuple[str, ...]]
    guests: dict[str, tuple[str, ...]]
    cores: dict[str, dict[str, str]]
    edges: dict[str, tuple[str, ...]]

    def describe_changes(self, other: "Snapshot") -> str:
        """Return the changes from this snapshot to ``other``. The result is empty if there are no changes."""
        return "; ".join(
            f"{name}: {before.get(name)} became {after.get(name)}"
            for field in fields(self)
            for before, after in [(getattr(self, field.name), getattr(other, field.name))]
            for name in sorted(before | after)
            if before.get(name) != after.get(name)
        )


def take_snapshot(lab: Lab, topology: Topology) -> Snapshot:
    """Read every switch, core, host and edge of the lab once."""
    hosts = {host.name: read_host(lab, host.name) for site in topology.sites for host in site.hosts}
    return Snapshot(
        switches={name: read_switch_vlans(lab, name) for name in switch_names(topology)},
        hosts={name: interfaces for name, (interfaces, _) in hosts.items()},
        guests={name: guests for name, (_, guests) in hosts.items()},
        cores={transport.name: read_switch_vlans(lab, transport.name) for transport in topology.transports},
        edges={edge.name: read_edge(lab, edge.name) for site in topology.sites for edge in site.edges},
    )


def switch_names(topology: Topology) -> list[Name]:
    """Return the names of all switches."""
    return [switch.name for site in topology.sites for switch in site.switches]


def read_switch_vlans(lab: Lab, node: str) -> dict[str, str]:
    """Read the VLANs of each port of a switch, core or edge, as ranges. Ports without VLANs are omitted."""
    if node in openvswitch.ovs_switch_names(lab.file):
        return _open_vswitch_vlans(lab, node)
    ports = json.loads(run_checked(lab, node, "bridge", "-json", "vlan", "show"))
    return {port["ifname"]: str(_members(port["vlans"])) for port in ports if port["vlans"]}


def _open_vswitch_vlans(lab: Lab, node: str) -> dict[str, str]:
    options = "--format=csv", "--no-headings", "--data=bare", "--columns=name,tag,trunks"
    rows = csv.reader(run_checked(lab, node, "ovs-vsctl", *options, "list", "Port").splitlines())
    vlan_ids = {name: [int(word) for word in f"{tag} {trunks}".split()] for name, tag, trunks in rows}
    carried = {name: VlanSet(vlan for vlan in ids if vlan != openvswitch.UNUSED_VLAN) for name, ids in vlan_ids.items()}
    return {name: str(vlans) for name, vlans in carried.items() if vlans}


def _members(entries: list[dict[str, int]]) -> VlanSet:
    return VlanSet(
        number for entry in entries for number in range(entry["vlan"], entry.get("vlanEnd", entry["vlan"]) + 1)
    )


def read_host(lab: Lab, host: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a host's interfaces, and the names of its running guests.

    A shell script reads the names, because ``ip`` and ``virsh`` take three and ten times as long in User-mode Linux.
    """
    lines = run_checked(lab, host, "sh", "-c", INTERFACES + RUNNING_GUESTS).splitlines()
    interfaces = [line for line in lines if not line.startswith("/")]
    return tuple(sorted(interfaces)), tuple(sorted(Path(line).stem for line in lines if line.startswith("/")))


def read_interfaces(lab: Lab, host: str) -> tuple[str, ...]:
    """Read the names of a host's interfaces."""
    return tuple(sorted(run_checked(lab, host, "sh", "-c", INTERFACES).splitlines()))


def read_edge(lab: Lab, edge: str) -> tuple[str, ...]:
    """Read an edge's interfaces, its bridge's VLANs and learnt MAC addresses, and the EVPN routes of its bgpd."""
    vlans = [f"{port}: VLAN {vlan_ids}" for port, vlan_ids in read_switch_vlans(lab, edge).items()]
    learnt = [
        f"{entry['mac']} on {entry['ifname']}"
        for entry in read_forwarding(lab, edge)
        if entry.get("state") != "permanent"
    ]
    return (*read_interfaces(lab, edge), *sorted(vlans), *sorted(learnt), *read_evpn_routes(lab, edge))


def read_forwarding(lab: Lab, edge: str) -> list[dict[str, Any]]:
    """Read an edge's forwarding database in the format of ``bridge fdb``."""
    entries: list[dict[str, Any]] = json.loads(run_checked(lab, edge, "bridge", "-json", "fdb", "show"))
    return entries


def read_evpn_routes(lab: Lab, edge: str) -> tuple[str, ...]:
    """Read the EVPN routes of an edge's bgpd. The result is empty if the edge runs no bgpd."""
    if "bgpd" not in lab.state.metadata["nodes"][edge]:
        return ()
    output = run_checked(lab, edge, "vtysh", "-c", "show bgp l2vpn evpn json")
    return tuple(
        sorted(
            f"{distinguisher} {route}"
            for distinguisher, value in json.loads(output).items()
            for route in _prefixes(value)
        )
    )


def _prefixes(value: Any) -> list[str]:  # noqa: ANN401 - JSON; the document also contains counters
    return [key for key in value if key.startswith("[")] if isinstance(value, dict) else []


def read_guests(lab: Lab, host: str) -> tuple[str, ...]:
    """Read the names of a host's running guests from libvirt's files."""
    return read_host(lab, host)[1]


def run_checked(lab: Lab, node: str, *argv: str) -> str:
    """Run a command on a node and return its output. Raise CalledProcessError if the command fails."""
    completed = lab.run(node, argv)
    if completed.returncode:
        raise subprocess.CalledProcessError(completed.returncode, [node, *argv], completed.stdout, completed.stderr)
    return completed.stdout
