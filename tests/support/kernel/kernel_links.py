"""Messages to the real kernel about interfaces, sent by pyroute2 without code of the agent."""

from typing import Any

from pyroute2 import IPRoute


def link(command: str, **values: Any) -> tuple[Any, ...]:
    with IPRoute() as route:
        return tuple(route.link(command, **values))


def addr(command: str, **values: Any) -> tuple[Any, ...]:
    with IPRoute() as route:
        return tuple(route.addr(command, **values))


def find_index(name: str) -> int:
    with IPRoute() as route:
        return int(route.link_lookup(ifname=name)[0])


def brport(command: str, **values: Any) -> None:
    with IPRoute() as route:
        route.brport(command, **values)
