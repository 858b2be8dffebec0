"""Pings between two guests of a cluster, fifty per second, to count lost frames."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.views import ClusterView

END_FILE = "/run/pings-over"
COUNT = 25
SERIES = (
    f'until [ -e {END_FILE} ]; do ping -n -i 0.02 -c {COUNT} -W 2 "$1"'
    " | sed -n 's/.*icmp_seq=\\([0-9]*\\) .*/\\1/p; s/.* packets transmitted.*/end/p'; done"
)
"""Prints the number of each answered ping, and ``end`` after each series.

The command is the host's ping in the guest's network namespace, because the ping of busybox supports no interval.
"""


@dataclass
class Pings:
    """The numbers of sent and answered pings."""

    sent: int = 0
    answered: int = 0


@contextmanager
def pinging(lab: Lab, view: ClusterView, guest: int, address: str) -> Iterator[Pings]:
    """Ping from guest number ``guest`` (from 0) of a cluster during the context.

    Count the answers when the context ends.
    """
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
    for answered in series.result().stdout.split("end\n")[:-1]:
        numbers = set(map(int, answered.split()))
        # ping waits only twice the round-trip time for the last answer, so a missing last answer does not count
        pings.sent += COUNT - 1 if numbers == set(range(1, COUNT)) else COUNT
        pings.answered += len(numbers)
