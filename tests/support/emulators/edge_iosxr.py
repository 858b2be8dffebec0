"""Cisco IOS-XR as a VPLS edge: subinterfaces, bridge domains, VFIs, commits."""

import re
from collections.abc import Iterator
from typing import ClassVar

from support.emulators.edge_device import CandidateEdge, EdgePort, EdgeState, after, put
from support.emulators.session import CommandRejected, EmulatedSession, accepts

DOMAIN = "l2vpn bridge group <group> bridge-domain <domain>"


class EdgeIosXr(CandidateEdge):
    """An ASR 9000. Only a commit activates lines. A bridge group can be removed with all its content."""

    platform = "cisco_iosxr"
    port_names = (*(f"GigabitEthernet0/0/0/{n}" for n in range(4)), "TenGigE0/0/1/0")
    modes: ClassVar = {"config": "(config)", "sub": "(config-subif)", "domain": "(config-l2vpn-bg-bd)"}
    falls_through: ClassVar = {"sub": "config", "domain": "config"}
    failure_message = (
        "% Failed to commit one or more configuration items during a pseudo-atomic operation. All changes made have "
        "been reverted. Please issue 'show configuration failed [inheritance]' from this session to view the errors\n"
        "{fault}"
    )

    def prompt(self, session: EmulatedSession) -> str:
        return f"RP/0/RP0/CPU0:{self.hostname}{self.modes.get(session.mode, '')}#"

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f"{' ' * 30}^\n% Invalid input detected at '^' marker."

    @accepts("exec", "configure terminal")
    def configure_terminal(self, session: EmulatedSession) -> None:
        self.candidate(session)
        session.enter("config")

    @accepts("config", "commit")
    def commit(self, session: EmulatedSession) -> None:
        self.activate(session)
        session.enter("config")

    @accepts("config", "end")
    def end(self, session: EmulatedSession) -> None:
        if hasattr(session, "candidate") and session.candidate != self.running:
            asked = "Uncommitted changes found, commit them before exiting(yes/no/cancel)? [cancel]: "
            if session.ask(asked).strip() != "no":
                return
        self.discard_candidate(session)
        session.enter("exec")

    @accepts("config", "abort")
    def abort(self, session: EmulatedSession) -> None:
        self.discard_candidate(session)
        session.enter("exec")

    @accepts("config", "root")
    def root(self, session: EmulatedSession) -> None:
        session.enter("config")

    @accepts("config", "interface <name> l2transport")
    def subinterface(self, session: EmulatedSession, name: str) -> None:
        port, number = self._split(name)
        self._units(session, port).setdefault(number, ["l2transport"])
        session.enter("sub", port, str(number))

    @accepts("config", "no interface <name>")
    def no_subinterface(self, session: EmulatedSession, name: str) -> None:
        port, number = self._split(name)
        self._units(session, port).pop(number, None)

    @accepts("sub", "description <text...>")
    def describe(self, session: EmulatedSession, text: str) -> None:
        put(self._unit(session), f"description {text}", "description")

    @accepts("sub", "encapsulation dot1q <tags>")
    def encapsulation(self, session: EmulatedSession, tags: str) -> None:
        put(self._unit(session), f"encapsulation dot1q {tags}", "encapsulation")

    @accepts("sub", "rewrite ingress tag pop 1 symmetric")
    def rewrite(self, session: EmulatedSession) -> None:
        put(self._unit(session), "rewrite ingress tag pop 1 symmetric")

    @accepts("sub", "ethernet egress-filter strict")
    def egress_filter(self, session: EmulatedSession) -> None:
        put(self._unit(session), "ethernet egress-filter strict")

    @accepts("config", f"{DOMAIN} vfi <vfi> vpn-id <number>")
    def vpn_id(self, session: EmulatedSession, group: str, domain: str, vfi: str, number: str) -> None:
        put(self._domain(session, group, domain, vfi), f"vpn-id {number}", "vpn-id")

    @accepts("config", f"{DOMAIN} vfi <vfi> neighbor <words...>")
    def neighbour(self, session: EmulatedSession, group: str, domain: str, *words: str) -> None:
        vfi, rest = words
        if not re.fullmatch(r"[\d.]+ pw-id \d+", rest):
            raise CommandRejected("")
        put(self._domain(session, group, domain, vfi), f"neighbor {rest}")
        session.enter("domain")

    @accepts("config", f"{DOMAIN} interface <name>")
    def member(self, session: EmulatedSession, group: str, domain: str, name: str) -> None:
        put(self._domain(session, group, domain), "interface {}.{}".format(*self._split(name)))
        session.enter("domain")

    @accepts("config", f"no {DOMAIN} interface <name>")
    def no_member(self, session: EmulatedSession, group: str, domain: str, name: str) -> None:
        line = "interface {}.{}".format(*self._split(name))
        lines = self.candidate(session).services.get(f"{group}/{domain}", [])
        if line in lines:
            lines.remove(line)

    @accepts("config", "no l2vpn bridge group <group>")
    def no_group(self, session: EmulatedSession, group: str) -> None:
        services = self.candidate(session).services
        for key in [key for key in services if key.startswith(f"{group}/")]:
            del services[key]

    @accepts("exec", "show running-config interface")
    def show_interfaces(self, session: EmulatedSession) -> None:
        session.print_pages(f"Sat Nov 21 01:00:00.123 UTC\n{self._interfaces()}")

    @accepts("exec", "show running-config l2vpn")
    def show_l2vpn(self, session: EmulatedSession) -> None:
        session.print_pages(f"Sat Nov 21 01:00:00.123 UTC\n{self._l2vpn() or '% No such configuration item(s)'}\n")

    def running_config(self) -> str:
        return f"hostname {self.hostname}\n{self._interfaces()}\n{self._l2vpn()}\nend"

    def find_faults(self, state: EdgeState) -> Iterator[str]:
        members = [line for lines in state.services.values() for line in lines if line.startswith("interface ")]
        yield from (f"!!% {line} is in two bridge domains" for line in members if members.count(line) > 1)
        for name, port in state.ports.items():
            tags = [after(lines, "encapsulation dot1q ") for lines in port.units.values()]  # type: ignore[attr-defined]
            yield from (f"!!% {name}: encapsulation {tag} is used twice" for tag in tags if tag and tags.count(tag) > 1)

    def joined(self) -> dict[str, set[tuple[str, int]]]:
        found: dict[str, set[tuple[str, int]]] = {}
        for key, lines in self.services.items():
            for line in lines:
                port, _, number = line.removeprefix("interface ").rpartition(".")
                unit = self.units(port).get(int(number)) if line.startswith("interface ") else None
                if unit and (tag := after(unit, "encapsulation dot1q ")):
                    found.setdefault(key, set()).add((port, int(tag)))
        return found

    def reached(self) -> dict[int, set[tuple[str, int]]]:
        joined = self.joined()
        return {int(after(lines, "vpn-id ") or 0): joined.get(key, set()) for key, lines in self.services.items()}

    def _interfaces(self) -> str:
        rows = list[str]()
        for name in self.running.ports:
            off = [" shutdown"] if self.running.ports[name].down else []
            rows += [f"interface {name}", " mtu 9216", *off, "!"]
            for number, lines in sorted(self.units(name).items()):
                layer2 = " l2transport" if "l2transport" in lines else ""
                own = [f" {line}" for line in lines if line != "l2transport"]
                rows += [f"interface {name}.{number}{layer2}", *own, "!"]
        return "\n".join(rows)

    def _l2vpn(self) -> str:
        rows = list[str]()
        for key, lines in sorted(self.services.items()):
            group, _, domain = key.partition("/")
            rows += [f" bridge group {group}", f"  bridge-domain {domain}"]
            for line in (line for line in lines if line.startswith(("interface ", "routed "))):
                rows += [f"   {line}", "   !"]
            vfi = after(lines, "vfi ")
            own = [line for line in lines if line.startswith(("vpn-id ", "neighbor "))]
            rows += [f"   vfi {vfi}", *(f"    {line}" for line in own), "    !", "   !"] if vfi else []
            rows += ["  !", " !"]
        return "\n".join(["l2vpn", *rows, "!"]) if rows else ""

    def _split(self, name: str) -> tuple[str, int]:
        port, _, number = name.rpartition(".")
        if not number.isdigit():
            raise CommandRejected("")
        return self.port(port), int(number)

    def _units(self, session: EmulatedSession, port: str) -> dict[int, list[str]]:
        found: EdgePort = self.candidate(session).ports[port]  # type: ignore[assignment]
        return found.units

    def _unit(self, session: EmulatedSession) -> list[str]:
        port, number = session.context
        return self._units(session, port)[int(number)]

    def _domain(self, session: EmulatedSession, group: str, domain: str, vfi: str = "") -> list[str]:
        lines = self.candidate(session).services.setdefault(f"{group}/{domain}", [])
        if vfi:
            put(lines, f"vfi {vfi}", "vfi ")
        return lines
