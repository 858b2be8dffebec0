"""A host for Torque's scripts, with a fake agent and a fake SBF on real sockets."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pbs_hooks.torque.scripts.script_entry import main
from support.programs.fake_agent import FakeAgentSocket, FakeAnswer, FakeRequest, agent_socket
from support.programs.http_answers import HttpAnswer, HttpRequest, answer_json, serve_answers

FACTS = {"VCLUSTER_ID": "7.torque", "VCLUSTER_VLAN": "112", "VCLUSTER_GUESTS": "g1 g2"}
UP = {"ok": True, "state": "up", "missing": [], "reason": None, "facts": FACTS}
REQUEST = "image=busybox:guests=1:subnet=10.0.0.0/24"
RESOURCES = f"neednodes=2:ppn=2,nodes=2:ppn=2,other=vcluster={REQUEST},walltime=01:00:00"


class SbfCall(NamedTuple):
    """A request that SBF received."""

    method: str
    path: str
    document: Any


class ScriptResult(NamedTuple):
    """The exit code of a script, and its messages on stderr."""

    code: int
    stderr: str


def problem(status: int, slug: str, detail: str) -> tuple[int, Any]:
    return status, {"type": f"urn:virtcloud:problem:{slug}", "detail": detail}


UNKNOWN = problem(404, "not-found", "cluster 7.torque is not known")


def answer_as_agent(request: FakeRequest) -> FakeAnswer:
    done = {"ok": True}
    answers: dict[str, FakeAnswer] = {
        "up": done,
        "state": UP,
        "cancel": done,
        "remove": {**done, "gone": True},
        "list": listed(("7.torque", False)),
    }
    return answers[request["do"]]


def listed(*clusters: tuple[str, bool], state: str = "waiting") -> FakeAnswer:
    """Return an agent's list of clusters. Each argument is a pair: a cluster's key, and whether its job is ending."""
    return {"ok": True, "clusters": [{"cluster": key, "leaving": leaving, "state": state} for key, leaving in clusters]}


def answer_as_sbf(call: SbfCall) -> tuple[int, Any]:
    """Answer like an SBF that does not know the cluster yet, and that accepts the cluster."""
    return UNKNOWN if call.method == "GET" else (201, {"state": "configuring"})


@dataclass
class TorqueHost:
    """The host. A test may replace the functions that answer for SBF and for the agent."""

    folder: Path
    user: str
    capture: pytest.CaptureFixture[str]
    agent: FakeAgentSocket | None = None
    answer_as_agent: Callable[[FakeRequest], FakeAnswer] = answer_as_agent
    answer_as_sbf: Callable[[SbfCall], tuple[int, Any]] = answer_as_sbf
    sbf_calls: list[SbfCall] = field(default_factory=list)

    @property
    def agent_requests(self) -> list[FakeRequest]:
        return self.agent.asked if self.agent else []

    def agent_answer(self, request: FakeRequest) -> FakeAnswer:
        return self.answer_as_agent(request)

    def settings(self, **keys: object) -> Path:
        file = self.folder / "torque.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**known, **keys}))
        return file

    def run(self, script: str, resources: str = RESOURCES, job: str = "7.Torque", **environment: str) -> ScriptResult:
        """Run a script for a job, with the arguments and the environment that Torque would use."""
        nodes = self.folder / "nodes"
        nodes.write_text("Brno-h1.example\nBrno-h1.example\nbrno-h2.example\nbrno-h2.example\n")
        common = [job, self.user, "users", "job.sh"]
        script_file = str(self.folder / "7.SC")
        prologue = [*common, resources, "batch", "", script_file]
        epilogue = [*common, "4711", resources, "cput=00:00:01", "batch", "", "0", script_file]
        arguments = prologue if script.startswith("prologue") else epilogue
        surrounding = {"PBS_NODEFILE": str(nodes), "PBS_MSHOST": "Brno-h1.example", **environment}
        code = main(script, arguments, surrounding, str(self.folder / "torque.json"))
        return ScriptResult(code, self.capture.readouterr().err)


@contextmanager
def run_torque_host(folder: Path, user: str, capture: pytest.CaptureFixture[str]) -> Iterator[TorqueHost]:
    bench = TorqueHost(folder, user, capture)

    def answer(request: HttpRequest) -> HttpAnswer:
        call = SbfCall(request.method, request.path, request.document())
        bench.sbf_calls.append(call)
        return answer_json(*bench.answer_as_sbf(call))

    with serve_answers(answer) as address, agent_socket(folder / "s", bench.agent_answer) as agent:
        bench.agent = agent
        bench.settings(
            sbf=address,
            token_file=None,
            socket=str(folder / "s"),
            environments=str(folder / "environments"),
        )
        yield bench


def script_job_states(bench: TorqueHost, *states: dict[str, object]) -> None:
    """Set the agent's answers to requests for a job's state. The last state repeats."""
    remaining = list(states)
    default = bench.answer_as_agent

    def answer(request: FakeRequest) -> FakeAnswer:
        if request["do"] != "state":
            return default(request)
        return {"ok": True, **(remaining.pop(0) if len(remaining) > 1 else remaining[0])}

    bench.answer_as_agent = answer
