"""The driver for switches with a candidate configuration: load, compare, commit with a timer, read back, confirm.

A difference is applied completely or not at all. The device reverts a commit that SBF does not confirm, after the
read-back, within :data:`~sbf_service.drivers.transport.napalm_session.REVERT_AFTER_S` seconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import SwitchCapabilities, SwitchScope
from sbf_service.drivers.device_errors import build_parse_error, quote_start
from sbf_service.drivers.switch.command_rendering import NOTHING_DONE
from sbf_service.drivers.switch.dialect import (
    Commands,
    PortNames,
    PortReading,
    RestorableLine,
    SwitchReading,
    find_port,
)
from sbf_service.drivers.switch.observed_state import check_reserved_vlans, derive_observed_state
from sbf_service.drivers.transport.device_session import DetectsSessionLoss, close_lost_session
from sbf_service.log import get_log
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

log = get_log(__name__)


class CandidateSession(Protocol):
    """A session that reads and changes a device's configuration.

    The session connects on first use, and again on first use after :meth:`close`. Every method except :meth:`close` can
    raise Refused (the device rejected a request) or Unreachable (the device does not answer, ended the session, or is
    being configured by another user). Before a method raises Unreachable, it closes the session, so that the device
    reverts an unconfirmed commit.
    """

    def show(self) -> Sequence[str]:
        """Return the answers that contain the VLANs and ports of the active configuration.

        Raise Unreachable for another session's unconfirmed commit, because the device may still revert this commit.
        """

    def load(self, lines: Sequence[str]) -> str:
        """Lock the configuration, load lines into the candidate, and return the changes as the device prints them."""

    def commit(self) -> None:
        """Activate the candidate, and start the confirm timer."""

    def confirm(self) -> None:
        """Confirm the commit and unlock the configuration.

        A confirmed commit survives a restart, unless the session is a :class:`SavesStartup`.
        """

    def revert(self) -> None:
        """Discard the candidate or the unconfirmed commit, and unlock the configuration."""

    def close(self) -> None:
        """End the session. Idempotent; never raises."""


@runtime_checkable
class QueriesNeighbours(Protocol):
    """A session that can read the device's neighbours (LLDP)."""

    def show_neighbours(self) -> str:
        """Return the device's answer, which the dialect parses."""


@runtime_checkable
class ShowsCandidate(Protocol):
    """A session that can show the loaded candidate before the commit."""

    def show_candidate(self) -> str:
        """Return the complete configuration that a commit would activate."""


@runtime_checkable
class SavesStartup(Protocol):
    """A session with a device whose confirmed commit does not survive a restart."""

    def save(self) -> None:
        """Write the startup configuration.

        Raise Refused if the device does not print that the configuration was saved.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDialect:
    """The data of a platform with a candidate configuration.

    ``see`` parses the answers of :meth:`CandidateSession.show`, and raises ValueError for an unknown answer. ``lines``
    returns the lines to load for a difference and a reading. ``show`` contains the commands whose answers ``see``
    parses, only for messages and the documentation. ``documented_lines`` are only for the documentation.
    """

    title: str
    show: Commands
    see: Callable[[Sequence[str]], Any]
    lines: Callable[[SwitchDifference, Any], list[str]]
    documented_lines: Mapping[str, Commands] = field(default_factory=dict)
    neighbours: Callable[[str], tuple[Neighbour, ...]] | None = None
    """Parses the answer of :meth:`QueriesNeighbours.show_neighbours`; raises ValueError for an unknown answer."""
    closed_first: Callable[[SwitchDifference, Any], tuple[PortName, ...]] = lambda _difference, _reading: ()
    """Returns the ports on which ``lines`` sets an empty list of allowed VLANs.

    On some platforms, a trunk without a list allows every VLAN. The driver therefore checks these ports before the
    commit.
    """
    unclosed: Callable[[SwitchDifference, tuple[PortName, ...], str], list[str]] = lambda _difference, _ports, _text: []
    """Returns the faults of the ports of ``closed_first`` in the candidate; raises ValueError for an unknown text."""
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    shows_every_port: bool = True
    vlans_are_local: bool = False
    unused: frozenset[str] = frozenset({"", "access"})
    kept: tuple[RestorableLine, ...] = ()
    capabilities: SwitchCapabilities = field(
        default_factory=lambda: SwitchCapabilities(VlanSet([1]), atomic=True, confirm_timer=True)
    )


class CandidateSwitch:
    """The driver of one switch with a candidate configuration."""

    def __init__(self, name: Name, dialect: CandidateDialect, session: CandidateSession) -> None:
        """Create a driver of the switch ``name``. The driver sends all requests over ``session``."""
        self._name = name
        self._dialect = dialect
        self._session = session
        self._reading: SwitchReading | None = None

    def read(self, scope: SwitchScope) -> SwitchObserved:
        """Read the switch. The number of requests does not depend on the number of VLANs."""
        close_lost_session(self._session)
        self._reading = self.read_all()
        return derive_observed_state(self._name, self._dialect, self._reading, scope)

    def apply(self, difference: SwitchDifference) -> None:
        """Apply the complete difference, read back, and confirm the commit. After an error, revert the whole change."""
        reading, self._reading = self._reading or self.read_all(), None
        check_reserved_vlans(self._name, difference, reading)
        try:
            self._commit(difference, reading)
        except (Refused, Unsafe):
            self._revert()
            raise

    def save(self) -> bool:
        """Write the startup configuration. Return False on platforms where a confirmed commit is already saved."""
        if not isinstance(self._session, SavesStartup):
            return False
        self._session.save()
        return True

    def list_commands(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Return the lines that :meth:`apply` would load; empty for an empty difference."""
        if not difference:
            return ()
        return tuple(self._dialect.lines(difference, self._reading or self.read_all()))

    def read_neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - one request for all
        """Read all neighbours with one request.

        Raise Refused if the platform does not support this request, and Unsafe for an unknown answer.
        """
        if self._dialect.neighbours is None or not isinstance(self._session, QueriesNeighbours):
            raise Refused(f"switch {self._name}: SBF cannot read the neighbours of {self._dialect.title}")
        close_lost_session(self._session)
        try:
            return self._dialect.neighbours(self._session.show_neighbours())
        except ValueError as error:
            quotation = quote_start(str(error))
            raise Unsafe(f"switch {self._name}: cannot parse the answer about neighbours: {quotation}") from error

    def is_lost(self) -> bool:
        """Return whether the switch ended the session; False if the session cannot detect its end."""
        return isinstance(self._session, DetectsSessionLoss) and self._session.is_lost()

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _commit(self, difference: SwitchDifference, reading: SwitchReading) -> None:
        comparison = self._session.load(self._dialect.lines(difference, reading))
        log.info("candidate_compared", element=self._name, compared=comparison)
        if closed := self._dialect.closed_first(difference, reading):
            self._check_candidate(difference, closed)
        self._session.commit()
        missing = list(find_unapplied(self._dialect, difference, self.read_all()))
        if missing:
            found = "; ".join(missing)
            raise Refused(f"switch {self._name}: {found} in the reading after the commit; the commit was reverted")
        self._session.confirm()

    def _revert(self) -> None:
        """Revert the change, or end the session: the device then reverts an unconfirmed commit.

        Without a revert, the next reading could show a commit that the device reverts later.
        """
        try:
            self._session.revert()
        except Refused as error:
            log.warning("revert_refused", element=self._name, error=str(error))
            self._session.close()

    def _check_candidate(self, difference: SwitchDifference, closed: tuple[PortName, ...]) -> None:
        """Raise Refused if a port of ``closed`` allows a VLAN that the difference does not add to this port.

        One commit both closes these ports and adds the VLANs: after two commits, the lists could stay empty.
        """
        if not isinstance(self._session, ShowsCandidate):
            raise Refused(f"switch {self._name}: SBF cannot read the candidate configuration of {self._dialect.title}")
        candidate = self._session.show_candidate()
        try:
            faults = self._dialect.unclosed(difference, closed, candidate)
        except ValueError as error:
            raise build_parse_error(f"switch {self._name}", "candidate configuration", error) from error
        if faults:
            raise Refused(f"switch {self._name}: {'; '.join(faults)}: nothing was committed; {NOTHING_DONE}")

    def read_all(self) -> SwitchReading:
        """Read the whole switch. Change nothing. Raise Unsafe for answers that cannot be parsed."""
        shown = self._session.show()
        try:
            reading: SwitchReading = self._dialect.see(shown)
        except ValueError as error:
            commands = ", ".join(repr(command) for command in self._dialect.show)
            raise build_parse_error(f"switch {self._name}", f"answers to {commands}", error) from error
        return reading


def find_unapplied(dialect: CandidateDialect, difference: SwitchDifference, reading: SwitchReading) -> Iterator[str]:
    """Yield an error text for each part of a difference that the reading does not show.

    Ignore the ports in ``put_back``: a fault of one released port must not revert the VLANs of all clusters. The worker
    reports such a port after its next reading.
    """
    if missing := difference.create - reading.vlans:
        yield f"wanted VLAN {missing} to exist, found none"
    if remaining := difference.delete & reading.vlans:
        yield f"wanted VLAN {remaining} deleted, found VLAN {remaining}"
    for port in dict.fromkeys((*difference.close, *difference.add, *difference.remove)):
        found = find_port(dialect, reading, port)
        if found is None:
            yield f"port {port}: expected a port, found none"
        elif port in difference.access:
            yield from _find_unapplied_access(port, difference.add.get(port, VlanSet()), found)
        else:
            yield from _find_unapplied_trunk(port, difference, found)


def _find_unapplied_trunk(port: PortName, difference: SwitchDifference, found: PortReading) -> Iterator[str]:
    if found.open:
        yield f"port {port}: wanted a list of allowed VLANs, found every VLAN allowed"
    elif missing := difference.add.get(port, VlanSet()) - found.tagged:
        yield f"port {port}: wanted VLAN {missing} tagged, found none"
    if remaining := difference.remove.get(port, VlanSet()) & found.tagged:
        yield f"port {port}: wanted VLAN {remaining} removed, found tagged"


def _find_unapplied_access(port: PortName, wanted: VlanSet, found: PortReading) -> Iterator[str]:
    """Yield the fault of an access port. A port to vacate must be shut down or have no configuration."""
    is_vacated = found.off or found == PortReading()
    is_joined = not found.off and found.access is not None and found.access in wanted and not found.tagged
    if not (is_joined if wanted else is_vacated):
        yield f"access port {port}: wanted VLAN {wanted or 'none'} untagged, found {found.untagged or 'another state'}"
