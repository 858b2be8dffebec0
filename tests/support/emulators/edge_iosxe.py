"""Cisco IOS-XE as a provider edge with VFIs, bridge domains and service instances."""

import re
from typing import ClassVar

from support.emulators.cisco_ios import CiscoIos
from support.emulators.edge_device import EmulatedEdge, after, put
from support.emulators.session import CommandRejected, EmulatedSession, accepts

MOST = 4000


class EdgeIosXe(EmulatedEdge):
    """An ASR 920.

    Service instances have numbers up to 4000, bridge domains up to 4094. Two service instances of one port must not
    have the same tags.
    """

    platform = "cisco_iosxe"
    port_names = (*(f"GigabitEthernet0/0/{n}" for n in range(4)), "TenGigabitEthernet0/0/12")
    denied = "% Bad secrets\n"
    unauthorized = CiscoIos.unauthorized
    saving, saved, saved_variants = CiscoIos.saving, CiscoIos.saved, CiscoIos.saved_variants
    save_failures: ClassVar = CiscoIos.save_failures
    save_questions: ClassVar = CiscoIos.save_questions
    modes: ClassVar = {
        "config": "(config)",
        "interface": "(config-if)",
        "instance": "(config-if-srv)",
        "vfi": "(config-vfi)",
    }
    falls_through: ClassVar = {"interface": "config", "instance": "config", "vfi": "config"}

    @accepts("config", "l2 vfi <name> manual")
    def vfi(self, session: EmulatedSession, name: str) -> None:
        self.services.setdefault(name, [])
        session.enter("vfi", name)

    @accepts("config", "no l2 vfi <name> manual", "no l2 vfi <name>")
    def no_vfi(self, session: EmulatedSession, name: str) -> None:
        if self.services.pop(name, None) is None:
            raise CommandRejected(f"% VFI {name} does not exist")

    @accepts("vfi", "vpn id <number>")
    def vpn_id(self, session: EmulatedSession, number: str) -> None:
        (name,) = session.context
        other = next((vfi for vfi, lines in self.services.items() if f"vpn id {number}" in lines and vfi != name), None)
        if other:
            raise CommandRejected(f"% VPN ID {number} is already used by VFI {other}")
        put(self.services[name], f"vpn id {number}", "vpn id")

    @accepts("vfi", "bridge-domain <number>")
    def vfi_domain(self, session: EmulatedSession, number: str) -> None:
        put(self.services[session.context[0]], f"bridge-domain {self._domain(number)}", "bridge-domain")

    @accepts("vfi", "neighbor <address> encapsulation mpls")
    def neighbour(self, session: EmulatedSession, address: str) -> None:
        if after(self.services[session.context[0]], "vpn id ") is None:
            raise CommandRejected("% VPN ID must be configured first")
        put(self.services[session.context[0]], f"neighbor {address} encapsulation mpls")

    @accepts("interface", "service instance <number> ethernet")
    def instance(self, session: EmulatedSession, number: str) -> None:
        if not 1 <= int(number) <= MOST:
            raise CommandRejected("")
        (port,) = session.context
        self.units(port).setdefault(int(number), [])
        session.enter("instance", port, number)

    @accepts("interface", "no service instance <number> ethernet")
    def no_instance(self, session: EmulatedSession, number: str) -> None:
        self.units(session.context[0]).pop(int(number), None)

    @accepts("instance", "description <text...>")
    def describe(self, session: EmulatedSession, text: str) -> None:
        put(self._unit(session), f"description {text}", "description")

    @accepts("instance", "encapsulation dot1q <tags>")
    def encapsulation(self, session: EmulatedSession, tags: str) -> None:
        port, number = session.context
        others = [lines for instance, lines in self.units(port).items() if instance != int(number)]
        if any(f"encapsulation dot1q {tags}" in lines for lines in others):
            raise CommandRejected(f"%Error: Encapsulation overlaps with another service instance on {port}")
        put(self._unit(session), f"encapsulation dot1q {tags}", "encapsulation")

    @accepts("instance", "rewrite ingress tag pop 1 symmetric")
    def rewrite(self, session: EmulatedSession) -> None:
        self._needs_encapsulation(session)
        put(self._unit(session), "rewrite ingress tag pop 1 symmetric")

    @accepts("instance", "bridge-domain <number>")
    def instance_domain(self, session: EmulatedSession, number: str) -> None:
        self._needs_encapsulation(session)
        put(self._unit(session), f"bridge-domain {self._domain(number)}", "bridge-domain")

    @accepts("instance", "xconnect <address> <number> encapsulation mpls")
    def xconnect(self, session: EmulatedSession, address: str, number: str) -> None:
        put(self._unit(session), f"xconnect {address} {number} encapsulation mpls")

    @accepts("instance", "exit")
    def exit_instance(self, session: EmulatedSession) -> None:
        session.enter("interface", session.context[0])

    @accepts("vfi", "exit")
    def exit_vfi(self, session: EmulatedSession) -> None:
        session.enter("config")

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        session.print_pages(self.running_config())

    @accepts("exec", "show running-config | section <pattern...>")
    def show_section(self, session: EmulatedSession, pattern: str) -> None:
        blocks = re.split(r"\n(?=\S)", self.running_config())
        found = [block for block in blocks if re.search(pattern, block, re.MULTILINE)]
        session.print_pages(
            "\n".join("\n".join(line for line in block.splitlines() if line.strip() != "!") for block in found)
        )

    def running_config(self) -> str:
        rows = [f"hostname {self.hostname}", "!"]
        for name, lines in self.services.items():
            rows += [f"l2 vfi {name} manual ", *(f" {line}" for line in lines), "!"]
        for name in self.running.ports:
            rows += [f"interface {name}", " no ip address", " negotiation auto"]
            rows += [" shutdown"] if self.running.ports[name].down else []
            for number, lines in sorted(self.units(name).items()):
                rows += [f" service instance {number} ethernet", *(f"  {line}" for line in lines), " !"]
            rows.append("!")
        return "\n".join([*rows, "end"])

    def joined(self) -> dict[str, set[tuple[str, int]]]:
        found: dict[str, set[tuple[str, int]]] = {}
        for port in self.port_names[:-1]:
            for domain, tag in self._tagged(port):
                found.setdefault(domain, set()).add((port, tag))
        return found

    def reached(self) -> dict[int, set[tuple[str, int]]]:
        joined = self.joined()
        vfis = {(after(lines, "bridge-domain "), after(lines, "vpn id ")) for lines in self.services.values()}
        found = {int(number or 0): joined.get(domain or "", set()) for domain, number in vfis}
        return found | {tag: joined.get(domain, set()) for domain, tag in self._tagged(self.core_port)}

    def _tagged(self, port: str) -> list[tuple[str, int]]:
        pairs = [
            (after(lines, "bridge-domain "), after(lines, "encapsulation dot1q "))
            for lines in self.units(port).values()
        ]
        return [(domain, int(tag)) for domain, tag in pairs if domain and tag and tag.isdigit()]

    def _domain(self, number: str) -> int:
        if not number.isdigit() or not 1 <= int(number) <= 4094:
            raise CommandRejected("")
        return int(number)

    def _unit(self, session: EmulatedSession) -> list[str]:
        return self.units(session.context[0])[int(session.context[1])]

    def _needs_encapsulation(self, session: EmulatedSession) -> None:
        if after(self._unit(session), "encapsulation ") is None:
            raise CommandRejected("% Encapsulation must be configured first")
