"""Pings between two guests of a cluster, fifty per second, to count lost frames."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.views import ClusterView

END_FILE, OUTPUT = "/run/pings-over", "/run/pings"
IN_FLIGHT = 3
"""How many pings may be unanswered at the end: an interrupted ``ping`` does not wait for answers."""
SERIES = (
    f'ping -n -i 0.02 "$1" >{OUTPUT} & until [ -e {END_FILE} ]; do sleep 0.1; done; kill -INT $!; wait $!;'
    f" sed -n 's/.*icmp_seq=\\([0-9]*\\) .*/\\1/p; s/\\([0-9]*\\) packets transmitted.*/sent \\1/p' {OUTPUT}"
)
"""A shell script that prints the sequence number of each answered ping, and at the end the number of sent pings.

The host's ping runs in the guest's network namespace, because busybox's ping supports no interval.
"""


@dataclass
class Pings:
    """How many pings were sent, and the sequence numbers of the lost pings. The first ping has the number 1."""

    sent: int = 0
    lost: list[int] = field(default_factory=list)


@contextmanager
def pinging(lab: Lab, view: ClusterView, guest: int, address: str) -> Iterator[Pings]:
    host = view.spec.guests[guest].host
    (domain,) = (name for name in read_guests(lab, host) if name.endswith(f"-{view.spec.guests[guest].name}"))
    enter_network = ENTER_CONTAINER.replace(" -n -m ", " -n ")
    lab.run(host, ["rm", "-f", END_FILE], check=True)
    pings = Pings()
    with ThreadPoolExecutor(1) as pool:
        series = pool.submit(lab.run, host, ("sh", "-c", enter_network, domain, "sh", "-c", SERIES, "sh", address))
        try:
            yield pings
        finally:
            lab.run(host, ["touch", END_FILE], check=True)
    answered, _, sent = series.result().stdout.partition("sent ")
    pings.sent = int(sent)
    pings.lost = find_lost(set(map(int, answered.split())), pings.sent)


def find_lost(answered: set[int], sent: int) -> list[int]:
    """Return the sequence numbers of the pings without an answer.

    If at most `IN_FLIGHT` pings were sent after the last answered ping, these pings do not count as lost.
    """
    last = max(answered, default=0)
    complete = last if sent - last <= IN_FLIGHT else sent
    return [number for number in range(1, complete + 1) if number not in answered]
