"""What the hook of PBS's server costs the batch system, whose only thread it runs in.

The hook as it is installed, run again and again in an interpreter without packages, as PBS does; with a real SBF over
TLS, and with one that takes calls and says nothing. PBS starts its interpreter anew every hundred hooks.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from statistics import median
from typing import Any

from pbs_fakes.server_hook import NODES, RAN, ServerHook, hook
from pbs_fakes.site import real_site

from benchmarks.figure import Figure
from virtcloud.testing.fakepbs import Event, Job
from virtcloud.testing.fakepbs.runner import BARE, RUN

RUNS = 60
REQUEST = "image=debian12:guests=2:subnet=10.0.0.0/24"
PLAYER = Path(__file__).parent / "server_hook_player.py"


def run() -> Iterator[Figure]:
    """Play events of each kind."""
    with real_site() as site:
        plain = _milliseconds(site.hook, [_runs(number, None) for number in range(RUNS)])
        yield Figure("a job without a cluster", median(plain[1:]), "ms", 2)
        yield Figure("the slowest of them", max(plain[1:]), "ms")
        asked = _milliseconds(site.hook, [_runs(number, REQUEST) for number in range(RUNS)])
        yield Figure("runjob: a cluster is asked for", median(asked[1:]), "ms", 50)
        yield Figure("the slowest of them", max(asked[1:]), "ms")
        yield Figure("the first in a new interpreter", asked[0], "ms")
        ended = _milliseconds(site.hook, [_ends(number) for number in range(RUNS)])
        yield Figure("jobobit: a cluster is ended", median(ended[1:]), "ms", 50)
        submitted = _milliseconds(site.hook, [_submitted(number) for number in range(RUNS)])
        yield Figure("queuejob: a name is looked up", median(submitted[1:]), "ms", 50)
    with create_server(("127.0.0.1", 0)) as silent:
        down = ServerHook(f"http://127.0.0.1:{silent.getsockname()[1]}")
        waits = _milliseconds(down, [_runs(number, REQUEST) for number in range(RUNS)])
        yield Figure("runjob, SBF says nothing: the first", waits[0] / 1000, "s", 2)
        yield Figure("all others of the next minute", max(waits[1:]), "ms", 50)


def _runs(number: int, line: str | None) -> Event:
    resources = RAN if line is None else {**RAN, "vcluster": line}
    attributes = {"euser": f"user{number}", "exec_vnode": NODES}
    return Event("runjob", Job(f"{number}.bench", attributes, resources))


def _ends(number: int) -> Event:
    attributes = {"euser": f"user{number}", "run_version": 1}
    return Event("jobobit", Job(f"{number}.bench", attributes, {**RAN, "vcluster": REQUEST}))


def _submitted(number: int) -> Event:
    job = Job("", {}, {**RAN, "vcluster": f"{REQUEST}:name=n{number}"})
    return Event("queuejob", job, requestor="alice")


def _milliseconds(server_hook: ServerHook, events: list[Event]) -> list[float]:
    """Play events in one interpreter, one after the other; gives what each took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "config.json"
        config.write_text(json.dumps({"sbf": server_hook.sbf, "token_file": None, **server_hook.settings}))
        told: list[dict[str, Any]] = [one.told(config) for one in events]
        (folder / "events.json").write_text(json.dumps(told))
        (folder / "hook.py").write_text(hook())
        command = ["python3", *BARE, str(PLAYER), str(RUN.parent.parent), name]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own
    return [1000 * float(one) for one in ran.stdout.split()]
