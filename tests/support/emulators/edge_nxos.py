"""Cisco NX-OS as an EVPN edge.

A service consists of a VLAN's VNI (``vn-segment``), a member of the interface nve1, and a MAC-VRF below ``evpn``.
"""

from collections.abc import Callable
from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.cisco_nxos import CiscoNxos
from support.emulators.edge_device import EdgePort, EmulatedEdge, after, put
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort


class EdgeNxos(CiscoNxos, EmulatedEdge):
    """A leaf with nve1 and BGP. While a MAC-VRF has a route distinguisher, the leaf refuses another distinguisher."""

    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EdgePort(mode="routed")
    modes: ClassVar = {
        **CiscoNxos.modes,
        "nve": "(config-if-nve)",
        "member": "(config-if-nve-vni)",
        "evpn": "(config-evpn)",
        "instance": "(config-evpn-evi)",
    }
    falls_through: ClassVar = {
        **CiscoNxos.falls_through,
        "nve": "config",
        "member": "config",
        "evpn": "config",
        "instance": "config",
    }

    @accepts("vlan", "vn-segment <number>")
    def segment(self, session: EmulatedSession, number: str) -> None:
        (vlan,) = session.context
        taken = [key for key, lines in self.services.items() if key.startswith("segment") and lines == [number]]
        if taken and taken != [f"segment {vlan}"]:
            raise CommandRejected(
                f"ERROR: VN-Segment {number} is already mapped to VLAN {taken[0].removeprefix('segment ')}"
            )
        self.services[f"segment {vlan}"] = [number]

    @accepts("config", "no vlan <list>")
    def no_vlan(self, session: EmulatedSession, text: str) -> None:
        super().no_vlan(session, text)
        for number in self.numbers(text):
            self.services.pop(f"segment {number}", None)

    @accepts("config", "interface nve1")
    def nve(self, session: EmulatedSession) -> None:
        session.enter("nve")

    @accepts("nve", "member vni <number>")
    def member(self, session: EmulatedSession, number: str) -> None:
        self.services.setdefault(f"member {number}", [])
        session.enter("member", number)

    @accepts("nve", "no member vni <number>")
    def no_member(self, session: EmulatedSession, number: str) -> None:
        self.services.pop(f"member {number}", None)

    @accepts("member", "ingress-replication protocol bgp")
    def replicate(self, session: EmulatedSession) -> None:
        put(self.services[f"member {session.context[0]}"], "ingress-replication protocol bgp")

    @accepts("config", "evpn")
    def evpn(self, session: EmulatedSession) -> None:
        session.enter("evpn")

    @accepts("evpn", "vni <number> l2")
    def instance(self, session: EmulatedSession, number: str) -> None:
        self.services.setdefault(f"evpn {number}", [])
        session.enter("instance", number)

    @accepts("evpn", "no vni <number> l2")
    def no_instance(self, session: EmulatedSession, number: str) -> None:
        self.services.pop(f"evpn {number}", None)

    @accepts("instance", "rd <rd>")
    def rd(self, session: EmulatedSession, rd: str) -> None:
        lines = self.services[f"evpn {session.context[0]}"]
        if after(lines, "rd ") not in (None, rd):
            raise CommandRejected("ERROR: RD override is not permitted")
        put(lines, f"rd {rd}")

    @accepts("instance", "route-target import <target>")
    def imported(self, session: EmulatedSession, target: str) -> None:
        put(self.services[f"evpn {session.context[0]}"], f"route-target import {target}")

    @accepts("instance", "route-target export <target>")
    def exported(self, session: EmulatedSession, target: str) -> None:
        put(self.services[f"evpn {session.context[0]}"], f"route-target export {target}")

    @accepts("member", "exit")
    def exit_member(self, session: EmulatedSession) -> None:
        session.enter("nve")

    @accepts("instance", "exit")
    def exit_instance(self, session: EmulatedSession) -> None:
        session.enter("evpn")

    @accepts("nve", "exit")
    @accepts("evpn", "exit")
    def exit_block(self, session: EmulatedSession) -> None:
        session.enter("config")

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        session.print_pages(
            f"\n!Command: show running-config\n!Time: Fri Nov 20 10:00:00 2026\n\n{self.running_config()}"
        )

    def running_config(self) -> str:
        rows = [f"hostname {self.hostname}", "feature nv overlay", "nv overlay evpn", ""]
        rows += [f"vlan {vlan_lists.format_list(self.running.vlans)}"]
        for number, name in sorted(self.running.vlans.items()):
            own = [] if number == 1 or name == f"VLAN{number:04}" else [f"  name {name}"]
            own += [f"  vn-segment {vni}" for vni in self.services.get(f"segment {number}", [])]
            rows += [f"vlan {number}", *own] if own else []
        rows += [*self.interface_lines(), "", "interface nve1", "  no shutdown", "  host-reachability protocol bgp"]
        for vni, lines in self._sorted("member"):
            rows += [f"  member vni {vni}", *(f"    {line}" for line in lines)]
        rows += ["", "router bgp 65001", "  router-id 10.0.0.1"]
        instances = self._sorted("evpn")
        rows += ["evpn"] if instances else []
        for vni, lines in instances:
            rows += [f"  vni {vni} l2", *(f"    {line}" for line in lines)]
        return "\n".join(rows)

    def joined(self) -> dict[str, set[tuple[str, int]]]:
        return {str(vni): places for vni, places in self.reached().items()}

    def reached(self) -> dict[int, set[tuple[str, int]]]:
        carrying = {name: port.allowed or set() for name, port in self.running.ports.items() if port.mode == "trunk"}
        found: dict[int, set[tuple[str, int]]] = {}
        for vlan, (vni,) in self._sorted("segment"):
            whole = self.services.get(f"member {vni}") and after(self.services.get(f"evpn {vni}", []), "rd ")
            found[int(vni)] = {(name, vlan) for name, numbers in carrying.items() if vlan in numbers and whole}
        return found

    def _sorted(self, kind: str) -> list[tuple[int, list[str]]]:
        split = [(key.split(), lines) for key, lines in self.services.items()]
        return sorted((int(number), lines) for (what, number), lines in split if what == kind)
