"""The time that the server hook takes in the only thread of the PBS server.

The hook runs repeatedly in an interpreter without packages, as in PBS. The hook calls a real SBF over TLS, or an SBF
that accepts connections and does not answer.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from statistics import median
from typing import Any

from support.batch_fakes.server_hook import NODES, RAN, ServerHook, hook
from support.batch_fakes.single_site import run_single_site

from benchmarks.measurement import Measurement
from virtcloud.testing.fakepbs import HookEvent, HookJob
from virtcloud.testing.fakepbs.hook_runner import BARE_OPTIONS, INTERPRETER_PROGRAM

RUNS = 60
REQUEST = "image=debian12:guests=2:subnet=10.0.0.0/24"
PLAYER = Path(__file__).parent / "server_hook_player.py"


def run() -> Iterator[Measurement]:
    """Measure events of each kind."""
    with run_single_site() as site:
        plain = _milliseconds(site.hook, [_runjob(number, None) for number in range(RUNS)])
        yield Measurement("runjob without a cluster", median(plain[1:]), "ms", 2)
        yield Measurement("runjob without a cluster: maximum", max(plain[1:]), "ms")
        runjob = _milliseconds(site.hook, [_runjob(number, REQUEST) for number in range(RUNS)])
        yield Measurement("runjob: a cluster is requested", median(runjob[1:]), "ms", 50)
        yield Measurement("runjob: maximum", max(runjob[1:]), "ms")
        yield Measurement("runjob: first event in a new interpreter", runjob[0], "ms")
        jobobit = _milliseconds(site.hook, [_jobobit(number) for number in range(RUNS)])
        yield Measurement("jobobit: a cluster is deleted", median(jobobit[1:]), "ms", 50)
        queuejob = _milliseconds(site.hook, [_queuejob(number) for number in range(RUNS)])
        yield Measurement("queuejob: a name is looked up", median(queuejob[1:]), "ms", 50)
    with create_server(("127.0.0.1", 0)) as silent:
        down = ServerHook(f"http://127.0.0.1:{silent.getsockname()[1]}")
        waits = _milliseconds(down, [_runjob(number, REQUEST) for number in range(RUNS)])
        yield Measurement("runjob, SBF does not answer: first event", waits[0] / 1000, "s", 2)
        yield Measurement("runjob, SBF does not answer: maximum of the next events", max(waits[1:]), "ms", 50)


def _runjob(number: int, line: str | None) -> HookEvent:
    resources = RAN if line is None else {**RAN, "vcluster": line}
    attributes = {"euser": f"user{number}", "exec_vnode": NODES}
    return HookEvent("runjob", HookJob(f"{number}.bench", attributes, resources))


def _jobobit(number: int) -> HookEvent:
    attributes = {"euser": f"user{number}", "run_version": 1}
    return HookEvent("jobobit", HookJob(f"{number}.bench", attributes, {**RAN, "vcluster": REQUEST}))


def _queuejob(number: int) -> HookEvent:
    job = HookJob("", {}, {**RAN, "vcluster": f"{REQUEST}:name=n{number}"})
    return HookEvent("queuejob", job, requestor="alice")


def _milliseconds(server_hook: ServerHook, events: list[HookEvent]) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "config.json"
        config.write_text(json.dumps({"sbf": server_hook.sbf, "token_file": None, **server_hook.settings}))
        documents: list[dict[str, Any]] = [event.as_json(config) for event in events]
        (folder / "events.json").write_text(json.dumps(documents))
        (folder / "hook.py").write_text(hook())
        command = ["python3", *BARE_OPTIONS, str(PLAYER), str(INTERPRETER_PROGRAM.parent.parent), name]
        result = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - the command is our own
    return [1000 * float(text) for text in result.stdout.split()]
