"""Force10 FTOS and Dell OS9: VLAN membership of ports is configured in the mode of a VLAN, not of a port.

Sources of the output:

- ``copy running-config startup-config`` with its question and "bytes successfully copied": the recorded session in
  OpenDRAC's Force10 tests and a command summary of OS9
- "Synchronizing data to peer stack-unit": S4810 stacks
- the lists of members in ``show vlan``: published sessions. Some switches repeat the slot of each port
  (``Te 1/1-1/28,1/30``), others do not (``Te 0/8,13-16``). All print the members of an aggregate (``Po1(Te 0/46-47)``)

No recording of a failed save was found: the failures have the form of OS9's other errors. By default, ports are shut
down and in no VLAN (S4810 configuration guide).
"""

import re
from collections.abc import Callable
from itertools import groupby
from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.ios_like import IosLikeSwitch
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort

LEGEND = """
Codes: * - Default VLAN, G - GVRP VLANs, R - Remote Port Mirroring VLANs, P - Primary, C - Community, I - Isolated
       O - Openflow
Q: U - Untagged, T - Tagged
   x - Dot1x untagged, X - Dot1x tagged
   o - OpenFlow untagged, O - OpenFlow tagged
   G - GVRP tagged, M - Vlan-stack, H - VSN tagged
   i - Internal untagged, I - Internal tagged, v - VLT untagged, V - VLT tagged

    NUM    Status    Description                     Q Ports
"""


class DellForce10(IosLikeSwitch):
    """An S4810. After ``switchport``, a port is untagged in VLAN 1. A port with tagged VLANs is untagged in no VLAN.

    With ``repeated_slots``, ``show vlan`` prints each port with its slot.
    """

    platform = "dell_force10"
    port_names = (*(f"TenGigabitEthernet 0/{n}" for n in range(8)), "Port-channel 1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="routed", allowed=set())
    default_name = ""
    modes: ClassVar = {"config": "(conf)", "vlan": "(conf-if-vl-{context})", "interface": "(conf-if-te-0/0)"}
    factory_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="routed", allowed=set(), down=True)
    unauthorized = "% Error: Authorization failed."
    saving = "!\n"
    saved = "3473 bytes successfully copied"
    saved_variants = ("!\nSynchronizing data to peer stack-unit\n!!!!!!!!\n", "!\n")
    save_failures: ClassVar = {
        "no space": "!\n% Error: No space left on device\n",
        "busy": "% Error: Another user is writing the startup-config. Please try again later.\n",
        "permission": "% Error: Authorization failed.\n",
    }

    def __init__(self, *, repeated_slots: bool = False, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.repeated_slots = repeated_slots

    @accepts("exec", "write memory")
    def write_memory(self, session: EmulatedSession) -> None:
        self.store(session)

    @accepts("exec", "copy running-config startup-config")
    def copy_to_startup(self, session: EmulatedSession) -> None:
        session.later(lambda: self._copy(session))

    def _copy(self, session: EmulatedSession) -> None:
        question = "File with same name already exist.\nProceed to copy the file [confirm yes/no]: "
        if session.ask(question).strip().lower() == "yes":
            self.store(session)

    def become_access(self, port: EmulatedPort, vlan: int) -> None:
        port.mode, port.native, port.allowed = "access", vlan, set()

    def become_trunk(self, port: EmulatedPort, allowed: set[int] | None) -> None:
        port.mode, port.allowed = "trunk", set(self.running.vlans) if allowed is None else allowed

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f'{" " * (len(self.prompt(session)) + 1)}^\n% Error: Invalid input at "^" marker.'

    @accepts("config", "interface vlan <number>")
    def vlan(self, session: EmulatedSession, number: str) -> None:
        if not number.isdigit() or not 1 <= int(number) <= 4094:
            raise CommandRejected("")
        session.enter("vlan", number)
        self.running.vlans.setdefault(int(number), "")

    @accepts("config", "no interface vlan <number>")
    def no_vlan(self, session: EmulatedSession, number: str) -> None:
        if self.running.vlans.pop(int(number), None) is None:
            raise CommandRejected("% Error: No such interface.")
        for port in self.running.ports.values():
            port.allowed.discard(int(number))

    @accepts("vlan", "description <text...>")
    def vlan_description(self, session: EmulatedSession, text: str) -> None:
        self.running.vlans[int(session.context[0])] = text

    @accepts("vlan", "name <text>")
    def vlan_name(self, session: EmulatedSession, text: str) -> None:
        if text[0].isdigit() or len(text) > 32:
            raise CommandRejected("% Error: Name must start with a letter and have at most 32 characters.")

    @accepts("vlan", "tagged <ports...>")
    def tagged(self, session: EmulatedSession, ports: str) -> None:
        for name in self.members(ports):
            if self.running.ports[name].mode == "routed":
                raise CommandRejected(f"% Error: Port is not in Layer-2 mode {self.shortened(name)}.")
            self.running.ports[name].mode = "trunk"
            self.running.ports[name].allowed.add(int(session.context[0]))

    @accepts("vlan", "no tagged <ports...>")
    def no_tagged(self, session: EmulatedSession, ports: str) -> None:
        for name in self.members(ports):
            port = self.running.ports[name]
            if int(session.context[0]) not in port.allowed:
                raise CommandRejected(f"% Error: Port is not a member of this Vlan {self.shortened(name)}.")
            port.allowed.discard(int(session.context[0]))
            port.mode = "trunk" if port.allowed else "access"

    @accepts("vlan", "untagged <ports...>")
    def untag(self, session: EmulatedSession, ports: str) -> None:
        for name in self.members(ports):
            if self.running.ports[name].mode != "access":
                raise CommandRejected(f"% Error: Port is not in Layer-2 mode or has tags {self.shortened(name)}.")
            self.running.ports[name].native = int(session.context[0])

    @accepts("vlan", "no untagged <ports...>")
    def no_untag(self, session: EmulatedSession, ports: str) -> None:
        for name in self.members(ports):
            if self.running.ports[name].native != int(session.context[0]):
                raise CommandRejected(f"% Error: Port is not a member of this Vlan {self.shortened(name)}.")
            self.running.ports[name].native = 1

    @accepts("interface", "no switchport")
    def no_switchport(self, session: EmulatedSession) -> None:
        for port in session.ports:
            if port.allowed or port.native != 1:
                raise CommandRejected("% Error: Port is part of a non-default VLAN.")
            port.mode = "routed"

    @accepts("interface", "switchport")
    def switchport(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.mode = "access" if port.mode == "routed" else port.mode

    @accepts("exec", "show vlan")
    def show_vlan(self, session: EmulatedSession) -> None:
        rows = []
        for number, name in sorted(self.running.vlans.items()):
            members = [
                ("T", name)
                for name, port in self.running.ports.items()
                if port.mode == "trunk" and number in (port.allowed or ())
            ]
            members += [
                ("U", name)
                for name, port in self.running.ports.items()
                if port.mode == "access" and number == port.native
            ]
            shown = [f"{membership} {ports}" for membership, ports in _short_lists(members, self.repeated_slots)] or [
                ""
            ]
            star = "*" if number == 1 else " "
            status = "Active" if members else "Inactive"
            rows.append(f"{star}   {number:<6} {status:<9} {name:<31} {shown[0]}".rstrip())
            rows += [f"{' ' * 53}{further}" for further in shown[1:]]
        session.print_pages(LEGEND + "\n".join(rows))

    def shortened(self, name: str) -> str:
        return name.replace("TenGigabitEthernet", "Te").replace("Port-channel", "Po")

    def members(self, ports: str) -> list[str]:
        words, _, numbers = ports.rpartition(" ")
        slot, _, rest = numbers.rpartition("/")
        return [self.port(f"{words} {slot}/{number}" if slot else f"{words} {number}") for number in rest.split(",")]

    @accepts("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    def running_config(self) -> str:
        rows = [f"hostname {self.hostname}", "!"]
        for name, port in self.running.ports.items():
            rows += [f"interface {name}", *(f" {line}" for line in port.lines)]
            rows += [
                " no ip address",
                *([] if port.mode == "routed" else [" switchport"]),
                " shutdown" if port.down else " no shutdown",
                "!",
            ]
        for number, name in sorted(self.running.vlans.items()):
            tagged = [port for port, state in self.running.ports.items() if number in state.allowed]
            rows += [f"interface Vlan {number}", *([f" description {name}"] if name else []), " no ip address"]
            untagged = [
                port for port, state in self.running.ports.items() if state.mode == "access" and state.native == number
            ]
            rows += [*(f" tagged {port}" for port in tagged), *(f" untagged {port}" for port in untagged if number > 1)]
            rows += [" shutdown", "!"]
        return "\n".join(rows)


def _short_lists(members: list[tuple[str, str]], repeated_slots: bool) -> list[tuple[str, str]]:
    found = []
    split = [
        (membership, *name.replace("TenGigabitEthernet", "Te").replace("Port-channel", "Po").split())
        for membership, name in members
    ]
    for (membership, kind), group in groupby(split, key=lambda member: (member[0], member[1])):
        numbers = [number for *_, number in group]
        if kind == "Po":
            found += [(membership, f"Po{number}(Te 0/46-47)") for number in numbers]
            continue
        slot = f"{numbers[0].rpartition('/')[0]}/"
        listed = vlan_lists.format_list(int(number.rpartition("/")[2]) for number in numbers)
        ports = re.sub(r"(\d+)", rf"{slot}\1", listed) if repeated_slots else slot + listed
        found.append((membership, f"{kind} {ports}"))
    return found
