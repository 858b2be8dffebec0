"""A fake batch system with virtcloud's hooks, on hosts that have the agents of ``fake_world.py``."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from batch_scenarios.fake_world import FakeWorld
from pbs_hooks.bundle import bundle_hook
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.client.credentials import write_token
from virtcloud.model.access import Role
from virtcloud.testing.fakepbs.batch_system import Pace
from virtcloud.testing.fakepbs.fake_batch import FakeBatch
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookOutcome
from virtcloud.testing.fakepbs.hook_runner import FakeHost, HookDefinition

TIMEOUT, LONG_TIMEOUT = "seconds_between(0.1, 2), 2.0", "seconds_between(0.1, 30), 30.0"
"""Two texts of Python source. The first is the server hook's time limit of calls to SBF. The second is a longer limit.

The tests replace the first text in the hook by the second. The longer limit suffices even if other tests slow SBF down.
"""
SERVER = {"retry_after": 1, "breaker": 1, "setup": 30}
MOM = {"patience": 15, "removal": 3}


class HostWithAgent(FakeHost):
    """A fake host whose hook uses the job socket of the host's agent. All agents run on this computer."""

    def __init__(self, name: str, world: FakeWorld) -> None:
        super().__init__(name)
        self._config = json.dumps({"socket": str(world.socket(name)), **MOM})
        self._begins = world.begins

    def hook(self, hook: HookDefinition, event: HookEvent) -> HookOutcome:
        around = self._begins.pop(self.name, nullcontext()) if event.kind == "execjob_begin" else nullcontext()
        with around:
            return super().hook(hook, replace(event, config=self._config))


@dataclass
class FakeMachines:
    """The server and the hosts of the batch system. Each host has an agent and guests."""

    batch: FakeBatch
    world: FakeWorld

    def kill_host(self, name: str) -> None:
        self.batch.kill_host(name)
        self.world.stop_agent(name)
        self.world.machines[name].observed = ObservedHost()

    def start_host(self, name: str) -> None:
        self.world.start_agent(name)
        self.batch.start_host(name)

    def stop_server(self) -> None:
        self.batch.stop_server()

    def start_server(self) -> None:
        self.batch.start_server()


@contextmanager
def fake_batch(world: FakeWorld, folder: Path) -> Iterator[FakeBatch]:
    token = folder / "pbs.token"
    write_token(token, world.world.token(Role.SCHEDULER, "pbs"))
    settings = {"sbf": world.serving.url, "token_file": str(token), **SERVER}
    server_hook = bundle_hook("server").replace(TIMEOUT, LONG_TIMEOUT)
    assert LONG_TIMEOUT in server_hook
    hooks = {
        "server_hook": HookDefinition(server_hook, json.dumps(settings), alarm=60, name="virtcloud_server"),
        "mom_hook": HookDefinition(bundle_hook("mom"), "{}", alarm=600, name="virtcloud_mom"),
    }
    hosts = [HostWithAgent(name, world) for name in world.hosts]
    with FakeBatch(hosts, folder, pace=Pace(kill_delay=10, cycle=0.05), **hooks) as batch:
        world.batch = batch
        yield batch
