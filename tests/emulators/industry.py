"""What most vendors took from one another: user and privileged mode, ``configure terminal``, ``end``, saving."""

from typing import ClassVar

from emulators import lists
from emulators.grammar import says
from emulators.switch import Port, Rejected, Session, Switch
from emulators.terminal import Hangup


class Industry(Switch):
    """The modes of an industry-standard command line."""

    first_mode = "user"
    modes: ClassVar[dict[str, str]] = {"config": "(config)", "vlan": "(config-vlan)", "interface": "(config-if)"}
    denied = "% Access denied"
    saved = "[OK]"

    def prompt(self, session: Session) -> str:
        if session.mode == "user":
            return f"{self.hostname}>"
        return f"{self.hostname}{self.modes.get(session.mode, '').format(about=','.join(session.about))}#"

    def invalid(self, session: Session, line: str) -> str:
        return f"{' ' * (len(self.prompt(session)) + 2)}^\n% Invalid input detected at '^' marker.\n"

    @says("user", "enable")
    def enable(self, session: Session) -> None:
        if self.secret and session.ask("Password: ", echo=False) != self.secret:
            raise Rejected(self.denied)
        session.enter("exec")

    @says("exec", "enable")
    def already(self, session: Session) -> None:
        """Stay privileged."""

    @says("exec", "disable")
    def disable(self, session: Session) -> None:
        session.enter("user")

    @says("user", "terminal length <lines>")
    @says("exec", "terminal length <lines>")
    def terminal_length(self, session: Session, lines: str) -> None:
        session.page = int(lines)

    @says("user", "terminal width <columns>")
    @says("exec", "terminal width <columns>")
    def terminal_width(self, session: Session, columns: str) -> None:
        """Take note of it."""

    @says("exec", "configure terminal")
    def configure_terminal(self, session: Session) -> None:
        session.enter("config")

    @says("config", "end")
    def end(self, session: Session) -> None:
        session.enter("exec")

    @says("config", "exit")
    def exit_config(self, session: Session) -> None:
        session.enter("exec")

    @says("vlan", "exit")
    @says("interface", "exit")
    def exit_inner(self, session: Session) -> None:
        session.enter("config")

    @says("user", "exit", "logout")
    @says("exec", "exit", "logout")
    def leave(self, session: Session) -> None:
        raise Hangup

    @says("exec", "write memory", "copy running-config startup-config")
    def write_memory(self, session: Session) -> None:
        """Save."""
        self.store(session)

    @says("config", "hostname <name>")
    def set_hostname(self, session: Session, name: str) -> None:
        self.hostname = name

    @says("config", "interface <name...>")
    def interface(self, session: Session, name: str) -> None:
        session.enter("interface", self.port(name))

    @says("interface", "shutdown")
    def shutdown(self, session: Session) -> None:
        for port in session.ports:
            port.down = True

    @says("interface", "no shutdown")
    def no_shutdown(self, session: Session) -> None:
        for port in session.ports:
            port.down = False

    @says("interface", "description <text...>")
    def description(self, session: Session, text: str) -> None:
        for port in session.ports:
            port.lines.append(f"description {text}")


class TrunkLists(Industry):
    """``switchport trunk allowed vlan`` as Cisco made it: all VLANs until something else is said."""

    short: ClassVar[dict[str, str]] = {"GigabitEthernet": "Gi", "Port-channel": "Po"}
    legacy: ClassVar[dict[int, tuple[str, str]]] = {}

    @says("config", "vlan <list>")
    def vlan(self, session: Session, text: str) -> None:
        session.enter("vlan", *map(str, sorted(self.creatable(text))))
        for number in session.about:
            self.running.vlans.setdefault(int(number), f"VLAN{int(number):04}")

    @says("vlan", "name <text>")
    def vlan_name(self, session: Session, text: str) -> None:
        if len(session.about) > 1:
            raise Rejected("")
        self.running.vlans[int(session.about[0])] = text

    @says("config", "no vlan <list>")
    def no_vlan(self, session: Session, text: str) -> None:
        numbers = self.numbers(text)
        if 1 in numbers:
            raise Rejected("%Default VLAN 1 may not be deleted.")
        for number in numbers:
            self.running.vlans.pop(number, None)

    @says("interface", "switchport", "switchport nonegotiate")
    def switchport(self, session: Session) -> None:
        for port in session.ports:
            port.mode = "access" if port.mode == "routed" else port.mode

    @says("interface", "switchport mode <mode>")
    def switchport_mode(self, session: Session, mode: str) -> None:
        for port in session.ports:
            port.mode = mode

    @says("interface", "switchport access vlan <number>")
    def native(self, session: Session, number: str) -> None:
        for port in session.ports:
            port.native = int(number)

    @says("interface", "switchport trunk native vlan <number>")
    def trunk_native(self, session: Session, number: str) -> None:
        for port in session.ports:
            self.become_native(port, int(number))

    @says("interface", "no switchport trunk native vlan")
    def no_trunk_native(self, session: Session) -> None:
        self.trunk_native(session, "1")

    @says("interface", "no switchport mode")
    def no_mode(self, session: Session) -> None:
        self.switchport_mode(session, type(self).new_port().mode)

    @says("exec", "show startup-config")
    def show_startup(self, session: Session) -> None:
        session.say(self.config_of(self.startup))

    def become_native(self, port: Port, vlan: int) -> None:
        port.trunk_native = vlan

    @says("interface", "no switchport access vlan")
    def no_access(self, session: Session) -> None:
        for port in session.ports:
            port.native = 1

    @says("interface", "switchport trunk allowed vlan <list>")
    def allow_only(self, session: Session, text: str) -> None:
        for port in session.ports:
            port.allowed = self.numbers(text)

    @says("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: Session) -> None:
        for port in session.ports:
            port.allowed = set()

    @says("interface", "switchport trunk allowed vlan all", "no switchport trunk allowed vlan")
    def allow_all(self, session: Session) -> None:
        for port in session.ports:
            port.allowed = None

    @says("interface", "switchport trunk allowed vlan add <list>")
    def allow_more(self, session: Session, text: str) -> None:
        """Add to a list; while the list is the default, everything is in it already, and that stays so."""
        numbers = self.numbers(text)
        for port in session.ports:
            port.allowed = port.allowed if port.allowed is None else port.allowed | numbers

    @says("interface", "switchport trunk allowed vlan remove <list>")
    def allow_fewer(self, session: Session, text: str) -> None:
        numbers = self.numbers(text)
        for port in session.ports:
            port.allowed = (set(range(1, 4095)) if port.allowed is None else port.allowed) - numbers

    @says("exec", "show vlan brief")
    def show_vlan_brief(self, session: Session) -> None:
        session.say("\n" + self.vlan_table())

    def creatable(self, text: str) -> set[int]:
        """Give the numbers of a list that may be created; raises Rejected."""
        return self.numbers(text)

    def numbers(self, text: str) -> set[int]:
        try:
            return lists.parse(text)
        except ValueError:
            raise Rejected("Command rejected: Bad VLAN list - character #1 is a non-numeric character.") from None

    def vlan_table(self, heading: str = "VLAN") -> str:
        """Write the table of VLANs with the ports that are in them untagged."""
        bar = "-" * len(heading)
        rows = [f"{heading} Name                             Status    Ports", f"{bar} {'-' * 32} {'-' * 9} {'-' * 31}"]
        statuses = {number: (name, "active") for number, name in self.running.vlans.items()} | self.legacy
        for number, (name, status) in sorted(statuses.items()):
            ports = [port for port, one in self.running.ports.items() if one.mode != "trunk" and one.native == number]
            listed = lists.columns([self.shortened(port) for port in ports], 44 + len(bar))
            rows.append(f"{number:<{len(bar)}} {name:<32} {status:<9} {listed}")
        return "\n".join(rows)

    def shortened(self, port: str) -> str:
        """Give a port's name as tables show it."""
        return next((port.replace(long, short) for long, short in self.short.items() if port.startswith(long)), port)

    def interface_lines(self, indent: str = " ", default_mode: str = "access") -> list[str]:
        """Write the interfaces of a running configuration."""
        rows = []
        for name, port in self.running.ports.items():
            rows += [f"interface {name}", *(f"{indent}{line}" for line in port.lines)]
            rows += self.untagged_lines(indent, port)
            rows += self.allowed_lines(indent, port.allowed) + ([f"{indent}shutdown"] if port.down else [])
            rows += [] if port.mode == default_mode else [f"{indent}switchport mode {port.mode}"]
            rows.append("!")
        return rows

    def untagged_lines(self, indent: str, port: Port) -> list[str]:
        """Write both VLANs of untagged frames, that of an access port also on a trunk: it applies when it is one."""
        access = [] if port.native == 1 else [f"{indent}switchport access vlan {port.native}"]
        return access + (
            [] if port.trunk_native == 1 else [f"{indent}switchport trunk native vlan {port.trunk_native}"]
        )

    def allowed_lines(self, indent: str, allowed: set[int] | None) -> list[str]:
        first = f"{indent}switchport trunk allowed vlan "
        if allowed is None:
            return []
        return lists.wrapped(allowed, first, f"{first}add ") if allowed else [f"{first}none"]
