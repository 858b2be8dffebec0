"""Juniper Junos as a provider edge: units, routing instances, a private candidate. Statements are ``set`` lines."""

import re
from collections.abc import Iterator

from support.emulators.edge_device import CandidateEdge, EdgeState
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.terminal import Hangup

STATEMENTS = re.compile(
    r"interfaces \S+ (flexible-vlan-tagging|mtu \d+|encapsulation flexible-ethernet-services)"
    r"|interfaces \S+ unit \d+ (description \S+|encapsulation (vlan-vpls|vlan-bridge)|vlan-id \d+|family (vpls|inet)"
    r"|vlan-id-range [\d-]+)"
    r"|routing-instances \S+ (instance-type (vpls|evpn)|vlan-id (none|all)|interface \S+|vtep-source-interface \S+"
    r"|vxlan vni \d+|route-distinguisher \S+|vrf-target target:\S+|protocols evpn encapsulation vxlan"
    r"|protocols vpls (no-tunnel-services|encapsulation-type ethernet|vpls-id \d+|neighbor \S+))"
)
SINGLE = re.compile(r"(.* (?:description|encapsulation|vlan-id|instance-type|vpls-id|vni|route-distinguisher)) \S+$")
"""Statements that exist only once. A new value replaces the former statement."""


class EdgeJunos(CandidateEdge):
    """An MX. ``services[""]`` contains the statements, in order."""

    platform = "juniper_junos"
    port_names = ("ge-0/0/0", "ge-0/0/1", "ge-0/0/2", "ge-0/0/3", "xe-0/1/0")
    more = "---(more)---"
    failure_message = "error: {fault}\nerror: commit failed: (statements constraint check failed)"

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.locked = False
        self.running, self.startup = self.factory_state(), self.factory_state()

    def factory_state(self) -> EdgeState:
        state = super().factory_state()
        state.services[""] = [
            line
            for name in self.port_names
            for line in (
                f"interfaces {name} flexible-vlan-tagging",
                f"interfaces {name} encapsulation flexible-ethernet-services",
            )
        ]
        return state

    def prompt(self, session: EmulatedSession) -> str:
        return "[edit]\nadmin@pe1# " if session.mode == "config" else "admin@pe1> "

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f"{' ' * 20}^\nsyntax error."

    @accepts("exec", "set cli <words...>")
    def set_cli(self, session: EmulatedSession, words: str) -> None:
        what, value = words.split()
        if what == "screen-length":
            session.page = int(value)
        output = {"screen-length": "Screen length set to", "screen-width": "Screen width set to"}
        session.print_pages(f"{output[what]} {value}" if what in output else f"Disabling {what}")

    @accepts("exec", "configure private")
    def configure_private(self, session: EmulatedSession) -> None:
        if self.locked:
            raise CommandRejected(
                "error: configuration database locked by:\n  alice terminal pts/0 (pid 4711) exclusive [edit]"
            )
        self.candidate(session)
        session.print_pages("warning: uncommitted changes will be discarded on exit\nEntering configuration mode\n")
        session.enter("config")

    @accepts("config", "set <words...>")
    def put_statement(self, session: EmulatedSession, words: str) -> None:
        if not STATEMENTS.fullmatch(words):
            raise CommandRejected("")
        lines = self.candidate(session).services[""]
        single = SINGLE.match(words)
        lines[:] = [
            line for line in lines if line != words and not (single and re.match(rf"{re.escape(single[1])} ", line))
        ]
        lines.append(words)

    @accepts("config", "delete <words...>")
    def delete_statement(self, session: EmulatedSession, words: str) -> None:
        lines = self.candidate(session).services[""]
        left = [line for line in lines if line != words and not line.startswith(f"{words} ")]
        if len(left) == len(lines):
            session.print_pages("warning: statement not found")
        lines[:] = left

    @accepts("config", "commit")
    def commit(self, session: EmulatedSession) -> None:
        self.activate(session)
        session.print_pages("commit complete")

    @accepts("config", "commit and-quit")
    def commit_and_quit(self, session: EmulatedSession) -> None:
        self.activate(session)
        session.print_pages("commit complete\nExiting configuration mode")
        session.enter("exec")

    @accepts("config", "rollback 0")
    def rollback(self, session: EmulatedSession) -> None:
        self.discard_candidate(session)
        session.print_pages("load complete")

    @accepts("config", "exit", "exit configuration-mode", "end")
    def leave_configuration(self, session: EmulatedSession) -> None:
        if hasattr(session, "candidate") and session.candidate != self.running:
            session.print_pages("The configuration has been changed but not committed")
            session.ask("Discard uncommitted changes? [yes,no] (yes) ")
        self.discard_candidate(session)
        session.print_pages("Exiting configuration mode")
        session.enter("exec")

    @accepts("exec", "exit", "quit")
    def leave(self, session: EmulatedSession) -> None:
        raise Hangup

    @accepts("exec", "show configuration <part> | display set")
    def show_part(self, session: EmulatedSession, part: str) -> None:
        output = "\n".join(line for line in self._written() if line.startswith(f"set {part} "))
        session.print_pages(f"{output}\n" if output else "")

    def running_config(self) -> str:
        return "\n".join(sorted(self._written()))

    def find_faults(self, state: EdgeState) -> Iterator[str]:
        lines = state.services[""]
        units = {m[1] + "." + m[2] for line in lines if (m := re.match(r"interfaces (\S+) unit (\d+) vlan-id", line))}
        members = [m[1] for line in lines if (m := re.match(r"routing-instances \S+ interface (\S+)", line))]
        yield from (f"Interface {member} must already be defined" for member in members if member not in units)
        yield from (f"RT Instance: {member} is in two instances" for member in members if members.count(member) > 1)
        tags = [
            m[1] + " " + m[2] for line in lines if (m := re.match(r"interfaces (\S+) unit \d+ vlan-id (\d+)", line))
        ]
        yield from (f"VLAN-ID {tag} is used twice" for tag in tags if tags.count(tag) > 1)

    def joined(self) -> dict[str, set[tuple[str, int]]]:
        found: dict[str, set[tuple[str, int]]] = {}
        for line in self.services[""]:
            member = re.match(r"routing-instances (\S+) interface (\S+)\.(\d+)", line)
            tag = member and self._value(rf"interfaces {member[2]} unit {member[3]} vlan-id (\d+)")
            if member and tag:
                found.setdefault(member[1], set()).add((member[2], int(tag)))
        return found

    def reached(self) -> dict[int, set[tuple[str, int]]]:
        joined, found = self.joined(), dict[int, set[tuple[str, int]]]()
        for line in self.services[""]:
            number = re.match(r"routing-instances (\S+) (?:protocols vpls vpls-id|vxlan vni) (\d+)", line)
            if number and self._value(rf"routing-instances {number[1]} instance-type (\S+)"):
                found[int(number[2])] = joined.get(number[1], set())
        return found

    def _written(self) -> list[str]:
        off = [f"set interfaces {name} disable" for name, port in self.running.ports.items() if port.down]
        return [*(f"set {line}" for line in self.services[""]), *off]

    def _value(self, pattern: str) -> str | None:
        return next((found[1] for line in self.services[""] if (found := re.fullmatch(pattern, line))), None)
