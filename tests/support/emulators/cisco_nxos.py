"""Cisco NX-OS. Ports of a Nexus 9000 are routed and shut down by default. There is no ``write memory``.

Sources of the output:

- the output of a successful ``copy running-config startup-config``: the Nexus 9000 configuration guides
- shorter forms of this output: recorded sessions of Nexus 5000 and 9000. The shortest form, which ends after ``100%``,
  is not from a recording: the author remembers this form from a Nexus 5000
- "Configuration update aborted: …": a TAC engineer's article ("timed out"); pyATS ("system not ready"); a tool for
  NX-API ("another request …"); Cisco's Terraform provider ("services in transient state")
- "% Permission denied for the role": the test data of several tools
- "VLAN with the same name exists", printed after the VLAN was created: ncclient and Neutron
"""

from collections.abc import Callable
from typing import ClassVar

from support.emulators.ios_like import TrunkLists
from support.emulators.session import FILTERS, CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort


class CiscoNxos(TrunkLists):
    """A Nexus 9000. Sessions are privileged from the start. Ports are routed until ``switchport``."""

    platform = "cisco_nxos"
    port_names = (*(f"Ethernet1/{n}" for n in range(1, 9)), "port-channel1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="routed")
    first_mode = "exec"
    modes: ClassVar = {"config": "(config)", "vlan": "(config-vlan)", "interface": "(config-if)"}
    short: ClassVar = {"Ethernet": "Eth", "port-channel": "Po"}
    reserved = range(3968, 4095)
    factory_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="routed", down=True)
    unauthorized = "% Permission denied for the role"
    filters: ClassVar = FILTERS
    saving = f"[{'#' * 40}] 100%\n"
    saved = "Copy complete, now saving to disk (please wait)...\nCopy complete."
    saved_variants = (
        f"[{'#' * 40}] 100%\nCopy complete, now saving to disk (please wait)...\n",
        f"[{'#' * 40}] 100%\nCopy complete.\n",
        f"[{'#' * 40}] 100%\n",
    )
    save_failures: ClassVar = {
        "timed out": f"[{'#' * 40}]  99%Configuration update aborted: timed out\n",
        "busy": "Configuration update aborted: another request for config change is already in progress\n",
        "not ready": "Configuration update aborted: system not ready\n",
        "transient": ("Configuration update aborted: services in transient state, wait for the system to stabilize\n"),
        "permission": "% Permission denied for the role\n",
    }

    @accepts("exec", "copy running-config startup-config")
    def write_memory(self, session: EmulatedSession) -> None:
        self.store(session)

    @accepts("vlan", "name <text>")
    def vlan_name(self, session: EmulatedSession, text: str) -> None:
        if any(name == text and str(number) not in session.context for number, name in self.running.vlans.items()):
            raise CommandRejected("ERROR: VLAN with the same name exists")
        super().vlan_name(session, text)

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f"{' ' * (len(self.prompt(session)) + 1)}^\n% Invalid command at '^' marker."

    @accepts("exec", "configure terminal")
    def configure_terminal(self, session: EmulatedSession) -> None:
        session.print_pages("Enter configuration commands, one per line. End with CNTL/Z.")
        session.enter("config")

    def creatable(self, text: str) -> set[int]:
        numbers = self.numbers(text)
        if numbers & set(self.reserved):
            raise CommandRejected(f"ERROR: VLAN {min(numbers & set(self.reserved))} is reserved for internal use")
        return numbers

    @accepts("interface", "no switchport")
    def no_switchport(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.mode = "routed"

    @accepts("interface", "switchport mode <mode>")
    def switchport_mode(self, session: EmulatedSession, mode: str) -> None:
        for port in session.ports:
            if port.mode == "routed":
                raise CommandRejected("ERROR: Ethernet: Port is not in Layer-2 mode")
            port.mode = mode

    @accepts("exec", "show system vlan reserved")
    def show_reserved(self, session: EmulatedSession) -> None:
        session.print_pages(
            "system current running vlan reservation: 3968-4094\nsystem future running vlan reservation: 3968-4094"
        )

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        session.print_pages(
            f"\n!Command: show running-config\n!Time: Fri Nov 20 10:00:00 2026\n\n{self.running_config()}"
        )

    @accepts("exec", "show running-config interface")
    def show_running_interface(self, session: EmulatedSession) -> None:
        head = [
            "",
            "!Command: show running-config interface",
            "!Time: Fri Nov 20 10:00:00 2026",
            "",
            "version 9.3(8) Bios:version",
            "",
        ]
        session.print_pages("\n".join([*head, *self.interface_lines()]))

    def interface_lines(self, indent: str = "  ", default_mode: str = "access") -> list[str]:
        rows = []
        for name, port in self.running.ports.items():
            rows += ["", f"interface {name}", *(f"{indent}{line}" for line in port.lines)]
            rows += [] if port.mode == "routed" else [f"{indent}switchport"]
            rows += [] if port.mode in ("routed", default_mode) else [f"{indent}switchport mode {port.mode}"]
            rows += self.untagged_lines(indent, port)
            rows += self.allowed_lines(indent, port.allowed)
            rows += [f"{indent}shutdown"] if port.down and port.mode != "routed" else []
        return rows

    @accepts("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    def running_config(self) -> str:
        names = [
            line for n, name in sorted(self.running.vlans.items()) if n > 1 for line in (f"vlan {n}", f"  name {name}")
        ]
        return "\n".join([f"hostname {self.hostname}", *names, *self.interface_lines()])
