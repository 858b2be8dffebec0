import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar

from support.emulators.ios_like import IosLikeSwitch
from support.emulators.session import CommandRejected, EmulatedSession
from support.emulators.switch_device import EmulatedPort, SwitchState


@dataclass
class EdgeState(SwitchState):
    """The configuration of an edge. ``services`` maps names of VFIs, bridge domains or instances to their lines."""

    services: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class EdgePort(EmulatedPort):
    """A port. ``units`` (service instances, subinterfaces or units, by number) carry VLANs on the port."""

    units: dict[int, list[str]] = field(default_factory=dict)


class EmulatedEdge(IosLikeSwitch):
    """A provider edge with a command line. ``core_port`` is the port towards the backbone."""

    new_port: ClassVar[Callable[[], EmulatedPort]] = EdgePort

    def __init__(self, **options: object) -> None:
        super().__init__(hostname="pe1", **options)  # type: ignore[arg-type]
        self.running = EdgeState({1: self.default_name}, {name: type(self).new_port() for name in self.port_names})
        self.startup = deepcopy(self.running)

    def factory_state(self) -> EdgeState:
        return EdgeState({1: self.default_name}, {name: type(self).new_port() for name in self.port_names})

    @property
    def core_port(self) -> str:
        return self.port_names[-1]

    @contextmanager
    def failing(self, kind: str, line: str, **options: object) -> Iterator[None]:
        """Plan a fault of the next command that equals ``line``. Delete all planned faults after the context."""
        self.fail(kind, f"^{re.escape(line)}$", **options)  # type: ignore[arg-type]
        yield
        self.faults.clear()

    @property
    def services(self) -> dict[str, list[str]]:
        state: EdgeState = self.running  # type: ignore[assignment]
        return state.services

    def units(self, port: str) -> dict[int, list[str]]:
        found: EdgePort = self.running.ports[port]  # type: ignore[assignment]
        return found.units

    def joined(self) -> dict[str, set[tuple[str, int]]]:
        """Return the pairs of port and VLAN ID in each bridge domain, VLAN or instance."""
        raise NotImplementedError

    def reached(self) -> dict[int, set[tuple[str, int]]]:
        """Return, for each service of the backbone, the pairs of port and VLAN ID that reach the service."""
        raise NotImplementedError

    def carrying(self) -> dict[str, set[int]]:
        """Return the VLANs of each domain. A session records the result after each line, so that tests can check it."""
        return {domain: {vlan for _, vlan in places} for domain, places in self.joined().items()}


class CandidateEdge(EmulatedEdge):
    """An edge whose sessions have candidate configurations.

    Configuration lines change the session's candidate. A commit applies the whole candidate or nothing. The end of a
    session discards the session's candidate.
    """

    first_mode = "exec"
    failure_message: ClassVar[str]

    def configure(self, *lines: str) -> None:
        super().configure(*lines, "commit")

    def candidate(self, session: EmulatedSession) -> EdgeState:
        if not hasattr(session, "candidate"):
            session.candidate = deepcopy(self.running)  # type: ignore[attr-defined]
        found: EdgeState = session.candidate  # type: ignore[attr-defined]
        return found

    def discard_candidate(self, session: EmulatedSession) -> None:
        if hasattr(session, "candidate"):
            del session.candidate

    def activate(self, session: EmulatedSession) -> None:
        """Replace the running and the startup configuration by the candidate.

        Raise CommandRejected if the candidate is invalid.
        """
        fault = next(self.find_faults(self.candidate(session)), None)
        if fault:
            raise CommandRejected(self.failure_message.format(fault=fault))
        self.running = self.candidate(session)
        self.startup = deepcopy(self.running)
        self.saves += 1
        self.discard_candidate(session)

    def find_faults(self, state: EdgeState) -> Iterator[str]:
        raise NotImplementedError


def put(lines: list[str], line: str, prefix: str | None = None) -> None:
    lines[:] = [other for other in lines if other != line and not (prefix and other.startswith(prefix))] + [line]


def after(lines: list[str], start: str) -> str | None:
    return next((line.removeprefix(start) for line in lines if line.startswith(start)), None)
