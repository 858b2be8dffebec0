"""HP/H3C Comware: views instead of modes, ``undo`` instead of ``no``. A trunk carries VLAN 1 by default.

Sources of the output:

- ``save force`` and the questions of ``save``: H3C's command references, and recorded sessions of S5130, S5500, S6800
  and HCL. There are four forms of the message of a successful save. The release and the role of the switch determine
  the form.
- "Failed to save the current configuration": H3C's log message reference (CFG_SAVE_FAILED).
- "Permission denied.": Comware 7's role-based access.

By default, all ports are up and are access ports of VLAN 1.
"""

from collections.abc import Callable
from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.session import FILTERS, CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort, EmulatedSwitch
from support.emulators.terminal import Hangup

MOST_RANGES = 10
"""The maximum number of VLAN ranges in a command."""


class HpComware(EmulatedSwitch):
    """A 5900 switch."""

    platform = "hp_comware"
    port_names = (*(f"Ten-GigabitEthernet1/0/{n}" for n in range(1, 9)), "Bridge-Aggregation1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(allowed={1})
    default_name = "VLAN 0001"
    more = "---- More ----"
    unauthorized = "Permission denied."
    filters: ClassVar = {name: FILTERS[name] for name in ("include", "exclude", "begin")}
    saved_variants = (
        "Validating file. Please wait....\nConfiguration is saved to device successfully.\n",
        (
            "Validating file. Please wait..................\n"
            "The current configuration is saved to the active main board successfully.\n"
            "Configuration is saved to device successfully.\n"
        ),
        (
            "Validating file. Please wait...\nSaved the current configuration to mainboard device successfully.\n"
            "Slot 1:\nSave next configuration file successfully.\n"
        ),
        (
            "Saving the current configuration to the file. Please wait...\n"
            "Saved the current configuration to mainboard device successfully.\n"
        ),
    )
    save_failures: ClassVar = {
        "failed": "Validating file. Please wait...\nFailed to save the current configuration.\n",
        "no space": "Validating file. Please wait...\nFailed to save the current configuration: not enough space.\n",
        "busy": "The system is busy with saving configuration. Please try again later.\n",
        "permission": "Permission denied.\n",
    }
    saving = "Validating file. Please wait...\n"
    saved = "Saved the current configuration to mainboard device successfully."
    first_mode = "user"
    falls_through: ClassVar = {"vlan": "system", "interface": "system"}

    def become_trunk(self, port: EmulatedPort, allowed: set[int] | None) -> None:
        port.mode, port.allowed = "trunk", set(range(1, 4095)) if allowed is None else allowed

    def configure(self, *lines: str) -> None:
        super().configure("system-view", *lines)

    def prompt(self, session: EmulatedSession) -> str:
        if session.mode == "user":
            return f"<{self.hostname}>"
        context = "".join(session.context[:1]) if session.mode == "interface" else ""
        vlan = f"-vlan{session.context[0]}" if session.mode == "vlan" else ""
        return f"[{self.hostname}{vlan}{'-' if context else ''}{context}]"

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f"{' ' * len(self.prompt(session))}^\n % Unrecognized command found at '^' position."

    @accepts("user", "screen-length disable")
    def no_page(self, session: EmulatedSession) -> None:
        session.page = 0

    @accepts("user", "system-view")
    @accepts("config", "system-view")
    def system_view(self, session: EmulatedSession) -> None:
        session.print_pages("System View: return to User View with Ctrl+Z.")
        session.enter("system")

    @accepts("system", "return", "end")
    def to_user_view(self, session: EmulatedSession) -> None:
        session.enter("user")

    @accepts("system", "quit")
    def quit_system(self, session: EmulatedSession) -> None:
        session.enter("user")

    @accepts("vlan", "quit")
    @accepts("interface", "quit")
    def quit_inner(self, session: EmulatedSession) -> None:
        session.enter("system")

    @accepts("user", "quit", "exit")
    def leave(self, session: EmulatedSession) -> None:
        raise Hangup

    @accepts("user", "save force")
    @accepts("system", "save force")
    def save_force(self, session: EmulatedSession) -> None:
        self.store(session)

    @accepts("user", "save")
    def save_asking(self, session: EmulatedSession) -> None:
        session.later(lambda: self._ask_and_save(session))

    def _ask_and_save(self, session: EmulatedSession) -> None:
        if session.ask("The current configuration will be written to the device. Are you sure? [Y/N]:").upper() != "Y":
            return
        session.ask(
            "Please input the file name(*.cfg)[flash:/startup.cfg]\n"
            "(To leave the existing filename unchanged, press the enter key):"
        )
        if session.ask("flash:/startup.cfg exists, overwrite? [Y/N]:").upper() == "Y":
            self.store(session)

    @accepts("system", "vlan <list...>")
    def vlan(self, session: EmulatedSession, text: str) -> None:
        numbers = self.numbers(text)
        for number in numbers:
            self.running.vlans.setdefault(number, f"VLAN {number:04}")
        if len(numbers) == 1:
            session.enter("vlan", str(*numbers))

    @accepts("vlan", "name <text...>", "description <text...>")
    def vlan_name(self, session: EmulatedSession, text: str) -> None:
        self.running.vlans[int(session.context[0])] = text

    @accepts("system", "undo vlan <list...>")
    def undo_vlan(self, session: EmulatedSession, text: str) -> None:
        numbers = self.numbers(text)
        if 1 in numbers:
            raise CommandRejected(" Error: The default VLAN can't be deleted.")
        for number in numbers:
            self.running.vlans.pop(number, None)

    @accepts("system", "interface <name...>")
    def interface(self, session: EmulatedSession, name: str) -> None:
        try:
            session.enter("interface", self.port(name))
        except CommandRejected:
            raise CommandRejected(
                f"{' ' * len(self.prompt(session))}^\n % Wrong parameter found at '^' position."
            ) from None

    @accepts("interface", "port link-type <kind>")
    def link_type(self, session: EmulatedSession, kind: str) -> None:
        for port in session.ports:
            port.mode, port.allowed = kind, port.allowed if port.mode == kind else {1}

    @accepts("interface", "port access vlan <number>")
    def access(self, session: EmulatedSession, number: str) -> None:
        if any(port.mode != "access" for port in session.ports):
            raise CommandRejected(" Error: The port is not an access port.")
        for port in session.ports:
            port.native = int(number)

    @accepts("interface", "undo port access vlan")
    def undo_access(self, session: EmulatedSession) -> None:
        self.access(session, "1")

    @accepts("interface", "shutdown")
    def shutdown(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.down = True

    @accepts("interface", "undo shutdown")
    def undo_shutdown(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.down = False

    @accepts("interface", "port trunk permit vlan <list...>")
    def permit(self, session: EmulatedSession, text: str) -> None:
        for port in self.trunks(session):
            port.allowed = set(range(1, 4095)) if text == "all" else (port.allowed or set()) | self.numbers(text)

    @accepts("interface", "undo port trunk permit vlan <list...>")
    def undo_permit(self, session: EmulatedSession, text: str) -> None:
        for port in self.trunks(session):
            port.allowed = set() if text == "all" else (port.allowed or set()) - self.numbers(text)

    def trunks(self, session: EmulatedSession) -> list[EmulatedPort]:
        if any(port.mode != "trunk" for port in session.ports):
            raise CommandRejected(" Error: The port is not a trunk port.")
        return session.ports

    def numbers(self, text: str) -> set[int]:
        wrong = CommandRejected(f"{' ' * 20}^\n % Wrong parameter found at '^' position.")
        if len(text.replace(" to ", "-").split()) > MOST_RANGES:
            raise wrong
        try:
            return vlan_lists.parse(text, " to ")
        except ValueError:
            raise wrong from None

    @accepts("user", "display vlan")
    @accepts("system", "display vlan")
    def display_vlan(self, session: EmulatedSession) -> None:
        shown = ["1(default)" if part == "1" else part for part in vlan_lists.ranges(self.running.vlans)]
        if shown[0].startswith("1-"):
            shown[:1] = ["1(default)", *vlan_lists.ranges(set(self.running.vlans) - {1})[:1]]
        rows = [", ".join(shown[start : start + 8]) for start in range(0, len(shown), 8)]
        session.print_pages(f" Total VLANs: {len(self.running.vlans)}\n The VLANs include:\n " + ",\n ".join(rows))

    @accepts("user", "display current-configuration interface")
    @accepts("system", "display current-configuration interface")
    def display_interfaces(self, session: EmulatedSession) -> None:
        session.print_pages("\n".join(["#", *self.interface_lines(), "return"]))

    def interface_lines(self) -> list[str]:
        rows = []
        for name, port in self.running.ports.items():
            rows += [f"interface {name}", *(f" {line}" for line in port.lines), " port link-mode bridge"]
            rows += [" shutdown"] if port.down else []
            if port.native != 1:
                rows.append(f" port {'trunk pvid' if port.mode == 'trunk' else 'access'} vlan {port.native}")
            if port.mode == "trunk":
                permitted = vlan_lists.ranges(port.allowed or (), " to ", shortest=2)
                rows += [
                    " port link-type trunk",
                    *([] if 1 in (port.allowed or ()) else [" undo port trunk permit vlan 1"]),
                ]
                parts = [permitted[start : start + MOST_RANGES] for start in range(0, len(permitted), MOST_RANGES)]
                rows += [f" port trunk permit vlan {' '.join(part)}" for part in parts]
            rows.append("#")
        return rows

    @accepts("user", "display lldp neighbor-information verbose")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    @accepts("user", "display current-configuration")
    @accepts("system", "display current-configuration")
    def display_current(self, session: EmulatedSession) -> None:
        session.print_pages(self.running_config())

    @accepts("user", "display saved-configuration")
    @accepts("system", "display saved-configuration")
    def display_saved(self, session: EmulatedSession) -> None:
        session.print_pages(self.config_of(self.startup))

    def running_config(self) -> str:
        names = [line for n, name in sorted(self.running.vlans.items()) for line in (f"vlan {n}", f" name {name}", "#")]
        return "\n".join([f" sysname {self.hostname}", "#", *names, *self.interface_lines(), "return"])
