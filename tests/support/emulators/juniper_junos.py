"""Juniper Junos with Enhanced Layer 2 Software (ELS), configured over NETCONF."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar

from lxml import etree

from support.emulators import vlan_lists
from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.netconf_server import NetconfSession, RpcFault, command_of
from support.emulators.switch_device import EmulatedPort, SwitchState
from support.emulators.terminal import Channel

LOCK_ERROR = """configuration database locked by:
  {name} terminal p0 (pid 4681) on since 2026-11-20 09:31:02 UTC, idle 00:01:12
      exclusive [edit]"""
LOADED = "<load-configuration-results><ok/></load-configuration-results>"
VLAN = re.compile(r"(set|delete) vlans (\S+)(?: vlan-id (\d+))?")
SWITCHING = re.compile(r"(set|delete) interfaces (\S+) unit 0 family ethernet-switching ?(.*)")


@dataclass
class JunosInterface:
    """An interface's ``unit 0 family ethernet-switching``, as written in the configuration."""

    mode: str | None = None
    members: list[str] = field(default_factory=list)
    native: int | None = None


@dataclass
class JunosConfiguration:
    """A configuration as written on the device."""

    vlans: dict[str, int]
    interfaces: dict[str, JunosInterface]


class Junos(ConfirmTimerSwitch):
    """A switch whose configuration is locked, loaded, committed and confirmed."""

    platform = "juniper_junos"
    port_names = (*(f"ge-0/0/{n}" for n in range(8)), "ae0")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="none", allowed=set())
    subsystem = "netconf"
    capabilities: ClassVar[tuple[str, ...]] = (
        "urn:ietf:params:netconf:base:1.0",
        "urn:ietf:params:netconf:capability:candidate:1.0",
        "urn:ietf:params:netconf:capability:confirmed-commit:1.0",
        "http://xml.juniper.net/netconf/junos/1.0",
    )

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.candidate: JunosConfiguration | None = None
        self.holder: NetconfSession | None = None
        self.revision = 1
        self.revision_time = int(time.time())
        self.comment = ""

    def serve(self, channel: Channel) -> None:
        NetconfSession(self, channel, self.logins).run()

    def request(self, session: NetconfSession, operation: etree._Element) -> str:
        name = operation.tag.replace("-", "_")

        def perform() -> str:
            with self.lock:
                answer = getattr(self, f"do_{name}", None)
                if answer is None:
                    raise RpcFault("syntax error, expecting <rpc> or </rpc>")
                return str(answer(session, operation))

        def refuse(_: object) -> str:
            raise RpcFault("error: syntax error: invalid value")

        return self.with_faults(command_of(operation), perform, refuse)

    def format_text(self, text: str) -> str:
        return text if text.startswith("<") else f"<output>{''.join(filter(str.isprintable, text))}</output>"

    def format_success(self, command: str) -> str:
        return LOADED if command.startswith("load") else "<ok/>"

    def end_session(self, session: NetconfSession) -> None:
        with self.lock:
            if self.holder is session:
                self.holder = self.candidate = None

    # operations of NETCONF

    def do_lock_configuration(self, session: NetconfSession, _: etree._Element) -> str:
        if self.locked_by or self.holder not in (None, session):
            raise RpcFault(LOCK_ERROR.format(name=self.locked_by or "virtcloud"), "lock-denied")
        self.holder = session
        return "<ok/>"

    def do_unlock_configuration(self, session: NetconfSession, _: etree._Element) -> str:
        if self.holder is not session:
            raise RpcFault("Configuration database is not open")
        self.holder = self.candidate = None
        return "<ok/>"

    def do_load_configuration(self, session: NetconfSession, operation: etree._Element) -> str:
        rollback = operation.get("rollback")
        if rollback is not None:
            states = [self.running, *self.history]
            self.candidate = build_configuration(states[int(rollback)])
        else:
            self.candidate = apply_lines(
                self.edited_configuration, operation.findtext("configuration-set", "").splitlines()
            )
        return LOADED

    def do_get_configuration(self, session: NetconfSession, operation: etree._Element) -> str:
        if operation.get("compare"):
            diff = "\n".join(compare(build_configuration(self.running), self.edited_configuration))
            output = f"<configuration-output>\n{diff}\n</configuration-output>"
            return f"<configuration-information>{output}</configuration-information>"
        return render_xml(build_configuration(self.running), self.running.ports)

    def do_commit_configuration(self, session: NetconfSession, operation: etree._Element) -> str:
        state = self.validate(self.edited_configuration)
        minutes = int(operation.findtext("confirm-timeout", "10")) if operation.find("confirmed") is not None else None
        self.activate(state, minutes)
        self.candidate = None
        self.record_revision("" if minutes is None else f"commit confirmed, rollback in {minutes}mins")
        return "<ok/>"

    def do_get_commit_revision_information(self, session: NetconfSession, _: etree._Element) -> str:
        comment = f"<comment>{self.comment}</comment>" if self.comment else ""
        return (
            f"<commit-revision-information><revision>re0-1606000000-{self.revision}</revision><user>admin</user>"
            f'<date-time seconds="{self.revision_time}">2026-11-20 10:00:00 UTC</date-time>{comment}'
            "</commit-revision-information>"
        )

    def do_get_system_uptime_information(self, session: NetconfSession, _: etree._Element) -> str:
        now = f'<date-time seconds="{int(time.time())}">2026-11-20 10:00:00 UTC</date-time>'
        return f"<system-uptime-information><current-time>{now}</current-time></system-uptime-information>"

    def do_get_lldp_neighbors_information(self, session: NetconfSession, _: etree._Element) -> str:
        return self.neighbours()

    # effects of a configuration

    @property
    def edited_configuration(self) -> JunosConfiguration:
        return build_configuration(self.running) if self.candidate is None else self.candidate

    def committed(self) -> None:
        self.save()

    def expire_timer(self) -> None:
        super().expire_timer()
        self.record_revision("")

    def record_revision(self, comment: str) -> None:
        self.revision += 1
        self.revision_time, self.comment = int(time.time()), comment

    def running_config(self) -> str:
        return render_xml(build_configuration(self.running), self.running.ports)

    def validate(self, config: JunosConfiguration) -> SwitchState:
        """Return the state that the switch would have with ``config``. Raise RpcFault for an invalid configuration."""
        for name, number in config.vlans.items():
            if not 1 <= number <= 4094 or list(config.vlans.values()).count(number) > 1:
                raise RpcFault(f"vlan {name}: vlan-id {number} is in use\nconfiguration check-out failed")
        ports = {name: self.port_of(name, config) for name in self.running.ports}
        return SwitchState({1: self.default_name, **{number: name for name, number in config.vlans.items()}}, ports)

    def port_of(self, name: str, config: JunosConfiguration) -> EmulatedPort:
        lines = self.running.ports[name].lines
        interface = config.interfaces.get(name)
        if interface is None:
            return EmulatedPort("none", set(), lines=lines)
        if "all" in interface.members:
            return EmulatedPort(interface.mode or "access", None, interface.native or 1, lines=lines)
        numbers = {number for member in interface.members for number in members_of(member, name, config)}
        if interface.mode == "trunk":
            return EmulatedPort("trunk", numbers, interface.native or 1, lines=lines)
        return EmulatedPort("access", set(), min(numbers, default=1), lines=lines)


def members_of(member: str, port: str, config: JunosConfiguration) -> set[int]:
    if member[0].isdigit():
        return vlan_lists.parse(member)
    if member not in config.vlans:
        raise RpcFault(f"interface {port}.0: vlan {member} is not configured\nconfiguration check-out failed")
    return {config.vlans[member]}


def build_configuration(state: SwitchState) -> JunosConfiguration:
    """Return the configuration for a state. A VLAN without a name is referred to by its VLAN ID."""
    vlans = {name: number for number, name in state.vlans.items() if number > 1}
    interfaces = {}
    for name, port in state.ports.items():
        native = port.native if port.native > 1 else None
        if port.mode == "trunk":
            allowed = ["all"] if port.allowed is None else [state.vlans.get(n, str(n)) for n in sorted(port.allowed)]
            interfaces[name] = JunosInterface("trunk", allowed, native)
        elif port.mode == "access":
            members = [] if native is None else [state.vlans.get(native, str(native))]
            interfaces[name] = JunosInterface("access", members)
    return JunosConfiguration(vlans, interfaces)


def apply_lines(config: JunosConfiguration, lines: list[str]) -> JunosConfiguration:
    """Return a copy of ``config``, changed by ``lines`` (``set`` or ``delete``). Raise RpcFault for an invalid line."""
    config = deepcopy(config)
    for line in lines:
        if match := VLAN.fullmatch(line):
            set_vlan(config, match[1], match[2], match[3])
        elif match := SWITCHING.fullmatch(line):
            set_switching(config, match[1], match[2], match[3])
        elif line.strip():
            raise RpcFault(f"syntax error: {line}")
    return config


def set_vlan(config: JunosConfiguration, verb: str, name: str, number: str | None) -> None:
    if verb == "set":
        config.vlans[name] = int(number or 0)
    elif config.vlans.pop(name, None) is None:
        raise RpcFault("statement not found", severity="warning")


def set_switching(config: JunosConfiguration, verb: str, name: str, rest: str) -> None:
    interface = config.interfaces.get(name)
    if verb == "set":
        interface = config.interfaces.setdefault(name, JunosInterface())
        key, _, value = rest.rpartition(" ")
        if key == "interface-mode":
            interface.mode = value
        elif key == "vlan members":
            interface.members += [] if value in interface.members else [value]
        else:
            raise RpcFault(f"syntax error: {rest}")
    elif interface is None:
        raise RpcFault("statement not found", severity="warning")
    elif not rest:
        del config.interfaces[name]
    elif rest in ("vlan", "vlan members") and interface.members:
        interface.members = []
    elif rest.startswith("vlan members ") and rest.split()[2] in interface.members:
        interface.members.remove(rest.split()[2])
    else:
        raise RpcFault("statement not found", severity="warning")


def compare(before: JunosConfiguration, after: JunosConfiguration) -> Iterator[str]:
    old, new = set(render_lines(before)), set(render_lines(after))
    yield from (f"-  {line}" for line in sorted(old - new))
    yield from (f"+  {line}" for line in sorted(new - old))


def render_lines(config: JunosConfiguration) -> Iterator[str]:
    yield from (f"vlans {name} vlan-id {number};" for name, number in config.vlans.items())
    for name, interface in config.interfaces.items():
        yield f"interfaces {name} interface-mode {interface.mode};"
        yield from (f"interfaces {name} vlan members {member};" for member in interface.members)


def render_xml(config: JunosConfiguration, ports: Iterable[str]) -> str:
    vlans = "".join(
        f"<vlan><name>{name}</name><vlan-id>{number}</vlan-id></vlan>" for name, number in config.vlans.items()
    )
    interfaces = "".join(interface_xml(name, config.interfaces.get(name)) for name in ports)
    return f"<configuration><interfaces>{interfaces}</interfaces><vlans>{vlans}</vlans></configuration>"


def interface_xml(name: str, interface: JunosInterface | None) -> str:
    if interface is None:
        return f"<interface><name>{name}</name></interface>"
    members = "".join(f"<members>{member}</members>" for member in interface.members)
    mode = f"<interface-mode>{interface.mode}</interface-mode>" if interface.mode else ""
    native = f"<native-vlan-id>{interface.native}</native-vlan-id>" if interface.native else ""
    family = f"<family><ethernet-switching>{mode}<vlan>{members}</vlan></ethernet-switching></family>"
    return f"<interface><name>{name}</name>{native}<unit><name>0</name>{family}</unit></interface>"
