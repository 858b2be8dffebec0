"""IOS-like switches that no dialect was written for: each differs from IOS in one thing that other vendors do.

The differences are those of vendors' IOS-like command lines, as their references and Netmiko's drivers show them: Dell
N-Series (errors without a percent sign, "Configuration Saved!"), Cisco 300 and 350 (a save that asks, with no as the
default), Ruijie (names of ports with a space, ``show vlan`` only, no empty list), D-Link and Zyxel (lists in other
forms), and switches whose paging cannot be turned off.
"""

import re
from collections.abc import Callable
from typing import ClassVar

from emulators.cisco_ios import CiscoIos
from emulators.grammar import says
from emulators.industry import TrunkLists
from emulators.switch import Rejected, Session


class PlainErrors(CiscoIos):
    """Refuses without any sign that a dialect of IOS knows."""

    def invalid(self, session: Session, line: str) -> str:
        return "An invalid interface has been used for this function."

    @says("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: Session) -> None:
        raise Rejected("")


class NoEmptyList(CiscoIos):
    """Has no empty list; IOS's words for a line that is not understood."""

    @says("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: Session) -> None:
        raise Rejected("")


class NoneIsAll(CiscoIos):
    """Takes an empty list for no restriction."""

    @says("interface", "switchport trunk allowed vlan none")
    def allow_none(self, session: Session) -> None:
        TrunkLists.allow_all(self, session)


class AddReplaces(CiscoIos):
    """Takes ``add`` as the whole list."""

    @says("interface", "switchport trunk allowed vlan add <list>")
    def allow_more(self, session: Session, text: str) -> None:
        TrunkLists.allow_only(self, session, text)


class RangesOfThree(CiscoIos):
    """Understands three ranges in a line, and leaves out the others without a word."""

    def numbers(self, text: str) -> set[int]:
        return super().numbers(",".join(text.split(",")[:3]))


class SpacedPorts(CiscoIos):
    """Shows ports as ``GigabitEthernet 1/0/1``."""

    def running_config(self) -> str:
        return re.sub(r"(?m)^(interface [A-Za-z]+-?[A-Za-z]*)(\d)", r"\1 \2", super().running_config())


class AllListed(CiscoIos):
    """Shows a trunk of all VLANs with its list, 1-4094."""

    def allowed_lines(self, indent: str, allowed: set[int] | None) -> list[str]:
        return super().allowed_lines(indent, set(range(1, 4095)) if allowed is None else allowed)


class NoBriefTable(CiscoIos):
    """Has ``show vlan`` and not ``show vlan brief``."""

    @says("exec", "show vlan brief")
    def show_vlan_brief(self, session: Session) -> None:
        raise Rejected("")


class OtherSuccess(CiscoIos):
    """Saves with other words than ``[OK]``."""

    saved = "Configuration Saved!"


class AskingSave(CiscoIos):
    """Asks before it overwrites the startup configuration; whoever only presses Enter says no."""

    @says("exec", "write memory", "write")
    def write_memory(self, session: Session) -> None:
        session.later(lambda: self._ask(session))

    def _ask(self, session: Session) -> None:
        if session.ask("Overwrite file [startup-config].... (Y/N)[N] ?").strip().upper() == "Y":
            self.store(session)


class AlwaysPaging(CiscoIos):
    """Takes ``terminal length 0`` and goes on paging."""

    page: ClassVar = 10

    @says("user", "terminal length <lines>")
    @says("exec", "terminal length <lines>")
    def terminal_length(self, session: Session, lines: str) -> None:
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
