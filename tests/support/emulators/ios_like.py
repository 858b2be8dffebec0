from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort, EmulatedSwitch
from support.emulators.terminal import Hangup


class IosLikeSwitch(EmulatedSwitch):
    """The modes of a command line that resembles IOS."""

    first_mode = "user"
    modes: ClassVar[dict[str, str]] = {"config": "(config)", "vlan": "(config-vlan)", "interface": "(config-if)"}
    denied = "% Access denied"
    saved = "[OK]"

    def prompt(self, session: EmulatedSession) -> str:
        if session.mode == "user":
            return f"{self.hostname}>"
        return f"{self.hostname}{self.modes.get(session.mode, '').format(context=','.join(session.context))}#"

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f"{' ' * (len(self.prompt(session)) + 2)}^\n% Invalid input detected at '^' marker.\n"

    @accepts("user", "enable")
    def enable(self, session: EmulatedSession) -> None:
        if self.secret and session.ask("Password: ", echo=False) != self.secret:
            raise CommandRejected(self.denied)
        session.enter("exec")

    @accepts("exec", "enable")
    def already(self, session: EmulatedSession) -> None:
        """Stay in privileged mode."""

    @accepts("exec", "disable")
    def disable(self, session: EmulatedSession) -> None:
        session.enter("user")

    @accepts("user", "terminal length <lines>")
    @accepts("exec", "terminal length <lines>")
    def terminal_length(self, session: EmulatedSession, lines: str) -> None:
        session.page = int(lines)

    @accepts("user", "terminal width <columns>")
    @accepts("exec", "terminal width <columns>")
    def terminal_width(self, session: EmulatedSession, columns: str) -> None:
        """Accept the width without effect."""

    @accepts("exec", "configure terminal")
    def configure_terminal(self, session: EmulatedSession) -> None:
        session.enter("config")

    @accepts("config", "end")
    def end(self, session: EmulatedSession) -> None:
        session.enter("exec")

    @accepts("config", "exit")
    def exit_config(self, session: EmulatedSession) -> None:
        session.enter("exec")

    @accepts("vlan", "exit")
    @accepts("interface", "exit")
    def exit_inner(self, session: EmulatedSession) -> None:
        session.enter("config")

    @accepts("user", "exit", "logout")
    @accepts("exec", "exit", "logout")
    def leave(self, session: EmulatedSession) -> None:
        raise Hangup

    @accepts("exec", "write memory", "copy running-config startup-config")
    def write_memory(self, session: EmulatedSession) -> None:
        self.store(session)

    @accepts("config", "hostname <name>")
    def set_hostname(self, session: EmulatedSession, name: str) -> None:
        self.hostname = name

    @accepts("config", "interface <name...>")
    def interface(self, session: EmulatedSession, name: str) -> None:
        session.enter("interface", self.port(name))

    @accepts("interface", "shutdown")
    def shutdown(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.down = True

    @accepts("interface", "no shutdown")
    def no_shutdown(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.down = False

    @accepts("interface", "description <text...>")
    def description(self, session: EmulatedSession, text: str) -> None:
        for port in session.ports:
            port.lines.append(f"description {text}")


class TrunkLists(IosLikeSwitch):
    """``switchport trunk allowed vlan`` as on IOS: a trunk allows all VLANs until a list is configured."""

    short: ClassVar[dict[str, str]] = {"GigabitEthernet": "Gi", "Port-channel": "Po"}
    legacy: ClassVar[dict[int, tuple[str, str]]] = {}

    @accepts("config", "vlan <list>")
    def vlan(self, session: EmulatedSession, text: str) -> None:
        session.enter("vlan", *map(str, sorted(self.creatable(text))))
        for number in session.context:
            self.running.vlans.setdefault(int(number), f"VLAN{int(number):04}")

    @accepts("vlan", "name <text>")
    def vlan_name(self, session: EmulatedSession, text: str) -> None:
        if len(session.context) > 1:
            raise CommandRejected("")
        self.running.vlans[int(session.context[0])] = text

    @accepts("config", "no vlan <list>")
    def no_vlan(self, session: EmulatedSession, text: str) -> None:
        numbers = self.numbers(text)
        if 1 in numbers:
            raise CommandRejected("%Default VLAN 1 may not be deleted.")
        for number in numbers:
            self.running.vlans.pop(number, None)

    @accepts("interface", "switchport", "switchport nonegotiate")
    def switchport(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.mode = "access" if port.mode == "routed" else port.mode

    @accepts("interface", "switchport mode <mode>")
    def switchport_mode(self, session: EmulatedSession, mode: str) -> None:
        for port in session.ports:
            port.mode = mode

    @accepts("interface", "switchport access vlan <number>")
    def native(self, session: EmulatedSession, number: str) -> None:
        for port in session.ports:
            port.native = int(number)

    @accepts("interface", "switchport trunk native vlan <number>")
    def trunk_native(self, session: EmulatedSession, number: str) -> None:
        for port in session.ports:
            self.become_native(port, int(number))

    @accepts("interface", "no switchport trunk native vlan")
    def no_trunk_native(self, session: EmulatedSession) -> None:
        self.trunk_native(session, "1")

    @accepts("interface", "no switchport mode")
    def no_mode(self, session: EmulatedSession) -> None:
        self.switchport_mode(session, type(self).new_port().mode)

    @accepts("exec", "show startup-config")
    def show_startup(self, session: EmulatedSession) -> None:
        session.print_pages(self.config_of(self.startup))

    def become_native(self, port: EmulatedPort, vlan: int) -> None:
        port.trunk_native = vlan

    @accepts("interface", "no switchport access vlan")
    def no_access(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.native = 1

    @accepts("interface", "switchport trunk allowed vlan <list>")
    def allow_only(self, session: EmulatedSession, text: str) -> None:
        for port in session.ports:
            port.allowed = self.numbers(text)

    @accepts("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.allowed = set()

    @accepts("interface", "switchport trunk allowed vlan all", "no switchport trunk allowed vlan")
    def allow_all(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.allowed = None

    @accepts("interface", "switchport trunk allowed vlan add <list>")
    def allow_more(self, session: EmulatedSession, text: str) -> None:
        """Add VLANs to a port's list. A port without a list already allows every VLAN and does not change."""
        numbers = self.numbers(text)
        for port in session.ports:
            port.allowed = port.allowed if port.allowed is None else port.allowed | numbers

    @accepts("interface", "switchport trunk allowed vlan remove <list>")
    def allow_fewer(self, session: EmulatedSession, text: str) -> None:
        numbers = self.numbers(text)
        for port in session.ports:
            port.allowed = (set(range(1, 4095)) if port.allowed is None else port.allowed) - numbers

    @accepts("exec", "show vlan brief")
    def show_vlan_brief(self, session: EmulatedSession) -> None:
        session.print_pages("\n" + self.vlan_table())

    def creatable(self, text: str) -> set[int]:
        """Return the VLAN IDs of a list. Raise CommandRejected if one of them cannot be created."""
        return self.numbers(text)

    def numbers(self, text: str) -> set[int]:
        try:
            return vlan_lists.parse(text)
        except ValueError:
            raise CommandRejected(
                "Command rejected: Bad VLAN list - character #1 is a non-numeric character."
            ) from None

    def vlan_table(self, heading: str = "VLAN") -> str:
        bar = "-" * len(heading)
        rows = [f"{heading} Name                             Status    Ports", f"{bar} {'-' * 32} {'-' * 9} {'-' * 31}"]
        statuses = {number: (name, "active") for number, name in self.running.vlans.items()} | self.legacy
        for number, (name, status) in sorted(statuses.items()):
            ports = [
                name for name, port in self.running.ports.items() if port.mode != "trunk" and port.native == number
            ]
            listed = vlan_lists.columns([self.shortened(name) for name in ports], 44 + len(bar))
            rows.append(f"{number:<{len(bar)}} {name:<32} {status:<9} {listed}")
        return "\n".join(rows)

    def shortened(self, port: str) -> str:
        return next((port.replace(long, short) for long, short in self.short.items() if port.startswith(long)), port)

    def interface_lines(self, indent: str = " ", default_mode: str = "access") -> list[str]:
        rows = []
        for name, port in self.running.ports.items():
            rows += [f"interface {name}", *(f"{indent}{line}" for line in port.lines)]
            rows += self.untagged_lines(indent, port)
            rows += self.allowed_lines(indent, port.allowed) + ([f"{indent}shutdown"] if port.down else [])
            rows += [] if port.mode == default_mode else [f"{indent}switchport mode {port.mode}"]
            rows.append("!")
        return rows

    def untagged_lines(self, indent: str, port: EmulatedPort) -> list[str]:
        """Return the lines of the access VLAN and of the native VLAN, in whichever mode the port is. Omit VLAN 1."""
        access = [] if port.native == 1 else [f"{indent}switchport access vlan {port.native}"]
        return access + (
            [] if port.trunk_native == 1 else [f"{indent}switchport trunk native vlan {port.trunk_native}"]
        )

    def allowed_lines(self, indent: str, allowed: set[int] | None) -> list[str]:
        first = f"{indent}switchport trunk allowed vlan "
        if allowed is None:
            return []
        return vlan_lists.wrap_list(allowed, first, f"{first}add ") if allowed else [f"{first}none"]
