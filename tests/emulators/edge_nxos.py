"""Cisco NX-OS as an EVPN edge: segments of VLANs, VNIs on nve1, MAC-VRFs under evpn."""

from collections.abc import Callable
from typing import ClassVar

from emulators import lists
from emulators.cisco_nxos import CiscoNxos
from emulators.edge import Edge, EdgePort, after, put
from emulators.grammar import says
from emulators.switch import Port, Rejected, Session


class EdgeNxos(CiscoNxos, Edge):
    """A leaf: nve1 and BGP are there; a route distinguisher is not changed in place."""

    new_port: ClassVar[Callable[[], Port]] = lambda: EdgePort(mode="routed")
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

    @says("vlan", "vn-segment <number>")
    def segment(self, session: Session, number: str) -> None:
        (vlan,) = session.about
        taken = [key for key, lines in self.services.items() if key.startswith("segment") and lines == [number]]
        if taken and taken != [f"segment {vlan}"]:
            raise Rejected(f"ERROR: VN-Segment {number} is already mapped to VLAN {taken[0].removeprefix('segment ')}")
        self.services[f"segment {vlan}"] = [number]

    @says("config", "no vlan <list>")
    def no_vlan(self, session: Session, text: str) -> None:
        super().no_vlan(session, text)
        for number in self.numbers(text):
            self.services.pop(f"segment {number}", None)

    @says("config", "interface nve1")
    def nve(self, session: Session) -> None:
        session.enter("nve")

    @says("nve", "member vni <number>")
    def member(self, session: Session, number: str) -> None:
        self.services.setdefault(f"member {number}", [])
        session.enter("member", number)

    @says("nve", "no member vni <number>")
    def no_member(self, session: Session, number: str) -> None:
        self.services.pop(f"member {number}", None)

    @says("member", "ingress-replication protocol bgp")
    def replicate(self, session: Session) -> None:
        put(self.services[f"member {session.about[0]}"], "ingress-replication protocol bgp")

    @says("config", "evpn")
    def evpn(self, session: Session) -> None:
        session.enter("evpn")

    @says("evpn", "vni <number> l2")
    def instance(self, session: Session, number: str) -> None:
        self.services.setdefault(f"evpn {number}", [])
        session.enter("instance", number)

    @says("evpn", "no vni <number> l2")
    def no_instance(self, session: Session, number: str) -> None:
        self.services.pop(f"evpn {number}", None)

    @says("instance", "rd <rd>")
    def rd(self, session: Session, rd: str) -> None:
        lines = self.services[f"evpn {session.about[0]}"]
        if after(lines, "rd ") not in (None, rd):
            raise Rejected("ERROR: RD override is not permitted")
        put(lines, f"rd {rd}")

    @says("instance", "route-target import <target>")
    def imported(self, session: Session, target: str) -> None:
        put(self.services[f"evpn {session.about[0]}"], f"route-target import {target}")

    @says("instance", "route-target export <target>")
    def exported(self, session: Session, target: str) -> None:
        put(self.services[f"evpn {session.about[0]}"], f"route-target export {target}")

    @says("member", "exit")
    def exit_member(self, session: Session) -> None:
        session.enter("nve")

    @says("instance", "exit")
    def exit_instance(self, session: Session) -> None:
        session.enter("evpn")

    @says("nve", "exit")
    @says("evpn", "exit")
    def exit_block(self, session: Session) -> None:
        session.enter("config")

    @says("exec", "show running-config")
    def show_running(self, session: Session) -> None:
        session.say(f"\n!Command: show running-config\n!Time: Fri Nov 20 10:00:00 2026\n\n{self.running_config()}")

    def running_config(self) -> str:
        rows = [f"hostname {self.hostname}", "feature nv overlay", "nv overlay evpn", ""]
        rows += [f"vlan {lists.written(self.running.vlans)}"]
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
        split = [(*key.split(), lines) for key, lines in self.services.items()]
        return sorted((int(number), lines) for what, number, lines in split if what == kind)
