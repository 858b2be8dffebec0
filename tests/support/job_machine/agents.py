"""The job sockets of the hosts' agents, with the real code, in the simulated time."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from pbs_hooks.kit.agent_client import AgentUnreachable, _build_error
from support.fake_machine import FakeMounts
from support.job_machine.network import SbfNetwork, SimulatedTransport
from support.job_machine.tasks import Killed, Life, Tasks
from virtcloud.agent import bootstrap
from virtcloud.agent.bootstrap import JobSocketAdapters, serve_job_socket
from virtcloud.agent.job_access.access import JobAccess
from virtcloud.agent.job_socket import job_record_store, removals, start_barrier
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.job_records import JobRecord
from virtcloud.agent.job_socket.listener import _format_error
from virtcloud.agent.job_socket.request_handler import HandlerDependencies, RequestHandler
from virtcloud.agent.job_socket.socket_requests import parse_socket_request
from virtcloud.agent.network.address_probe import IpAddress
from virtcloud.agent.settings import AgentSettings
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.values import Name

HTTP_TIMEOUT_S = 3.0


class SimulatedTime:
    """Replaces the module ``time``."""

    def __init__(self, tasks: Tasks, epoch: float) -> None:
        self.tasks, self.epoch = tasks, epoch

    def monotonic(self) -> float:
        return self.tasks.now

    def time(self) -> float:
        return self.epoch + self.tasks.now

    def sleep(self, seconds: float) -> None:
        self.tasks.sleep(seconds)


class AnsweringGuests:
    """A prober that reports every guest as reachable."""

    def probe(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        return frozenset(addresses)


def every_guest_answers(_bridge: str) -> AbstractContextManager[AnsweringGuests]:
    return nullcontext(AnsweringGuests())


class SimulatedAgent:
    """An agent of a host. ``relays`` are the running relays, by job. Relays survive a kill of the agent."""

    def __init__(self, name: str, folder: Path, network: SbfNetwork, epoch: float) -> None:
        self.name, self.folder, self.network, self.tasks = name, folder, network, network.tasks
        self.relays: dict[str, JobAccess] = {}
        self.mounts = FakeMounts()
        self.life = Life()
        self.life.dead = True
        self.records: JobRecordStore | None = None
        self.kill_after: int | None = None
        self._epoch = epoch
        self._token = network.world.token(Role.AGENT, name)
        self._lives: list[ExitStack] = []
        self._answer: Callable[[Any], dict[str, Any]] = lambda _: {}

    @property
    def alive(self) -> bool:
        return not self.life.dead

    def start(self) -> None:
        if self.alive:
            return
        self.life, self.kill_after = Life(), None
        stack = ExitStack()
        self._lives.append(stack)
        paths = {"state": self.folder / self.name, "jobs": self.folder / self.name / "places"}
        settings = AgentSettings.model_validate({"element": self.name, "sbf": "http://sbf", **paths})
        sbf = stack.enter_context(SbfClient("http://sbf", HTTP_TIMEOUT_S, token=lambda: SecretStr(self._token)))
        sbf._connection._http.get()._transport = SimulatedTransport(self.network, f"agent {self.name}")
        sbf._connection._http.get()._mounts = {}
        with pytest.MonkeyPatch.context() as patch:
            self._patch_bootstrap(patch)
            adapters = JobSocketAdapters(self, every_guest_answers, self.mounts)
            stack.enter_context(serve_job_socket(Name(self.name), settings, sbf, lambda: None, adapters, self._start))

    def _patch_bootstrap(self, patch: pytest.MonkeyPatch) -> None:
        agent = self

        class Records(JobRecordStore):
            """Job records. A wait for a change of a record takes simulated time."""

            def __init__(self, folder: Path) -> None:
                agent.records = self
                super().__init__(folder, lambda: agent._epoch + agent.tasks.now)

            def wait(self, condition: Callable[[JobRecord | None], bool], cluster: str, seconds: float) -> bool:
                if not condition(self.get(cluster)):
                    agent.tasks.sleep(seconds, lambda: condition(self.get(cluster)))
                return condition(self.get(cluster))

            def pause(self, seconds: float | None, *, unless: Callable[[], bool]) -> None:
                if not unless():
                    agent.tasks.sleep(1e9 if seconds is None else seconds, unless)

        class Listener:
            """Replaces the listener of the job socket."""

            def __init__(self, _path: Path, policy: Any, answer: Callable[[Any], dict[str, Any]]) -> None:
                agent._answer = answer

            def start(self, _start: object) -> None:
                """Do nothing: `SimulatedAgent.ask` calls the handler."""

            def stop(self, _seconds: float) -> None:
                """Do nothing."""

        def handler(dependencies: HandlerDependencies) -> RequestHandler:
            return RequestHandler(dependencies, lambda: agent.tasks.now)

        event = SimpleNamespace(set=lambda: None, is_set=lambda: agent.life.dead, wait=agent.tasks.sleep)
        patch.setattr(bootstrap, "JobRecordStore", Records)
        patch.setattr(bootstrap, "SocketListener", Listener)
        patch.setattr(bootstrap, "RequestHandler", handler)
        patch.setattr(bootstrap, "threading", SimpleNamespace(Event=lambda: event))

    def _start(self, name: str, work: Any, _idle_s: float) -> Any:
        task = self.tasks.start(f"{name} of {self.name}", lambda: work(lambda: None))
        task.lives.append(self.life)
        return task

    def kill(self) -> None:
        self.life.dead = True

    def close(self) -> None:
        self.kill()
        for life in self._lives:
            life.close()

    def effect(self) -> None:
        """Kill the agent, if its death is planned for this effect on the disk, on a relay or at SBF."""
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.kill_after = None
                self.kill()
        if self.life.dead:
            raise Killed

    def ask(self, request: dict[str, Any], grace: float) -> dict[str, Any]:
        """Send a request as the hooks' client does, and return the answer. Raise the client's errors."""
        if not self.alive:
            raise AgentUnreachable("this host's agent does not answer: connection refused")
        life, task = self.life, self.tasks.current
        if task is not None:
            task.lives.append(life)
        try:
            answer = self._answer_line(json.dumps(request).encode())
        except Killed:
            if (
                life.dead
                and (task is None or task.error is None)
                and not any(one.dead for one in (task.lives[:-1] if task else ()))
            ):
                raise AgentUnreachable("this host's agent does not answer: the connection ended") from None
            raise
        finally:
            if task is not None:
                task.lives.remove(life)
        answer = dict(json.loads(json.dumps(answer)))
        if not answer.get("ok"):
            raise _build_error(answer)
        return answer

    def _answer_line(self, line: bytes) -> dict[str, Any]:
        try:
            return self._answer(parse_socket_request(line))
        except VirtcloudError as error:
            return _format_error(error)

    # The relays.

    def ensure(self, access: JobAccess, uid: int) -> Path:
        self.effect()
        self.relays[access.key] = access
        self.effect()
        return self.socket_path(access.key)

    def socket_path(self, key: str) -> Path:
        return Path(f"/relay-of/{key}")

    def ensure_none(self, key: str) -> None:
        self.effect()
        self.relays.pop(key, None)
        self.effect()

    def is_lost(self, key: str) -> bool:
        return key not in self.relays


@contextmanager
def simulated_time(clock: SimulatedTime, agents: Callable[[], Iterable[SimulatedAgent]]) -> Iterator[None]:
    """Within the block, all agents use the simulated time, and can be killed before and after they write a record."""

    def at_effect(work: Callable[..., None]) -> Callable[..., None]:
        def run(path: Path, *arguments: Any) -> None:
            agent = next(one for one in agents() if path.is_relative_to(one.folder / one.name))
            agent.effect()
            work(path, *arguments)
            agent.effect()

        return run

    with pytest.MonkeyPatch.context() as patch:
        for module in (start_barrier, removals):
            patch.setattr(module, "time", clock)
        for name in ("write_durably", "remove_durably"):
            patch.setattr(job_record_store, name, at_effect(getattr(job_record_store, name)))
        yield
