"""Cisco IOS and IOS-XE.

Sources of the output:

- ``write memory``: the comments and test data of Netspoc-Approve (its IOS device driver). They contain two forms of
  success, the errors "Device or resource busy" and "too large for nvram", and the question whether to overwrite an
  NVRAM that another image wrote
- ``copy running-config startup-config`` with its question: recorded lab sessions
- "Permission denied" and "No space left on device" after ``%Error opening nvram:/startup-config``: the test data of two
  configuration tools
- "Command authorization failed": TACACS+ setups
- "VTP VLAN configuration not allowed when device is in CLIENT mode.": published sessions
- the defaults of ports (dynamic auto, access and native VLAN 1, all VLANs allowed, not shut down): the Catalyst 2960-X
  and 9300 VLAN and VTP configuration guides
- the VLANs after a reboot (``vlan.dat`` in VTP server and client mode, the startup configuration in transparent mode):
  the same guides
"""

from collections.abc import Callable
from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.ios_like import TrunkLists
from support.emulators.session import FILTERS, CommandRejected, EmulatedSession, accepts, section
from support.emulators.switch_device import EmulatedPort, SwitchState


class CiscoIos(TrunkLists):
    """A Catalyst. After the line ``vlan 112``, VLAN 112 does not exist yet.

    The switch creates the VLAN when it accepts the line ``name``, or when the session leaves the mode of the VLAN.

    Each routed port uses a VLAN ID; the first of these IDs is 1006.
    """

    platform = "cisco_ios"
    port_names = (*(f"GigabitEthernet1/0/{n}" for n in range(1, 9)), "Port-channel1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="dynamic")
    denied = "% Bad secrets\n"
    unauthorized = "Command authorization failed.\n"
    filters: ClassVar = FILTERS
    saving = "Building configuration...\n"
    saved = "[OK]"
    saved_variants = ("Building configuration...\nCompressed configuration from 22772 bytes to 7054 bytes[OK]\n",)
    save_failures: ClassVar = {
        "busy": "startup-config file open failed (Device or resource busy)\n",
        "too large": (
            "Building configuration...\nCompressed configuration is too large for nvram\nTruncate config?? [no]:"
        ),
        "no space": "%Error opening nvram:/startup-config (No space left on device)\n",
        "permission": "%Error opening nvram:/startup-config (Permission denied)\n",
    }
    save_questions: ClassVar = {
        "other image": (
            "Warning: Attempting to overwrite an NVRAM configuration previously written\n"
            "by a different version of the system image.\nOverwrite the previous NVRAM configuration?[confirm]"
        ),
    }
    legacy: ClassVar = {
        1002: ("fddi-default", "act/unsup"),
        1003: ("token-ring-default", "act/unsup"),
        1004: ("fddinet-default", "act/unsup"),
        1005: ("trnet-default", "act/unsup"),
    }

    @accepts("exec", "write memory", "write")
    def write_memory(self, session: EmulatedSession) -> None:
        self.store(session)

    @accepts("exec", "copy running-config startup-config")
    def copy_to_startup(self, session: EmulatedSession) -> None:
        session.later(lambda: self._copy(session))

    def _copy(self, session: EmulatedSession) -> None:
        if session.ask("Destination filename [startup-config]? ").strip() in ("", "startup-config"):
            self.store(session)

    def __init__(self, *, vtp: str = "transparent", encapsulation_first: bool = False, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.vtp, self.encapsulation_first = vtp, encapsulation_first
        self.internal = {1006: "GigabitEthernet1/0/8"}

    def interface_lines(self, indent: str = " ", default_mode: str = "dynamic") -> list[str]:
        return super().interface_lines(indent, default_mode)

    def is_access(self, port: EmulatedPort) -> bool:
        return port.mode in ("access", "dynamic")

    @accepts("exec", "configure terminal")
    def configure_terminal(self, session: EmulatedSession) -> None:
        session.print_pages("Enter configuration commands, one per line.  End with CNTL/Z.")
        session.enter("config")

    @accepts("config", "vlan <list>")
    def vlan(self, session: EmulatedSession, text: str) -> None:
        """Enter the mode of VLANs, and record the new VLANs as pending.

        The switch creates pending VLANs at the line ``name``, or when the session leaves this mode.
        """
        self._refuse_as_vtp_client()
        numbers = self.numbers(text)
        if numbers & set(range(1002, 1006)):
            raise CommandRejected(
                f"Command rejected: Bad VLAN list - VLAN ID {min(numbers & set(range(1002, 1006)))} is reserved."
            )
        session.enter("vlan", *map(str, sorted(numbers)))
        session.pending = numbers - set(self.running.vlans)

    @accepts("config", "no vlan <list>")
    def no_vlan(self, session: EmulatedSession, text: str) -> None:
        self._refuse_as_vtp_client()
        super().no_vlan(session, text)

    def _refuse_as_vtp_client(self) -> None:
        if self.vtp == "client":
            raise CommandRejected("VTP VLAN configuration not allowed when device is in CLIENT mode.")

    @accepts("vlan", "name <text>")
    def vlan_name(self, session: EmulatedSession, text: str) -> None:
        """Set the name of a VLAN. A new VLAN is not created if another VLAN has the same name.

        The error message was neither taken from a published source nor checked on a device.
        """
        other = next((number for number, name in self.running.vlans.items() if name == text), None)
        if other is not None and str(other) not in session.context:
            session.pending = set()
            raise CommandRejected(f"%VLAN #{other} and #{session.context[0]} have an identical name: {text}")
        self._commit(session)
        super().vlan_name(session, text)

    def leave_mode(self, session: EmulatedSession) -> None:
        self._commit(session)

    def booted(self, state: SwitchState) -> SwitchState:
        """Return the running configuration after a reboot. ``state`` is a copy of the startup configuration.

        In VTP server and client mode, the VLANs come from ``vlan.dat``, which contains them even without a save.
        """
        if self.vtp != "transparent":
            state.vlans = {number: name for number, name in self.running.vlans.items() if number <= 1005}
        return state

    def _commit(self, session: EmulatedSession) -> None:
        wanted, session.pending = session.pending, set()
        taken = wanted & set(self.internal)
        extended = {number for number in wanted if number > 1005} if self.vtp != "transparent" else set()
        for number in wanted - taken - extended:
            self.running.vlans[number] = f"VLAN{number:04}"
        if taken or extended:
            why = (
                "VLAN(s) not available in Port Manager."
                if taken
                else "Extended VLAN(s) not allowed in current VTP mode."
            )
            failed = vlan_lists.format_list(taken or extended)
            session.print_pages(
                f"% Failed to create VLANs {failed}\n{why}\n%Failed to commit extended VLAN(s) changes.\n"
            )

    @accepts("interface", "switchport trunk encapsulation <kind>")
    def encapsulation(self, session: EmulatedSession, kind: str) -> None:
        if not self.encapsulation_first:
            raise CommandRejected("")
        for port in session.ports:
            port.lines.append(f"switchport trunk encapsulation {kind}")

    @accepts("interface", "switchport mode <mode>")
    def switchport_mode(self, session: EmulatedSession, mode: str) -> None:
        for port in session.ports:
            if (
                mode == "trunk"
                and self.encapsulation_first
                and "switchport trunk encapsulation dot1q" not in port.lines
            ):
                raise CommandRejected(
                    'Command rejected: An interface whose trunk encapsulation is "Auto" '
                    'can not be configured to "trunk" mode.'
                )
            port.mode = mode

    @accepts("exec", "show vlan internal usage")
    def show_internal(self, session: EmulatedSession) -> None:
        rows = [f"{number} {user}" for number, user in self.internal.items()]
        session.print_pages("\n".join(["", "VLAN Usage", "---- --------------------", *rows, ""]))

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        session.print_pages(f"Building configuration...\n\n{self.running_config()}")

    @accepts("exec", "show running-config interface <name...>")
    def show_running_interface(self, session: EmulatedSession, name: str) -> None:
        block = section("\n".join(self.interface_lines()), f"^interface {self.port(name)}$")
        session.print_pages(
            f"Building configuration...\n\nCurrent configuration : {len(block)} bytes\n!\n{block}\nend\n"
        )

    @accepts("exec", "show startup-config")
    def show_startup(self, session: EmulatedSession) -> None:
        text = self.config_of(self.startup)
        session.print_pages(f"Using {len(text)} out of 524288 bytes\n!\n{text}")

    @accepts("exec", "show vlan")
    def show_vlan(self, session: EmulatedSession) -> None:
        heads = "VLAN Type  SAID       MTU   Parent RingNo BridgeNo Stp  BrdgMode Trans1 Trans2"
        bars = "---- ----- ---------- ----- ------ ------ -------- ---- -------- ------ ------"
        rows = [
            f"{n:<4} enet  {100000 + n:<10} 1500  -      -      -        -    -        0      0   "
            for n in sorted(self.running.vlans)
        ]
        session.print_pages("\n".join(["", self.vlan_table(), "", heads, bars, *rows, ""]))

    @accepts("exec", "show interfaces switchport")
    def show_switchport(self, session: EmulatedSession) -> None:
        rows = []
        for name, port in self.running.ports.items():
            allowed = (
                "ALL"
                if port.allowed is None
                else ",\n     ".join(vlan_lists.wrap_list(port.allowed, "", "", 55)) or "NONE"
            )
            named = self.running.vlans.get(port.native, "Inactive")
            native = self.running.vlans.get(port.trunk_native, "Inactive")
            mode = {"access": "static access", "dynamic": "dynamic auto"}.get(port.mode, port.mode)
            working = "down" if port.down else mode.replace("dynamic auto", "static access")
            rows += [
                f"Name: {self.shortened(name)}",
                "Switchport: Enabled",
                f"Administrative Mode: {mode}",
                f"Operational Mode: {working}",
                "Administrative Trunking Encapsulation: dot1q",
                f"Access Mode VLAN: {port.native} ({named})",
                f"Trunking Native Mode VLAN: {port.trunk_native} ({native})",
                f"Trunking VLANs Enabled: {allowed}",
                "Pruning VLANs Enabled: 2-1001",
                "",
            ]
        session.print_pages("\n".join(rows))

    @accepts("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    def running_config(self) -> str:
        vlans = [f"vlan {number}\n name {name}\n!" for number, name in sorted(self.running.vlans.items()) if number > 1]
        head = [f"hostname {self.hostname}", "!", f"vtp mode {self.vtp}", "!"]
        return "\n".join([*head, *(vlans if self.vtp == "transparent" else []), *self.interface_lines(), "end"])
