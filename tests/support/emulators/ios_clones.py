"""Switches that resemble IOS and have no dialect. Each class imitates one or two differences from IOS.

The differences come from vendors' references and Netmiko's drivers:

- Dell N-Series: errors without a percent sign, "Configuration Saved!"
- Cisco 300 and 350: a save that asks for confirmation; an empty reply means "no"
- Ruijie: port names with a space, ``show vlan`` instead of ``show vlan brief``, and ``allowed vlan none`` is refused
- D-Link and Zyxel: other forms of VLAN lists
- further switches: paging that cannot be turned off
"""

import re
from collections.abc import Callable
from typing import ClassVar

from support.emulators.cisco_ios import CiscoIos
from support.emulators.ios_like import TrunkLists
from support.emulators.session import CommandRejected, EmulatedSession, accepts


class PlainErrors(CiscoIos):
    """Refuses wrong lines and empty VLAN lists, with an error message that the dialect of IOS does not recognize."""

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return "An invalid interface has been used for this function."

    @accepts("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: EmulatedSession) -> None:
        raise CommandRejected("")


class NoEmptyList(CiscoIos):
    """Refuses an empty list of allowed VLANs, with the message that IOS prints for an unknown line."""

    @accepts("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: EmulatedSession) -> None:
        raise CommandRejected("")


class NoneIsAll(CiscoIos):
    """Treats an empty list of allowed VLANs as a list of all VLANs."""

    @accepts("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: EmulatedSession) -> None:
        TrunkLists.allow_all(self, session)


class AddReplaces(CiscoIos):
    """Treats the argument of ``add`` as the complete list."""

    @accepts("interface", "switchport trunk allowed vlan add <list>")
    def allow_more(self, session: EmulatedSession, text: str) -> None:
        TrunkLists.allow_only(self, session, text)


class RangesOfThree(CiscoIos):
    """Accepts three ranges in a line, and ignores further ranges without a message."""

    def numbers(self, text: str) -> set[int]:
        return super().numbers(",".join(text.split(",")[:3]))


class SpacedPorts(CiscoIos):
    """Shows ports as ``GigabitEthernet 1/0/1``."""

    def running_config(self) -> str:
        return re.sub(r"(?m)^(interface [A-Za-z]+-?[A-Za-z]*)(\d)", r"\1 \2", super().running_config())


class AllListed(CiscoIos):
    """Shows the explicit list 1-4094 for a trunk that allows all VLANs."""

    def allowed_lines(self, indent: str, allowed: set[int] | None) -> list[str]:
        return super().allowed_lines(indent, set(range(1, 4095)) if allowed is None else allowed)


class NoBriefTable(CiscoIos):
    """Has ``show vlan`` but not ``show vlan brief``."""

    @accepts("exec", "show vlan brief")
    def show_vlan_brief(self, session: EmulatedSession) -> None:
        raise CommandRejected("")


class OtherSuccess(CiscoIos):
    """Prints a text other than ``[OK]`` after a save."""

    saved = "Configuration Saved!"


class AskingSave(CiscoIos):
    """Asks before it overwrites the startup configuration. An empty reply means "no"."""

    @accepts("exec", "write memory", "write")
    def write_memory(self, session: EmulatedSession) -> None:
        session.later(lambda: self._ask(session))

    def _ask(self, session: EmulatedSession) -> None:
        if session.ask("Overwrite file [startup-config].... (Y/N)[N] ?").strip().upper() == "Y":
            self.store(session)


class AlwaysPaging(CiscoIos):
    """Accepts ``terminal length 0``, but still prints page by page."""

    page: ClassVar = 10

    @accepts("user", "terminal length <lines>")
    @accepts("exec", "terminal length <lines>")
    def terminal_length(self, session: EmulatedSession, lines: str) -> None:
        """Change nothing."""


class NoFilters(CiscoIos):
    """Has no output filters."""

    filters: ClassVar[dict[str, Callable[[str, str], str]]] = {}


CLONES: dict[str, type[CiscoIos]] = {
    kind.__name__: kind
    for kind in (
        PlainErrors,
        NoEmptyList,
        NoneIsAll,
        AddReplaces,
        RangesOfThree,
        SpacedPorts,
        AllListed,
        NoBriefTable,
        OtherSuccess,
        AskingSave,
        AlwaysPaging,
        NoFilters,
    )
}
