"""Arista EOS as an EVPN edge: VNIs on Vxlan1, MAC-VRFs in BGP."""

from collections.abc import Callable
from typing import ClassVar

from support.emulators.arista_eos import AristaEos
from support.emulators.edge_device import EdgePort, EmulatedEdge, after, put
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort


class EdgeEos(AristaEos, EmulatedEdge):
    """A leaf with Vxlan1 and BGP. The command that removes a VNI from a VLAN must contain the VNI."""

    new_port: ClassVar[Callable[[], EmulatedPort]] = EdgePort
    modes: ClassVar = {
        **AristaEos.modes,
        "vxlan": "(config-if-Vx1)",
        "bgp": "(config-router-bgp)",
        "macvrf": "(config-macvrf-{context})",
    }
    falls_through: ClassVar = {**AristaEos.falls_through, "vxlan": "config", "bgp": "config", "macvrf": "bgp"}
    process = "65001"

    @accepts("config", "interface vxlan1")
    def vxlan(self, session: EmulatedSession) -> None:
        session.enter("vxlan")

    @accepts("vxlan", "vxlan vlan <vlan> vni <vni>")
    def map_vni(self, session: EmulatedSession, vlan: str, vni: str) -> None:
        taken = [key for key, lines in self.services.items() if lines == [vni] and key != f"vni {vlan}"]
        if taken:
            raise CommandRejected(f"% VNI {vni} is already mapped to VLAN {taken[0].removeprefix('vni ')}")
        self.services[f"vni {vlan}"] = [vni]

    @accepts("vxlan", "no vxlan vlan <vlan> vni <vni>")
    def unmap_vni(self, session: EmulatedSession, vlan: str, vni: str) -> None:
        if self.services.get(f"vni {vlan}") == [vni]:
            del self.services[f"vni {vlan}"]

    @accepts("config", "router bgp <number>")
    def bgp(self, session: EmulatedSession, number: str) -> None:
        if number != self.process:
            raise CommandRejected(f"% BGP is already running with AS number {self.process}")
        session.enter("bgp")

    @accepts("bgp", "vlan <number>")
    def mac_vrf(self, session: EmulatedSession, number: str) -> None:
        self.services.setdefault(f"bgp {number}", [])
        session.enter("macvrf", number)

    @accepts("bgp", "no vlan <number>")
    def no_mac_vrf(self, session: EmulatedSession, number: str) -> None:
        self.services.pop(f"bgp {number}", None)

    @accepts("macvrf", "rd <rd>")
    def rd(self, session: EmulatedSession, rd: str) -> None:
        put(self.services[f"bgp {session.context[0]}"], f"rd {rd}", "rd ")

    @accepts("macvrf", "route-target both <target>")
    def target(self, session: EmulatedSession, target: str) -> None:
        put(self.services[f"bgp {session.context[0]}"], f"route-target both {target}")

    @accepts("macvrf", "redistribute learned")
    def learned(self, session: EmulatedSession) -> None:
        put(self.services[f"bgp {session.context[0]}"], "redistribute learned")

    @accepts("macvrf", "exit")
    def exit_mac_vrf(self, session: EmulatedSession) -> None:
        session.enter("bgp")

    @accepts("vxlan", "exit")
    @accepts("bgp", "exit")
    def exit_block(self, session: EmulatedSession) -> None:
        session.enter("config")

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        session.print_pages(
            f"! Command: show running-config\n! device: {self.hostname} (EOS-4.30.1F)\n!\n{self.running_config()}"
        )

    def running_config(self) -> str:
        named = {n: name for n, name in sorted(self.running.vlans.items()) if n > 1}
        rows = ["vlan internal order ascending range 1006 1199", "!", f"hostname {self.hostname}", "!"]
        for number, name in named.items():
            rows += [f"vlan {number}", *([] if name == f"VLAN{number:04}" else [f"   name {name}"]), "!"]
        rows += self.interface_lines("   ")
        rows += ["interface Vxlan1", "   vxlan source-interface Loopback0", "   vxlan udp-port 4789"]
        rows += [f"   vxlan vlan {vlan} vni {vni}" for vlan, (vni,) in self._sorted("vni")]
        rows += ["!", "ip routing", "!", f"router bgp {self.process}", "   router-id 10.0.0.1"]
        for vlan, lines in self._sorted("bgp"):
            rows += ["   !", f"   vlan {vlan}", *(f"      {line}" for line in lines)]
        return "\n".join([*rows, "   !", "   address-family evpn", "      neighbor SPINES activate", "!", "end"])

    def joined(self) -> dict[str, set[tuple[str, int]]]:
        return {str(vni): places for vni, places in self.reached().items()}

    def reached(self) -> dict[int, set[tuple[str, int]]]:
        carrying = {name: port.allowed or set() for name, port in self.running.ports.items() if port.mode == "trunk"}
        found: dict[int, set[tuple[str, int]]] = {}
        for vlan, (vni,) in self._sorted("vni"):
            advertised = after(self.services.get(f"bgp {vlan}", []), "rd ") and vlan in self.running.vlans
            places = {(name, vlan) for name, numbers in carrying.items() if vlan in numbers and advertised}
            found[int(vni)] = found.get(int(vni), set()) | places
        return found

    def _sorted(self, kind: str) -> list[tuple[int, list[str]]]:
        split = [(key.split(), lines) for key, lines in self.services.items()]
        return sorted((int(number), lines) for (what, number), lines in split if what == kind)
