"""Arista EOS. By default, ports are enabled access ports in VLAN 1.

Sources of the output:

- "Copy completed successfully.": the EOS user manual
- a failed copy, ``% Error copying SOURCE to TARGET (REASON)``: pyntc's test data; REASON is Linux's text of the error
- "Authorization denied for command": the documentation of scrapligo and of role-based access on EOS
"""

from typing import ClassVar

from support.emulators.ios_like import TrunkLists
from support.emulators.session import FILTERS, CommandRejected, EmulatedSession, accepts


class AristaEos(TrunkLists):
    """An EOS switch. Commands cannot create a VLAN with an ID that a routed port uses internally (1006 or higher)."""

    platform = "arista_eos"
    port_names = (*(f"Ethernet{n}" for n in range(1, 9)), "Port-Channel1")
    modes: ClassVar = {"config": "(config)", "vlan": "(config-vlan-{context})", "interface": "(config-if-{context})"}
    short: ClassVar = {"Ethernet": "Et", "Port-Channel": "Po"}
    internal: ClassVar = {1006: "Ethernet8"}
    unauthorized = "% Authorization denied for command '{line}'"
    filters: ClassVar = FILTERS
    saved = "Copy completed successfully."
    save_failures: ClassVar = {
        "no space": "% Error copying system:/running-config to flash:/startup-config (No space left on device)\n",
        "read only": "% Error copying system:/running-config to flash:/startup-config (Read-only file system)\n",
        "permission": "% Authorization denied for command 'write memory'\n",
    }

    def prompt(self, session: EmulatedSession) -> str:
        if session.mode == "user":
            return f"{self.hostname}>"
        ends = dict.fromkeys((*session.context[:1], *session.context[-1:]))
        context = "-".join(self.shortened(name) for name in ends)
        return f"{self.hostname}{self.modes.get(session.mode, '').format(context=context)}#"

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return "% Invalid input"

    @accepts("user", "terminal length <lines>")
    @accepts("exec", "terminal length <lines>")
    def terminal_length(self, session: EmulatedSession, lines: str) -> None:
        session.page = int(lines)
        session.print_pages("Pagination disabled." if session.page == 0 else f"Pagination set to {lines} lines.")

    @accepts("user", "terminal width <columns>")
    @accepts("exec", "terminal width <columns>")
    def terminal_width(self, session: EmulatedSession, columns: str) -> None:
        session.print_pages(f"Width set to {columns} columns.")

    def creatable(self, text: str) -> set[int]:
        numbers = self.numbers(text)
        if numbers & set(self.internal):
            raise CommandRejected(
                f"% Could not create VLAN {min(numbers & set(self.internal))}: VLAN is in use as an internal VLAN"
            )
        return numbers

    def numbers(self, text: str) -> set[int]:
        try:
            return super().numbers(text)
        except CommandRejected:
            raise CommandRejected("% Invalid input") from None

    @accepts("exec", "show vlan")
    def show_vlan(self, session: EmulatedSession) -> None:
        session.print_pages(self.vlan_table("VLAN "))

    @accepts("exec", "show vlan internal usage")
    def show_internal(self, session: EmulatedSession) -> None:
        session.print_pages("\n".join(f"{number}  {user}" for number, user in self.internal.items()))

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        session.print_pages(self.running_config())

    @accepts("exec", "show running-config section interface")
    def show_interfaces(self, session: EmulatedSession) -> None:
        session.print_pages("\n".join(row for row in self.interface_lines("   ") if row != "!"))

    def allowed_lines(self, indent: str, allowed: set[int] | None) -> list[str]:
        return (
            [
                "".join(super().allowed_lines(indent, allowed)).replace(
                    f"{indent}switchport trunk allowed vlan add ", ","
                )
            ]
            if allowed is not None
            else []
        )

    @accepts("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    def running_config(self) -> str:
        names = [
            line
            for n, name in sorted(self.running.vlans.items())
            if n > 1
            for line in (f"vlan {n}", f"   name {name}", "!")
        ]
        return "\n".join([f"hostname {self.hostname}", "!", *names, *self.interface_lines("   "), "end"])
