"""An agent with a real job socket and without a reconciler. The test determines which guests answer."""

import json
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.fake_machine import FakeMounts
from virtcloud.agent.bootstrap import JobSocketAdapters, serve_job_socket
from virtcloud.agent.job_access.access import JobAccess
from virtcloud.agent.job_socket.start_barrier import JobClusterApi
from virtcloud.agent.network.address_probe import IpAddress
from virtcloud.agent.settings import AgentSettings
from virtcloud.model.errors import Refused
from virtcloud.model.values import Name

Answer = dict[str, Any]


@dataclass
class FakeBridges:
    """The bridges of a host by name, each with the addresses that answer."""

    answering: dict[str, set[str]] = field(default_factory=dict)

    def open_prober(self, bridge: str) -> "FakeProber":
        if bridge not in self.answering:
            raise Refused(f"cannot probe addresses on bridge {bridge} of this host: No such device")
        return FakeProber(self.answering[bridge])


@dataclass
class FakeProber:
    """A prober that returns immediately."""

    answering_addresses: set[str]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def probe(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        return frozenset(addresses) & {ip_address(address) for address in self.answering_addresses}


@dataclass
class Agent:
    """A running agent. Its methods send requests to the job socket, as hooks do."""

    settings: AgentSettings
    bridges: FakeBridges
    wake_calls: list[str] = field(default_factory=list)
    mounts: FakeMounts = field(default_factory=FakeMounts)

    def send_line(self, line: bytes) -> Answer:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self.settings.socket))
            connection.sendall(line)
            with connection.makefile("rb") as answers:
                answer: Answer = json.loads(answers.readline())
                return answer

    def ask(self, do: str, cluster: str | None = None, attempt: int = 1, **more: Any) -> Answer:
        request = {"do": do, **more} if cluster is None else {"do": do, "cluster": cluster, "attempt": attempt, **more}
        return self.send_line(json.dumps(request).encode() + b"\n")

    def up(self, cluster: str, attempt: int = 1, *, head: bool = True) -> Answer:
        return self.ask("up", cluster, attempt, head=head, **({"user": "root"} if head else {}))


class FakeRelays:
    """Relays that have only a path and no process."""

    def ensure(self, access: JobAccess, uid: int) -> Path:
        return self.socket_path(access.key)

    def socket_path(self, key: str) -> Path:
        return Path(f"/relay-of/{key}")

    def ensure_none(self, key: str) -> None:
        """Do nothing."""

    def is_lost(self, key: str) -> bool:
        return False


def settings_in(folder: Path, **changes: object) -> AgentSettings:
    paths = {"state": folder / "state", "jobs": folder / "jobs", "socket": folder / "a.sock"}
    return AgentSettings.model_validate({"element": "brno-h1", "sbf": "unix:///x", **paths, **changes})


@contextmanager
def agent(settings: AgentSettings, sbf: JobClusterApi, bridges: FakeBridges | None = None) -> Iterator[Agent]:
    running = Agent(settings, bridges or FakeBridges())
    wake: Callable[[], None] = lambda: running.wake_calls.append("wake")  # noqa: E731
    with serve_job_socket(
        Name("brno-h1"),
        settings,
        sbf,
        wake,
        JobSocketAdapters(FakeRelays(), running.bridges.open_prober, running.mounts),
    ):
        yield running
