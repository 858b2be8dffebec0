"""The driver for switches with a candidate configuration: load, compare, commit for a while, read back, confirm.

A difference is applied wholly or not at all. What was committed is taken back by the device itself unless it is
confirmed within :data:`REVERT_IN` seconds, so a service that dies in between leaves what was there before; and it is
confirmed only when what was asked for was read back.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import SwitchCapabilities, SwitchScope
from sbf_service.drivers.switch.command_rendering import NOTHING_DONE, find_port
from sbf_service.drivers.switch.dialect import Commands, PortNames, PortReading, RestorableLine, SwitchReading
from sbf_service.drivers.switch.observed_state import derive_observed_state
from sbf_service.drivers.transport.device_session import DetectsSessionLoss, close_lost_session
from sbf_service.log import get_log
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved

log = get_log(__name__)

REVERT_AFTER_S = 120
"""Seconds until a device takes back what was not confirmed; Junos counts in minutes."""
QUOTED_CHARACTERS = 300


class CandidateSession(Protocol):
    """A device's configuration store. Connects when first used, again after :meth:`close`.

    It raises Unreachable when the device is silent, ends the session or is being configured by somebody else, Refused
    when it says no. After Unreachable the session is closed: what was not confirmed is then taken back by the device.
    """

    def show(self) -> Sequence[str]:
        """Give what the active configuration says of VLANs and ports.

        Raises Unreachable while a commit of another session waits to be confirmed: it may vanish again.
        """

    def load(self, lines: Sequence[str]) -> str:
        """Keep others out, put lines into the candidate, and give the device's comparison; activates nothing."""

    def commit(self) -> None:
        """Activate the candidate for :data:`REVERT_IN` seconds."""

    def confirm(self) -> None:
        """Confirm the commit and unlock; the commit survives a restart, unless the session :class:`SavesApart`."""

    def take_back(self) -> None:
        """Throw the candidate away, or what was committed and not confirmed, and let others in."""

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""


@runtime_checkable
class QueriesNeighbours(Protocol):
    """A session that can be asked for the device's neighbours (LLDP)."""

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Give all that are heard; raises ValueError with what is not understood."""


@runtime_checkable
class ShowsCandidate(Protocol):
    """A session that shows what it loaded before it is committed."""

    def candidate(self) -> str:
        """Return the whole configuration that a commit would activate."""


@runtime_checkable
class SavesStartup(Protocol):
    """A session with a device whose confirmed commit does not outlive a restart."""

    def save(self) -> None:
        """Write the startup configuration. Raises Refused unless the device prints that it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDialect:
    """A platform's words.

    ``see`` understands what a session shows and raises ValueError; ``lines`` gives what is put into the candidate for
    a difference, from what was seen before. ``show`` and ``told`` are for the documentation.
    """

    title: str
    show: Commands
    see: Callable[[Sequence[str]], Any]
    lines: Callable[[SwitchDifference, Any], list[str]]
    told: dict[str, Commands] = field(default_factory=dict)
    closed_first: Callable[[SwitchDifference, Any], tuple[PortName, ...]] = lambda _difference, _seen: ()
    """The ports that ``lines`` closes before it allows VLANs, where a trunk without a list allows every VLAN; they are
    read in the candidate before the commit."""
    unclosed: Callable[[SwitchDifference, tuple[PortName, ...], str], list[str]] = lambda _difference, _ports, _text: []
    """Faults of these ports in the candidate; raises ValueError."""
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    shows_every_port: bool = True
    vlans_are_local: bool = False
    unused: frozenset[str] = frozenset({"", "access"})
    kept: tuple[RestorableLine, ...] = ()
    facts: SwitchCapabilities = field(
        default_factory=lambda: SwitchCapabilities(VlanSet([1]), atomic=True, confirm_timer=True)
    )


class CandidateSwitch:
    """One switch with a candidate configuration."""

    def __init__(self, name: Name, words: CandidateDialect, session: CandidateSession) -> None:
        """Drive the switch called ``name`` over ``session``."""
        self._name = name
        self._words = words
        self._session = session
        self._seen: SwitchReading | None = None

    def read(self, managed: SwitchScope) -> SwitchObserved:
        """Read what managed ports carry of managed numbers; one or two questions, however many VLANs there are."""
        close_lost_session(self._session)
        self._seen = self._look()
        return derive_observed_state(self._name, self._words, self._seen, managed)

    def apply(self, difference: SwitchDifference) -> None:
        """Make the whole change and confirm it once it was read back; or none of it."""
        seen, self._seen = self._seen or self._look(), None
        taken = difference.create & seen.reserved
        if taken:
            use = "which the switch uses itself: take it out of the site's pool"
            raise Refused(f"switch {self._name}: wanted VLAN {taken}, {use}")
        try:
            self._make(difference, seen)
        except (Refused, Unsafe):
            self._session.take_back()
            raise

    def save(self) -> bool:
        """Write the startup configuration, where a confirmed commit did not."""
        if not isinstance(self._session, SavesStartup):
            return False
        self._session.save()
        return True

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give what would be put into the candidate; nothing for no change."""
        if not difference:
            return ()
        return tuple(self._words.lines(difference, self._seen or self._look()))

    def neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - all at once
        """Ask for all neighbours, whatever the ports; one question."""
        if not isinstance(self._session, QueriesNeighbours):
            raise Refused(f"switch {self._name}: SBF does not know how {self._words.title} shows its neighbours")
        close_lost_session(self._session)
        try:
            return self._session.neighbours()
        except ValueError as error:
            said = " ".join(str(error).split())[:QUOTED_CHARACTERS]
            raise Unsafe(f"switch {self._name}: what it said of its neighbours is not understood: {said}") from error

    def is_lost(self) -> bool:
        """Return whether the switch ended the session by itself, as far as the session notices that."""
        return isinstance(self._session, DetectsSessionLoss) and self._session.is_lost()

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _make(self, difference: SwitchDifference, seen: SwitchReading) -> None:
        """Load the change, commit it, and confirm it when it was read back."""
        compared = self._session.load(self._words.lines(difference, seen))
        log.info("candidate_compared", element=self._name, compared=compared)
        if closed := self._words.closed_first(difference, seen):
            self._check_candidate(difference, closed)
        self._session.commit()
        left = list(find_unapplied(self._words, difference, self._look()))
        if left:
            raise Refused(f"switch {self._name}: {'; '.join(left)}: read after the commit, which was taken back")
        self._session.confirm()

    def _check_candidate(self, difference: SwitchDifference, closed: tuple[PortName, ...]) -> None:
        """Raise Refused unless the candidate has lists of allowed VLANs on ``closed`` ports, and only VLANs to add.

        A commit of empty lists alone would stay in effect when the commit of the rest fails.
        """
        if not isinstance(self._session, ShowsCandidate):
            raise Refused(f"switch {self._name}: SBF cannot read the candidate configuration of {self._words.title}")
        shown = self._session.candidate()
        try:
            left = self._words.unclosed(difference, closed, shown)
        except ValueError as error:
            raise self._not_understood("candidate configuration is", error) from error
        if left:
            raise Refused(f"switch {self._name}: {'; '.join(left)}: nothing was committed; {NOTHING_DONE}")

    def _look(self) -> SwitchReading:
        shown = self._session.show()
        try:
            seen: SwitchReading = self._words.see(shown)
        except ValueError as error:
            asked = ", ".join(repr(command) for command in self._words.show)
            raise self._not_understood(f"answers to {asked} are", error) from error
        return seen

    def _not_understood(self, what: str, error: ValueError) -> Unsafe:
        said = " ".join(str(error).split())[:QUOTED_CHARACTERS]
        return Unsafe(f"switch {self._name}: the {what} not understood: {said}; it was left alone")


def find_unapplied(words: CandidateDialect, difference: SwitchDifference, seen: SwitchReading) -> Iterator[str]:
    """Say what of a difference is not to be seen."""
    if missing := difference.create - seen.vlans:
        yield f"wanted VLAN {missing}, found none of it"
    if kept := difference.delete & seen.vlans:
        yield f"wanted no VLAN {kept}, found it"
    for port in dict.fromkeys((*difference.close, *difference.add, *difference.remove)):
        found = find_port(words, seen, port)
        if found is None:
            yield f"port {port}: found no such port"
        elif port in difference.access:
            yield from _find_unapplied_access(port, difference.add.get(port, VlanSet()), found)
        else:
            yield from _find_unapplied_trunk(port, difference, found)


def _find_unapplied_trunk(port: PortName, difference: SwitchDifference, found: PortReading) -> Iterator[str]:
    if found.open:
        yield f"port {port}: wanted a list of VLANs, found every VLAN"
    elif missing := difference.add.get(port, VlanSet()) - found.tagged:
        yield f"port {port}: wanted VLAN {missing} tagged, found none of it"
    if kept := difference.remove.get(port, VlanSet()) & found.tagged:
        yield f"port {port}: wanted no VLAN {kept}, found it"


def _find_unapplied_access(port: PortName, wanted: VlanSet, found: PortReading) -> Iterator[str]:
    """Say what is wrong with an access port: in no VLAN it is shut down, or has nothing at all configured."""
    is_empty = found.off or found == PortReading()
    is_in = not found.off and found.access is not None and found.access in wanted and not found.tagged
    if not (is_in if wanted else is_empty):
        yield f"access port {port}: wanted VLAN {wanted or 'none'} untagged, found {found.untagged or 'another state'}"
