"""What emulated provider edges share: services, and which VLANs on which ports are joined to them, now."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar

from emulators.ios_like import IosLikeSwitch
from emulators.switch_device import CommandRejected, EmulatedPort, EmulatedSession, SwitchState


@dataclass
class EdgeState(SwitchState):
    """The configuration of an edge; ``services`` are VFIs, bridge domains or instances by name, with their lines."""

    services: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class EdgePort(EmulatedPort):
    """A port; ``units`` are what carries a VLAN on it, by number: service instances, subinterfaces, units."""

    units: dict[int, list[str]] = field(default_factory=dict)


class EmulatedEdge(IosLikeSwitch):
    """A provider edge with a command line. ``core`` is a port towards the backbone."""

    new_port: ClassVar[Callable[[], EmulatedPort]] = EdgePort

    def __init__(self, **more: object) -> None:
        super().__init__(hostname="pe1", **more)  # type: ignore[arg-type]
        self.running = EdgeState({1: self.default_name}, {name: type(self).new_port() for name in self.port_names})
        self.startup = deepcopy(self.running)

    def factory_state(self) -> EdgeState:
        return EdgeState({1: self.default_name}, {name: type(self).new_port() for name in self.port_names})

    @property
    def core_port(self) -> str:
        return self.port_names[-1]

    @contextmanager
    def failing(self, kind: str, line: str, **more: object) -> Iterator[None]:
        """Let this very line go wrong once, for as long as the context lasts."""
        self.fail(kind, f"^{re.escape(line)}$", **more)  # type: ignore[arg-type]
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
        """Say which VLANs on which ports are joined by each bridge domain, VLAN or instance."""
        raise NotImplementedError

    def reached(self) -> dict[int, set[tuple[str, int]]]:
        """Say which VLANs on which ports reach each service of the backbone."""
        raise NotImplementedError

    def carrying(self) -> dict[str, set[int]]:
        """Give the VLANs of each domain; kept at each change, for what must hold at every instant."""
        return {domain: {vlan for _, vlan in places} for domain, places in self.joined().items()}


class CandidateEdge(EmulatedEdge):
    """An edge on which lines change a candidate of the session, until they are committed, all or none.

    A session that ends takes its candidate with it.
    """

    first_mode = "exec"
    words_of_failure: ClassVar[str]

    def configure(self, *lines: str) -> None:
        super().configure(*lines, "commit")

    def candidate(self, session: EmulatedSession) -> EdgeState:
        """Give what this session is changing."""
        if not hasattr(session, "candidate"):
            session.candidate = deepcopy(self.running)  # type: ignore[attr-defined]
        found: EdgeState = session.candidate  # type: ignore[attr-defined]
        return found

    def drop(self, session: EmulatedSession) -> None:
        if hasattr(session, "candidate"):
            del session.candidate

    def activate(self, session: EmulatedSession) -> None:
        """Make the candidate the configuration that is run, and that a reboot brings back; raises Rejected."""
        wrong = next(self.faults_of(self.candidate(session)), None)
        if wrong:
            raise CommandRejected(self.words_of_failure.format(wrong=wrong))
        self.running = self.candidate(session)
        self.startup = deepcopy(self.running)
        self.saves += 1
        self.drop(session)

    def faults_of(self, state: EdgeState) -> Iterator[str]:
        """Say what of a candidate cannot be."""
        raise NotImplementedError


def put(lines: list[str], line: str, sort: str | None = None) -> None:
    """Put a line into a block; one of the same ``sort`` (its beginning) is replaced."""
    lines[:] = [one for one in lines if one != line and not (sort and one.startswith(sort))] + [line]


def after(lines: list[str], start: str) -> str | None:
    """Give what follows ``start`` in the line that has it."""
    return next((line.removeprefix(start) for line in lines if line.startswith(start)), None)
