"""Runs the real hooks of OpenPBS in this process, in the simulated time."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from pbs_hooks.kit import deadline, sbf_client
from pbs_hooks.kit.deadline import Deadline, DeadlineExceeded
from pbs_hooks.kit.http_exchange import HttpRequest
from pbs_hooks.openpbs.hooks import hook_head, job_end, job_start, mom_event, mom_hook, runjob, server_hook
from pbs_hooks.torque.scripts import agent_requests, prologue_epilogue, script_call, script_entry
from support.job_machine.agents import SimulatedTime
from support.job_machine.network import CallRefused, CallTimedOut, SbfNetwork, SentCall
from support.sbf_fakes.world import World
from virtcloud.client.connection import USER_AGENT
from virtcloud.model.access import Role
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookOutcome
from virtcloud.testing.fakepbs.hook_runner import _parse_outcome
from virtcloud.testing.fakepbs.interpreter import module, pbs_events, rules
from virtcloud.testing.fakepbs.interpreter import run as interpreter_run

Ask = Callable[[str, dict[str, Any], float], dict[str, Any]]


class HookCalls:
    """Runs hooks with their settings, which are files in ``folder``."""

    def __init__(self, folder: Path, clock: SimulatedTime, world: World) -> None:
        self.folder, self.clock = folder, clock
        token = folder / "pbs.token"
        token.write_text(world.token(Role.SCHEDULER, "pbs"))
        settings = {"sbf": "http://sbf", "token_file": str(token), "user_keys": False, "setup": 120}
        (folder / "server.json").write_text(json.dumps(settings))

    def _config(self, event: HookEvent, *, at_server: bool) -> Path:
        path = self.folder / ("server.json" if at_server else f"{event.node}.json")
        if not path.exists():
            path.write_text(json.dumps({"socket": f"/run/{event.node}", "patience": 100, "removal": 10}))
        return path

    def run(self, event: HookEvent) -> HookOutcome:
        """Run the hook on an event. The hook of a MoM runs in a task, in which it may pause."""
        at_server = event.kind in pbs_events.SERVER_EVENTS
        description = event.as_json(self._config(event, at_server=at_server))
        stage = module.HookStage(description)
        pbs = module.build_module(stage, description)
        began = self.clock.monotonic()
        failure: str | None = None
        stage.rules.in_hook = True
        try:
            if hook_head.concerns(pbs):
                if at_server:
                    server_hook.handle(pbs, began)
                else:
                    mom_hook.handle(pbs)
            pbs.event().accept()
        except SystemExit:
            pass
        except KeyboardInterrupt:
            failure = interpreter_run.ALARM
        finally:
            stage.rules.in_hook = False
        outcome = _parse_outcome(interpreter_run._outcome(stage, failure, None), "")
        return replace(outcome, seconds=self.clock.monotonic() - began)


@contextmanager
def simulated_hooks(clock: SimulatedTime, network: SbfNetwork, ask: Ask) -> Iterator[None]:
    """Within the block, hooks use the simulated time, the agents that ``ask`` reaches, and the simulated network."""

    def ask_agent(path: str, request: dict[str, Any], wait: float | None = None, grace: float = 5.0) -> dict[str, Any]:
        return ask(path, request if wait is None else {**request, "wait": wait}, grace)

    def send_request(call: HttpRequest, limit: Deadline) -> tuple[int, bytes]:
        headers = {"user-agent": USER_AGENT, **call.headers}
        try:
            answer = network.call("server hook", SentCall(call.method, call.path, call.body, headers))
        except CallRefused:
            raise ConnectionRefusedError(111, "Connection refused") from None
        except CallTimedOut:
            clock.sleep(max(0.0, limit.left()))
            raise DeadlineExceeded from None
        return answer.status_code, answer.content

    with pytest.MonkeyPatch.context() as patch:
        for one in (
            mom_event,
            job_start,
            job_end,
            runjob,
            server_hook,
            deadline,
            sbf_client,
            rules,
            script_call,
            prologue_epilogue,
        ):
            patch.setattr(one, "time", clock)
        for one in (mom_event, agent_requests, prologue_epilogue):
            patch.setattr(one, "ask_agent", ask_agent)
        patch.setattr(script_entry, "syslog", MagicMock())
        patch.setattr(mom_hook, "append_line", lambda *_: None)
        patch.setattr(sbf_client, "send_request", send_request)
        patch.delenv(sbf_client.BREAKER_VARIABLE, raising=False)
        runjob.forget_refusals()
        yield
