"""Guests that ping, and captures of frames as they are."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from virtcloud.lab.demo.stage import Stage
from virtcloud.lab.observe import guests
from virtcloud.model.views import ClusterView

WINDOW_S = 6
INSIDE = 'exec nsenter -t "$(pgrep -P "$(pgrep -f "libvirt_lxc --name $0 ")")" -n -m -u -- "$@"'
"""Runs a command in a guest: its first process is the only child of its libvirt_lxc."""
ABSENT = "10.0.0.77"
"""An address that no guest has: the question for it goes to every guest of the cluster, and to nobody else."""


@dataclass(frozen=True, slots=True)
class Pinged:
    """What ping said: its exit code and its last lines."""

    answered: bool
    words: str


def ping(stage: Stage, view: ClusterView, guest: int, address: str, *options: str) -> Pinged:
    """Let the cluster's guest number ``guest`` (from 0) ping ``address``."""
    chosen = view.spec.guests[guest]
    domain = next(name for name in guests(stage.lab, chosen.host) if view.id in name and name.endswith(chosen.name))
    done = stage.lab.run(chosen.host, ("sh", "-c", INSIDE, domain, "/bin/ping", *options, address))
    return Pinged(done.returncode == 0, " ".join(done.stdout.split("\n")[-3:]).strip() or done.stderr.strip())


def listen(stage: Stage, pool: ThreadPoolExecutor, node: str, interface: str, *words: str) -> Future[list[str]]:
    """Capture on a node's interface for some seconds; the result is a line per frame."""
    command = ("timeout", str(WINDOW_S), "tcpdump", "-Z", "root", "-l", "-nn", "-e", "-i", interface, *words)

    def capture() -> list[str]:
        said = stage.lab.run(node, command)
        if "listening on" not in said.stderr:
            raise RuntimeError(f"tcpdump on {node} {interface}: {said.stderr.strip()}")
        return said.stdout.splitlines()

    return pool.submit(capture)
