"""Measures the time from ``qsub`` to the first line of a job's script, with a real OpenPBS.

Each job has three hosts at three sites. A job's cluster has an LXC guest on each host.

The lab, its OpenPBS and virtcloud's hooks run on one computer. Jobs with a cluster alternate with jobs without a
cluster. The difference between their times is virtcloud's part of the start: the hooks, the network, the guests, and
the wait until the guests answer. Measured values are medians. Users submit the jobs on the lab's *station*. If OpenPBS
is not installed (docs/how-to/get-openpbs.md), nothing is measured.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.measurement import Measurement
from pbs_hooks.openpbs.qmgr import find_installation
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, addressing, read_lab_file
from virtcloud.lab.pbs import LabPbs
from virtcloud.lab.state import LabState
from virtcloud.model.errors import NotFound

HOSTS = ("brno-h1", "praha-h1", "plzen-h1")
REPEATS = 5
TIMEOUT_S = 120
PLAIN = "date +%s.%N"
SCRIPT = f'{PLAIN}; stat -c %.9Y "$VCLUSTER_HOSTS"'
"""Prints two times: the time of the script's first line, and the time at which the agent wrote the job's files.

The agent writes these files after the start barrier.
"""


@dataclass(frozen=True)
class Start:
    """The times of a job's start, in seconds, measured by the clock of the lab's station."""

    called: float
    submitted: float
    first_line: float
    claimed: float = 0.0
    active: float = 0.0
    passed: float = 0.0


def run() -> Iterator[Measurement]:
    """Measure each phase of a job's start, and the total time that virtcloud adds to a start."""
    try:
        with _installation() as batch:
            _start(batch, cluster=True)
            pairs = [(_start(batch, cluster=False), _start(batch, cluster=True)) for _ in range(REPEATS)]
    except NotFound as error:
        print(f"job_start: not measured: {error}", flush=True)  # noqa: T201 - a command's output
        return
    plain, with_cluster = [plain_start for plain_start, _ in pairs], [cluster_start for _, cluster_start in pairs]
    for name, starts, part in (
        ("a job without a cluster, qsub to first line", plain, lambda start: start.first_line - start.called),
        ("a job with a cluster, qsub to first line", with_cluster, lambda start: start.first_line - start.called),
        ("qsub without a cluster", plain, lambda start: start.submitted - start.called),
        ("qsub with a cluster", with_cluster, lambda start: start.submitted - start.called),
        ("submitted to claimed: PBS allocates hosts", with_cluster, lambda start: start.claimed - start.submitted),
        ("claimed to active: switches, bridges, guests", with_cluster, lambda start: start.active - start.claimed),
        ("active to passed: guests answer, start barrier", with_cluster, lambda start: start.passed - start.active),
        ("passed to first line: PBS starts the script", with_cluster, lambda start: start.first_line - start.passed),
    ):
        yield Measurement(name, median(map(part, starts)), "s")
    differences = ((second.first_line - second.called) - (first.first_line - first.called) for first, second in pairs)
    yield Measurement("virtcloud's part: with a cluster minus without", median(differences), "s", 3)


@contextmanager
def _installation() -> Iterator[LabPbs]:
    with tempfile.TemporaryDirectory(prefix="vc") as folder:
        state = LabState(Path(folder) / "lab")
        find_installation()
        lab = Lab.up(read_lab_file(), state=state)
        try:
            batch = LabPbs.of(lab)
            batch.start(HOSTS)
            batch.install_hooks()
            yield batch
        finally:
            lab.down()


def _start(batch: LabPbs, *, cluster: bool) -> Start:
    called, key, submitted = _submit(batch, cluster=cluster)
    times = [float(word) for word in _output(batch, key).split()]
    offset = _clock_offset(batch, HOSTS[0])
    if not cluster:
        return Start(called, submitted, times[0] + offset)
    with SbfClient(f"unix://{batch.lab.sbf_socket}") as client:
        at = {row.what: row.at.timestamp() for row in client.audit(cluster=key)}
        _await(lambda: client.cluster(key).state == "released", f"cluster {key} released")
    return Start(called, submitted, times[0] + offset, at["cluster_created"], at["cluster_active"], times[1] + offset)


def _submit(batch: LabPbs, *, cluster: bool) -> tuple[float, str, float]:
    request = "-l vcluster=image=busybox" if cluster else ""
    qsub = f"qsub -o out -j oe -l select=3:ncpus=1 -l place=scatter:excl -l walltime=300 {request}"
    script = SCRIPT if cluster else PLAIN
    line = f"rm -f out; date +%s.%N; echo '{script}' | {qsub}; date +%s.%N"
    done = batch.user("alice", ["sh", "-c", line])
    called, key, submitted = done.stdout.split()
    return float(called), key.lower(), float(submitted)


def _output(batch: LabPbs, key: str) -> str:
    def ended() -> bool:
        return "job_state = F" in batch.user("alice", ["qstat", "-xf", key]).stdout

    _await(ended, f"job {key} finished")
    return batch.user("alice", ["cat", "out"]).stdout


def _clock_offset(batch: LabPbs, host: str) -> float:
    before = float(batch.lab.run(addressing.STATION, ["date", "+%s.%N"], check=True).stdout)
    host_time = float(batch.lab.run(host, ["date", "+%s.%N"], check=True).stdout)
    after = float(batch.lab.run(addressing.STATION, ["date", "+%s.%N"], check=True).stdout)
    return (before + after) / 2 - host_time


def _await(condition: Callable[[], bool], expected: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"expected within {TIMEOUT_S} s: {expected}")
        time.sleep(0.2)
