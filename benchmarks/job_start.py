"""From ``qsub`` to the first line of a job's script: three hosts at three sites, an LXC guest on each, a real OpenPBS.

The lab, its OpenPBS and our hooks run on this machine. Jobs without and with a cluster alternate. The former measure
PBS, and the difference measures our part: the hooks, the network, the guests, and waiting for them. Figures are
medians. The clocks of the hosts are compared with the station's. Without an installed OpenPBS
(docs/how-to/get-openpbs.md), nothing is measured.
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
PATIENCE_S = 120
PLAIN = "date +%s.%N"
SCRIPT = f'{PLAIN}; stat -c %.9Y "$VCLUSTER_HOSTS"'
"""Prints the time of the script's first line, and when the agent wrote the job's files after the start barrier."""


@dataclass(frozen=True)
class Start:
    """The moments of a job's start, in seconds of the station's clock."""

    asked: float
    submitted: float
    first_line: float
    claimed: float = 0.0
    active: float = 0.0
    passed: float = 0.0


def run() -> Iterator[Measurement]:
    """Measure each part of a start, and our part in total."""
    try:
        with _installation() as batch:
            _start(batch, cluster=True)
            pairs = [(_start(batch, cluster=False), _start(batch, cluster=True)) for _ in range(REPEATS)]
    except NotFound as error:
        print(f"job_start: not measured: {error}", flush=True)  # noqa: T201 - a command's output
        return
    plain, ours = [plain_start for plain_start, _ in pairs], [cluster_start for _, cluster_start in pairs]
    yield Measurement(
        "a job without a cluster, qsub to first line", _median(plain, lambda start: start.first_line - start.asked), "s"
    )
    yield Measurement(
        "a job with a cluster, qsub to first line", _median(ours, lambda start: start.first_line - start.asked), "s"
    )
    yield Measurement("qsub without a cluster", _median(plain, lambda start: start.submitted - start.asked), "s")
    yield Measurement("qsub with a cluster", _median(ours, lambda start: start.submitted - start.asked), "s")
    yield Measurement(
        "submitted to claimed: PBS allocates hosts", _median(ours, lambda start: start.claimed - start.submitted), "s"
    )
    yield Measurement(
        "claimed to active: switches, bridges, guests", _median(ours, lambda start: start.active - start.claimed), "s"
    )
    yield Measurement(
        "active to passed: guests answer, start barrier", _median(ours, lambda start: start.passed - start.active), "s"
    )
    yield Measurement(
        "passed to first line: PBS starts it", _median(ours, lambda start: start.first_line - start.passed), "s"
    )
    longer = median(two.first_line - two.asked - (one.first_line - one.asked) for one, two in pairs)
    yield Measurement("our part: with a cluster minus without", longer, "s", 3)


def _median(starts: list[Start], part: Callable[[Start], float]) -> float:
    return median(part(start) for start in starts)


@contextmanager
def _installation() -> Iterator[LabPbs]:
    """Run the default lab with an OpenPBS on three of its hosts and our hooks."""
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
    """Run one job until everything of it is removed."""
    asked, key, submitted = _submit(batch, cluster=cluster)
    said = [float(word) for word in _output(batch, key).split()]
    behind = _behind(batch, HOSTS[0])
    if not cluster:
        return Start(asked, submitted, said[0] + behind)
    with SbfClient(f"unix://{batch.lab.sbf_socket}") as client:
        at = {row.what: row.at.timestamp() for row in client.audit(cluster=key)}
        _await(lambda: client.cluster(key).state == "released", f"cluster {key} gone")
    return Start(asked, submitted, said[0] + behind, at["cluster_created"], at["cluster_active"], said[1] + behind)


def _submit(batch: LabPbs, *, cluster: bool) -> tuple[float, str, float]:
    wishes = "-l vcluster=image=busybox" if cluster else ""
    qsub = f"qsub -o out -j oe -l select=3:ncpus=1 -l place=scatter:excl -l walltime=300 {wishes}"
    script = SCRIPT if cluster else PLAIN
    line = f"rm -f out; date +%s.%N; echo '{script}' | {qsub}; date +%s.%N"
    done = batch.user("alice", ["sh", "-c", line])
    asked, key, submitted = done.stdout.split()
    return float(asked), key.lower(), float(submitted)


def _output(batch: LabPbs, key: str) -> str:
    def ended() -> bool:
        return "job_state = F" in batch.user("alice", ["qstat", "-xf", key]).stdout

    _await(ended, f"job {key}")
    return batch.user("alice", ["cat", "out"]).stdout


def _behind(batch: LabPbs, host: str) -> float:
    """Return the difference between the station's clock and a host's, in seconds."""
    before = float(batch.lab.run(addressing.STATION, ["date", "+%s.%N"], check=True).stdout)
    there = float(batch.lab.run(host, ["date", "+%s.%N"], check=True).stdout)
    after = float(batch.lab.run(addressing.STATION, ["date", "+%s.%N"], check=True).stdout)
    return (before + after) / 2 - there


def _await(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > ends:
            raise AssertionError(f"waited {PATIENCE_S} s for: {what}")
        time.sleep(0.2)
