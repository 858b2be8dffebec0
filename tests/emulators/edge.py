"""What emulated provider edges share: services, and which VLANs on which ports are joined to them, now."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar

from emulators.industry import Industry
from emulators.switch import Port, State


@dataclass
class EdgeState(State):
    """The configuration of an edge; ``services`` are VFIs, bridge domains or instances by name, with their lines."""

    services: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class EdgePort(Port):
    """A port; ``units`` are what carries a VLAN on it, by number: service instances, subinterfaces, units."""

    units: dict[int, list[str]] = field(default_factory=dict)


class Edge(Industry):
    """A provider edge with a command line. ``core`` is a port towards the backbone."""

    new_port: ClassVar[Callable[[], Port]] = EdgePort

    def __init__(self, **more: object) -> None:
        super().__init__(hostname="pe1", **more)  # type: ignore[arg-type]
        self.running = EdgeState({1: self.default_name}, {name: type(self).new_port() for name in self.port_names})
        self.startup = deepcopy(self.running)

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


def put(lines: list[str], line: str, sort: str | None = None) -> None:
    """Put a line into a block; one of the same ``sort`` (its beginning) is replaced."""
    lines[:] = [one for one in lines if one != line and not (sort and one.startswith(sort))] + [line]


def after(lines: list[str], start: str) -> str | None:
    """Give what follows ``start`` in the line that has it."""
    return next((line.removeprefix(start) for line in lines if line.startswith(start)), None)
