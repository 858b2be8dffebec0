"""Cisco IOS-XR over NETCONF, with its configuration as text."""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar

from lxml import etree

from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.netconf_server import NetconfSession, RpcFault, command_of
from support.emulators.switch_device import EmulatedPort, SwitchState
from support.emulators.terminal import Channel

LOCK_ERROR = "<error-info><session-id>146959354</session-id></error-info>"
CLI = 'xmlns="http://cisco.com/ns/yang/Cisco-IOS-XR-cli-cfg"'


@dataclass
class XrConfiguration:
    """A configuration as written on the device: subinterfaces with lines, and bridge domains with interfaces."""

    subinterfaces: dict[str, list[str]] = field(default_factory=dict)
    domains: dict[tuple[str, str], list[str]] = field(default_factory=dict)


class LockDenied(RpcFault):
    """Another session holds the lock. The error identifies that session only by its number."""

    def xml(self) -> str:
        head = "<error-type>application</error-type><error-tag>lock-denied</error-tag>"
        return f"<rpc-error>{head}<error-severity>error</error-severity>{LOCK_ERROR}</rpc-error>"


class CiscoXr(ConfirmTimerSwitch):
    """A router. When a session ends, the router reverts the session's unconfirmed commit."""

    platform = "cisco_iosxr"
    port_names = (*(f"GigabitEthernet0/0/0/{n}" for n in range(8)), "Bundle-Ether1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="trunk", allowed=set())
    subsystem = "netconf"
    capabilities: ClassVar[tuple[str, ...]] = (
        "urn:ietf:params:netconf:base:1.0",
        "urn:ietf:params:netconf:base:1.1",
        "urn:ietf:params:netconf:capability:candidate:1.0",
        "urn:ietf:params:netconf:capability:rollback-on-error:1.0",
        "urn:ietf:params:netconf:capability:confirmed-commit:1.1",
    )

    def __init__(self, detects_session_end: bool = True, **options: object) -> None:
        """Create a router. If ``detects_session_end`` is False, the router does not detect the end of a session."""
        super().__init__(**options)
        self.detects_session_end = detects_session_end
        self.candidate: XrConfiguration | None = None
        self.holder: NetconfSession | None = None
        self.committer: NetconfSession | None = None

    def serve(self, channel: Channel) -> None:
        NetconfSession(self, channel, self.logins).run()

    def request(self, session: NetconfSession, operation: etree._Element) -> str:
        def perform() -> str:
            with self.lock:
                answer = getattr(self, f"do_{operation.tag.replace('-', '_')}", None)
                if answer is None:
                    raise RpcFault("operation not supported", "operation-not-supported")
                return str(answer(session, operation))

        def refuse(_: object) -> str:
            raise RpcFault("!! SYNTAX/AUTHORIZATION ERRORS: invalid input", "invalid-value")

        return self.with_faults(command_of(operation), perform, refuse)

    def format_success(self, command: str) -> str:
        return "<ok/>"

    def format_text(self, text: str) -> str:
        return text if text.startswith("<") else render_data("".join(filter(str.isprintable, text)))

    def end_session(self, session: NetconfSession) -> None:
        with self.lock:
            if self.committer is session and self.detects_session_end:
                self.expire_timer()
            if self.holder is session and self.detects_session_end:
                self.holder = self.candidate = None

    # operations of NETCONF

    def do_lock(self, session: NetconfSession, _: etree._Element) -> str:
        if self.locked_by or self.holder not in (None, session) or self.committer not in (None, session):
            raise LockDenied("")
        self.holder = session
        return "<ok/>"

    def do_unlock(self, session: NetconfSession, _: etree._Element) -> str:
        if self.holder is not session:
            raise LockDenied("")
        self.holder = self.candidate = None
        return "<ok/>"

    def do_get_config(self, session: NetconfSession, operation: etree._Element) -> str:
        if operation.find("filter/cli") is None:
            raise RpcFault("expected a filter for text", "invalid-value")
        return render_data(self.running_config())

    def do_get(self, session: NetconfSession, operation: etree._Element) -> str:
        return f"<data>{self.neighbours()}</data>"

    def do_edit_config(self, session: NetconfSession, operation: etree._Element) -> str:
        self.candidate = apply_lines(self.edited_configuration, operation.findtext("config/cli", "").splitlines())
        return "<ok/>"

    def do_get_cli_config_diff(self, session: NetconfSession, _: etree._Element) -> str:
        before, after = set(render_text(build_configuration(self.running))), set(render_text(self.edited_configuration))
        lines = [*(f"- {line}" for line in sorted(before - after)), *(f"+ {line}" for line in sorted(after - before))]
        return f"<cli-config-diff>{chr(10).join(lines) or ' '}</cli-config-diff>"

    def do_discard_changes(self, session: NetconfSession, _: etree._Element) -> str:
        self.candidate = None
        return "<ok/>"

    def do_commit(self, session: NetconfSession, operation: etree._Element) -> str:
        if self.committer not in (None, session):
            raise LockDenied("")
        state = self.validate(self.edited_configuration)
        seconds = operation.findtext("confirm-timeout", "600") if operation.find("confirmed") is not None else None
        self.activate(state, None if seconds is None else int(seconds) / 60)
        self.committer = None if seconds is None else session
        self.candidate = None
        return "<ok/>"

    def do_cancel_commit(self, session: NetconfSession, _: etree._Element) -> str:
        if self.committer is not session:
            raise RpcFault("no confirmed commit in progress")
        super().expire_timer()
        self.committer = None
        return "<ok/>"

    # effects of a configuration

    def expire_timer(self) -> None:
        super().expire_timer()
        self.holder = self.committer = self.candidate = None

    @property
    def edited_configuration(self) -> XrConfiguration:
        return build_configuration(self.running) if self.candidate is None else self.candidate

    def committed(self) -> None:
        self.committer = None
        self.save()

    def running_config(self) -> str:
        # the ports have no line "shutdown", because an administrator enabled them
        ports = [row for name in self.port_names for row in (f"interface {name}", " mtu 9216", "!")]
        return "\n".join(
            ["!! IOS XR Configuration 7.5.2", *ports, *render_text(build_configuration(self.running)), "end"]
        )

    def validate(self, config: XrConfiguration) -> SwitchState:
        """Return the effect of a configuration. Raise RpcFault for an invalid configuration."""
        named = {name: number for number, name in self.running.vlans.items()}
        vlans = {1: self.default_name}
        ports = {name: EmulatedPort("trunk", set(), lines=port.lines) for name, port in self.running.ports.items()}
        for (_, domain), members in config.domains.items():
            match = re.fullmatch(r"vc-(\d+)", domain)
            vlans[int(match[1]) if match else named[domain]] = domain
            if invalid := [member for member in members if " l2transport" not in config.subinterfaces.get(member, [])]:
                raise RpcFault(f"'L2VPN' detected the 'warning' condition: {invalid[0]} is not l2transport")
        for name, lines in config.subinterfaces.items():
            port, _, _ = name.partition(".")
            if " encapsulation untagged" in lines:
                join(ports[port], [domain for (_, domain), members in config.domains.items() if name in members])
                continue
            number = int(next(line.split()[2] for line in lines if "dot1q" in line))
            if " l2transport" in lines:
                ports[port].allowed.add(number)
            else:
                ports[port].native, ports[port].mode = number, "access"
        return SwitchState(vlans, ports)


def join(port: EmulatedPort, domains: list[str]) -> None:
    """Make a port an access port of its bridge domain's VLAN. Without a bridge domain, leave the port unchanged."""
    for domain in domains:
        port.mode, port.native = "access", int(domain.removeprefix("vc-"))


def render_data(text: str) -> str:
    return f"<data><cli {CLI}>{text}\n</cli></data>"


def build_configuration(state: SwitchState) -> XrConfiguration:
    """Return the configuration for a state.

    A port becomes a routed subinterface if its native VLAN is neither VLAN 1 nor a VLAN with a name ``vc-…``.
    """
    config = XrConfiguration()
    for number, name in state.vlans.items():
        if number > 1:
            config.domains["virtcloud" if name.startswith("vc-") else "others", name] = []
    for port, port_state in state.ports.items():
        bridged = state.vlans.get(port_state.native, "")
        if port_state.native > 1 and bridged.startswith("vc-"):
            config.subinterfaces[f"{port}.4095"] = [" l2transport", " encapsulation untagged"]
            config.domains["virtcloud", bridged].append(f"{port}.4095")
        elif port_state.native > 1:
            config.subinterfaces[f"{port}.{port_state.native}"] = [f" encapsulation dot1q {port_state.native}"]
        for number in sorted(port_state.allowed or ()):
            name = f"{port}.{number}"
            pop = " rewrite ingress tag pop 1 symmetric"
            config.subinterfaces[name] = [" l2transport", f" encapsulation dot1q {number}", pop]
            domain = state.vlans.get(number)
            if domain:
                config.domains["virtcloud" if domain.startswith("vc-") else "others", domain].append(name)
    return config


def render_text(config: XrConfiguration) -> Iterator[str]:
    for name, lines in config.subinterfaces.items():
        yield f"interface {name}{' l2transport' if ' l2transport' in lines else ''}"
        yield from (line for line in lines if line != " l2transport")
        yield "!"
    if config.domains:
        yield "l2vpn"
    for (group, domain), members in sorted(config.domains.items()):
        yield from (f" bridge group {group}", f"  bridge-domain {domain}")
        yield from (row for member in sorted(members) for row in (f"   interface {member}", "   !"))
        yield from ("  !", " !")
    if config.domains:
        yield "!"


def apply_lines(config: XrConfiguration, lines: list[str]) -> XrConfiguration:
    """Return the configuration after all lines were applied. Raise RpcFault for an invalid line.

    Indentation and ``!`` have no meaning. A line is applied in the mode of the previous line, or in an outer mode.
    """
    config = deepcopy(config)
    modes: list[str] = []
    for line in map(str.strip, lines):
        if line == "root":
            modes = []
        elif line not in ("", "!"):
            modes = modes_after(config, modes, line)
    return config


def modes_after(config: XrConfiguration, modes: list[str], line: str) -> list[str]:
    for depth in range(len(modes), -1, -1):
        path = [*modes[:depth], line]
        if apply_line(config, " / ".join(path)):
            return path if re.match("interface|l2vpn|bridge", line) else modes[:depth]
    raise RpcFault(f"invalid input: {line}", "invalid-value")


def apply_line(config: XrConfiguration, path: str) -> bool:
    """Apply a line. ``path`` consists of the modes and the line. Return False for an unknown line."""
    domain = r"l2vpn / bridge group (\S+) / bridge-domain (\S+)"
    if match := re.fullmatch(r"interface (\S+\.\d+) l2transport", path):
        config.subinterfaces.setdefault(match[1], [" l2transport"])
    elif match := re.fullmatch(r"interface (\S+) l2transport / ((?:encapsulation|rewrite) .*)", path):
        others = [line for line in config.subinterfaces[match[1]] if line.split()[0] != match[2].split()[0]]
        config.subinterfaces[match[1]] = [*others, f" {match[2]}"]
    elif match := re.fullmatch(r"no interface (\S+\.\d+)", path):
        config.subinterfaces.pop(match[1], None)
    elif match := re.fullmatch(r"l2vpn / bridge group (\S+) / no bridge-domain (\S+)", path):
        config.domains.pop((match[1], match[2]), None)
    elif match := re.fullmatch(domain, path):
        config.domains.setdefault((match[1], match[2]), [])
    elif match := re.fullmatch(domain + r" / (no )?interface (\S+)", path):
        members = config.domains[match[1], match[2]]
        members[:] = [member for member in members if member != match[4]] + ([] if match[3] else [match[4]])
    else:
        return re.fullmatch(r"l2vpn(?: / bridge group \S+)?", path) is not None
    return True
