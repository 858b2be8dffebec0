"""Aruba AOS-CX: naming a native VLAN allows all of them.

Where the words come from: "Success" after ``write memory`` and ``copy running-config startup-config`` from the AOS-CX
10.01 and 10.03 command references; "Copying configuration: [Success]" with its turning dash from recorded sessions of
10.06 to 10.08 (Shasta's network guides); "[Failure]" and the text below it from a simulator, the reasons being ours.
The words for a missing right are from memory. A 6300's ports are access ports of VLAN 1, up.
"""

from typing import ClassVar

from emulators import lists
from emulators.grammar import says
from emulators.industry import Industry
from emulators.session import FILTERS
from emulators.switch import Port, Rejected, Session


class ArubaAosCx(Industry):
    """A 6300. The first ``vlan trunk allowed`` makes an access port a trunk; without a list it carries all."""

    platform = "aruba_aoscx"
    port_names = (*(f"1/1/{n}" for n in range(1, 9)), "lag1")
    first_mode = "exec"
    default_name = "DEFAULT_VLAN_1"
    modes: ClassVar = {"config": "(config)", "vlan": "(config-vlan-{about})", "interface": "(config-if)"}
    unauthorized = "Cannot execute command. Command not allowed."
    filters: ClassVar = {name: FILTERS[name] for name in ("include", "exclude", "begin")}
    saving = "Copying configuration: [/]\rCopying configuration: [-]\r"
    saved = "Copying configuration: [Success]"
    saved_variants = ("Success\n",)
    save_failures: ClassVar = {
        "no space": "Copying configuration: [/]\rCopying configuration: [Failure]\n\nNo space left on device\n",
        "busy": "Copying configuration: [/]\rCopying configuration: [Failure]\n\nConfiguration is locked\n",
        "permission": "Cannot execute command. Command not allowed.\n",
    }

    def invalid(self, session: Session, line: str) -> str:
        return f"Invalid input: {line.rsplit(maxsplit=1)[-1]}"

    @says("exec", "no page")
    def no_page(self, session: Session) -> None:
        session.page = 0

    @says("config", "vlan <list>")
    def vlan(self, session: Session, text: str) -> None:
        numbers = self.numbers(text)
        session.enter("vlan", *map(str, sorted(numbers)))
        for number in numbers:
            self.running.vlans.setdefault(number, f"VLAN{number}")

    @says("vlan", "name <text>")
    def vlan_name(self, session: Session, text: str) -> None:
        if len(session.about) > 1:
            raise Rejected("")
        self.running.vlans[int(session.about[0])] = text

    @says("config", "no vlan <list>")
    def no_vlan(self, session: Session, text: str) -> None:
        numbers = self.numbers(text)
        if 1 in numbers:
            raise Rejected("Default VLAN 1 cannot be deleted.")
        for number in numbers:
            self.running.vlans.pop(number, None)

    @says("interface", "no routing")
    def no_routing(self, session: Session) -> None:
        """Ports of this model are bridged anyway."""

    @says("interface", "vlan access <number>")
    def access(self, session: Session, number: str) -> None:
        for port in session.ports:
            port.mode, port.native, port.allowed = "access", int(number), None

    @says("interface", "vlan trunk native <number>")
    def trunk_native(self, session: Session, number: str) -> None:
        for port in session.ports:
            port.allowed = port.allowed if port.mode == "trunk" else None
            port.mode, port.native = "trunk", int(number)

    @says("interface", "vlan trunk allowed <list>")
    def trunk_allowed(self, session: Session, text: str) -> None:
        numbers = self.numbers(text)
        if numbers - set(self.running.vlans):
            raise Rejected(f"VLAN {min(numbers - set(self.running.vlans))} is not configured.")
        for port in session.ports:
            port.mode, port.allowed = "trunk", (port.allowed or set()) | numbers

    @says("interface", "vlan trunk allowed all")
    def trunk_all(self, session: Session) -> None:
        for port in session.ports:
            port.mode, port.allowed = "trunk", None

    @says("interface", "no vlan trunk allowed <list>")
    def trunk_fewer(self, session: Session, text: str) -> None:
        for port in session.ports:
            port.allowed = (set(range(1, 4095)) if port.allowed is None else port.allowed) - self.numbers(text) or None

    def numbers(self, text: str) -> set[int]:
        try:
            return lists.parse(text)
        except ValueError:
            raise Rejected(f"Invalid input: {text}") from None

    @says("exec", "show running-config")
    def show_running(self, session: Session) -> None:
        session.say(f"Current configuration:\n!\n!Version ArubaOS-CX FL.10.08.1010\n{self.running_config()}")

    @says("exec", "show lldp neighbor-info detail")
    def show_neighbours(self, session: Session) -> None:
        session.say(self.neighbours())

    def running_config(self) -> str:
        rows = [f"hostname {self.hostname}", "user admin group administrators password ciphertext AQBapXX"]
        plain = [n for n, name in self.running.vlans.items() if name == f"VLAN{n}" or n == 1]
        rows.append(f"vlan {lists.written(plain)}")
        rows += [
            line
            for n, name in sorted(self.running.vlans.items())
            if n not in plain
            for line in (f"vlan {n}", f"    name {name}")
        ]
        for name, port in self.running.ports.items():
            rows += [
                f"interface {'lag 1' if name == 'lag1' else name}",
                *([] if port.down else ["    no shutdown"]),
                *(f"    {line}" for line in port.lines),
            ]
            rows += _bridged(port)
        return "\n".join(rows)


def _bridged(port: Port) -> list[str]:
    if port.mode != "trunk":
        return ["    no routing", f"    vlan access {port.native}"]
    allowed = "all" if port.allowed is None else lists.written(port.allowed)
    return ["    no routing", f"    vlan trunk native {port.native}", f"    vlan trunk allowed {allowed}"]
