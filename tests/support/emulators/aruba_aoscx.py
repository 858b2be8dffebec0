"""Aruba AOS-CX. By default, the ports of a 6300 are enabled access ports in VLAN 1.

The command ``vlan trunk native`` makes an access port a trunk that allows all VLANs.

Sources of the output:

- "Success" after ``write memory`` and ``copy running-config startup-config``: the AOS-CX 10.01 and 10.03 command
  references
- "Copying configuration: [Success]" after a rotating progress character: recorded sessions of 10.06 to 10.08 (Shasta's
  network guides)
- "[Failure]" with a reason below it: the form comes from a simulator; the reasons are invented
- ``interface lag 10 multi-chassis``: the command reference of 10.04 and published configurations of VSX pairs
- the message for a missing right: without a source, not checked on a device
"""

from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.ios_like import IosLikeSwitch
from support.emulators.session import FILTERS, CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort


class ArubaAosCx(IosLikeSwitch):
    """An Aruba 6300 switch.

    The first ``vlan trunk allowed`` makes an access port a trunk. A trunk without a list carries all VLANs. With
    ``multi_chassis``, the configuration shows lag 1 as a multi-chassis LAG of a VSX pair.
    """

    platform = "aruba_aoscx"
    port_names = (*(f"1/1/{n}" for n in range(1, 9)), "lag1")
    first_mode = "exec"
    default_name = "DEFAULT_VLAN_1"
    modes: ClassVar = {"config": "(config)", "vlan": "(config-vlan-{context})", "interface": "(config-if)"}
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

    def __init__(self, *, multi_chassis: bool = False, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.headings = {"lag1": "lag 1 multi-chassis" if multi_chassis else "lag 1"}

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f"Invalid input: {line.rsplit(maxsplit=1)[-1]}"

    @accepts("exec", "no page")
    def no_page(self, session: EmulatedSession) -> None:
        session.page = 0

    @accepts("config", "vlan <list>")
    def vlan(self, session: EmulatedSession, text: str) -> None:
        numbers = self.numbers(text)
        session.enter("vlan", *map(str, sorted(numbers)))
        for number in numbers:
            self.running.vlans.setdefault(number, f"VLAN{number}")

    @accepts("vlan", "name <text>")
    def vlan_name(self, session: EmulatedSession, text: str) -> None:
        if len(session.context) > 1:
            raise CommandRejected("")
        self.running.vlans[int(session.context[0])] = text

    @accepts("config", "no vlan <list>")
    def no_vlan(self, session: EmulatedSession, text: str) -> None:
        numbers = self.numbers(text)
        if 1 in numbers:
            raise CommandRejected("Default VLAN 1 cannot be deleted.")
        for number in numbers:
            self.running.vlans.pop(number, None)

    @accepts("interface", "no routing")
    def no_routing(self, session: EmulatedSession) -> None:
        """Change nothing: ports of this model are always bridged."""

    @accepts("interface", "vlan access <number>")
    def access(self, session: EmulatedSession, number: str) -> None:
        for port in session.ports:
            port.mode, port.native, port.allowed = "access", int(number), None

    @accepts("interface", "vlan trunk native <number>")
    def trunk_native(self, session: EmulatedSession, number: str) -> None:
        for port in session.ports:
            port.allowed = port.allowed if port.mode == "trunk" else None
            port.mode, port.native = "trunk", int(number)

    @accepts("interface", "vlan trunk allowed <list>")
    def trunk_allowed(self, session: EmulatedSession, text: str) -> None:
        numbers = self.numbers(text)
        if numbers - set(self.running.vlans):
            raise CommandRejected(f"VLAN {min(numbers - set(self.running.vlans))} is not configured.")
        for port in session.ports:
            port.mode, port.allowed = "trunk", (port.allowed or set()) | numbers

    @accepts("interface", "vlan trunk allowed all")
    def trunk_all(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.mode, port.allowed = "trunk", None

    @accepts("interface", "no vlan trunk allowed <list>")
    def trunk_fewer(self, session: EmulatedSession, text: str) -> None:
        for port in session.ports:
            port.allowed = (set(range(1, 4095)) if port.allowed is None else port.allowed) - self.numbers(text) or None

    def numbers(self, text: str) -> set[int]:
        try:
            return vlan_lists.parse(text)
        except ValueError:
            raise CommandRejected(f"Invalid input: {text}") from None

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        session.print_pages(f"Current configuration:\n!\n!Version ArubaOS-CX FL.10.08.1010\n{self.running_config()}")

    @accepts("exec", "show lldp neighbor-info detail")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    def running_config(self) -> str:
        rows = [f"hostname {self.hostname}", "user admin group administrators password ciphertext AQBapXX"]
        unnamed = [n for n, name in self.running.vlans.items() if name == f"VLAN{n}" or n == 1]
        rows.append(f"vlan {vlan_lists.format_list(unnamed)}")
        rows += [
            line
            for n, name in sorted(self.running.vlans.items())
            if n not in unnamed
            for line in (f"vlan {n}", f"    name {name}")
        ]
        for name, port in self.running.ports.items():
            rows += [
                f"interface {self.headings.get(name, name)}",
                *([] if port.down else ["    no shutdown"]),
                *(f"    {line}" for line in port.lines),
            ]
            rows += _bridged(port)
        return "\n".join(rows)


def _bridged(port: EmulatedPort) -> list[str]:
    if port.mode != "trunk":
        return ["    no routing", f"    vlan access {port.native}"]
    allowed = "all" if port.allowed is None else vlan_lists.format_list(port.allowed)
    return ["    no routing", f"    vlan trunk native {port.native}", f"    vlan trunk allowed {allowed}"]
