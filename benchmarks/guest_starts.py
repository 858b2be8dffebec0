"""Starts of LXC guests on one host: one guest, and twelve guests side by side.

The agent's own code starts the guests with a libvirtd in namespaces of this machine's kernel. Three cases alternate in
rounds: one guest, twelve guests side by side, and twelve guests one after the other. Each value is the shortest time of
a case, because other programs only lengthen a start. The measurement of a time ends when libvirt has started the first
processes of the guests. The processor time includes libvirt and the guests.

The table contains the ratio of the time of twelve guests to the time of one guest. The *least ratio* is a lower bound
of this ratio: the processor time of twelve starts, divided by the number of processors and by the time of one start. No
order of the starts can have a lower ratio. The target is twice the least ratio, and a ratio of 3 on machines whose
least ratio is at most 3 (decision 91, which also has the causes of the difference). On a busy machine, the ratio is
greater, because other programs delay twelve guests in every round, and one guest only in some rounds.
"""

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmarks.container_host import NoContainerHost, libvirt_of_containers, read_processor_s, run_in_namespaces
from benchmarks.measurement import TIMES, Measurement, measure_load
from virtcloud.agent.guests import guests as guests_module
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.guests.hypervisor import LibvirtHypervisor
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import UplinkRecordFiles
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.step_application import StepApplication, count_starts
from virtcloud.agent.steps import StartGuest
from virtcloud.agent.supervision import StopSignal
from virtcloud.lab.lab_images import make_container_image
from virtcloud.model.element import Hypervisor
from virtcloud.model.wanted import Segment

ROUNDS, MANY, POSSIBLE_RATIO = 7, 12, 3
CASES = {"one": (1, 1), "together": (MANY, count_starts(3)), "in turn": (MANY, 1)}
"""For each case: the number of guests, and the number of guests that start at the same time."""


def run() -> Iterator[Measurement]:
    """Measure in new namespaces of this machine's kernel."""
    yield measure_load()
    try:
        found = json.loads(run_in_namespaces("benchmarks.guest_starts"))
    except NoContainerHost as error:
        print(f"guest_starts: not measured: {error}", flush=True)  # noqa: T201 - a command's output
        return
    yield Measurement("one guest", found["one"], "s")
    for part, seconds in found["parts"].items():
        yield Measurement(f"one guest: {part}", seconds, "s")
    yield Measurement(f"processor time of a start, {MANY} guests side by side", found["processor"], "s")
    yield Measurement("of this processor time: the agent itself", found["agent"], "s")
    what, shares = f"{MANY} guests side by side compared with one", len(os.sched_getaffinity(0)) * found["one"]
    least, ratio = MANY * found["processor"] / shares, found["together"] / found["one"]
    yield Measurement(f"{what}: the least ratio", least, TIMES)
    libvirts = found["processor"] - found["agent"]
    yield Measurement(f"{what}: the least ratio without the agent's share", MANY * libvirts / shares, TIMES)
    yield Measurement(
        f"{MANY} guests side by side: processors in use", MANY * found["processor"] / found["together"], ""
    )
    yield Measurement(what, ratio, TIMES, POSSIBLE_RATIO if least <= POSSIBLE_RATIO else None)
    yield Measurement(f"{what}, divided by the least ratio", ratio / least, TIMES, 2)
    yield Measurement(f"{MANY} guests one after the other compared with one", found["in turn"] / found["one"], TIMES)


class MeasuredHost:
    """A host with one segment, and the times of the parts of its guests' starts."""

    def __init__(self, folder: Path) -> None:
        """Create the segment's bridge, and an image."""
        make_container_image(folder / "images")
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.processor_s = self.own_processor_s = 0.0
        hypervisor = LibvirtHypervisor("lxc:///system")
        settings = GuestSettings(folder / "images", folder / "guests", "x86_64", confined=False, stop_grace_s=1)
        self.guests = LocalGuests({Hypervisor.LXC: hypervisor}, settings, time.sleep)
        kernel = NetlinkKernel()
        kernel.change(kernel.add_bridge(names.bridge_name(100)), up=True)
        host = LocalHost(SegmentInterfaces(kernel, UplinkRecordFiles(folder / "uplinks")), self.guests)
        self.segment = Segment.model_validate(_segment(MANY))
        self._host = host
        self._record_parts(hypervisor)

    def start(self, number: int, at_once: int) -> float:
        """Start ``number`` guests, ``at_once`` at a time, and stop them.

        Return the duration of the starts in seconds.
        """
        steps = [StartGuest(self.segment, guest) for guest in self.segment.guests[:number]]
        application = StepApplication("bench", self._host, StopSignal(), lambda: None, at_once)
        started, used, own = time.monotonic(), read_processor_s(), time.process_time()
        errors = application.apply(steps, {}).errors
        seconds = time.monotonic() - started
        self.processor_s = (read_processor_s() - used) / number
        self.own_processor_s = (time.process_time() - own) / number
        self.guests.ensure_no_guests(self.segment.id, tuple(step.guest.name for step in steps))
        if errors:
            raise AssertionError(errors)
        return seconds

    def _record_parts(self, hypervisor: LibvirtHypervisor) -> None:
        self._record(self.guests._roots, "ensure", "root file system")  # noqa: SLF001 - measured part
        self._record(hypervisor, "start", "libvirt starts the container")
        self._record(guests_module, "_write_seed", "seed")

    def _record(self, owner: Any, name: str, part: str) -> None:  # noqa: ANN401 - an object or a module
        call: Callable[..., object] = getattr(owner, name)

        def measured(*arguments: object, **options: object) -> object:
            started = time.monotonic()
            try:
                return call(*arguments, **options)
            finally:
                self.parts[part].append(time.monotonic() - started)

        setattr(owner, name, measured)


def measure() -> dict[str, Any]:
    """Return the shortest time of each case, the times of the parts of the fastest single start, and processor times.

    The times are in seconds. ``processor`` is the processor time of twelve starts side by side, divided by twelve, in
    the round with the least value. ``agent`` is the agent's part of this time.
    """
    folder = Path(mkdtemp())
    folder.chmod(0o711)
    try:
        with libvirt_of_containers():
            return _measure(MeasuredHost(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(host: MeasuredHost) -> dict[str, Any]:
    host.start(1, 1)
    times: dict[str, list[float]] = {case: [] for case in CASES}
    parts: list[dict[str, float]] = []
    processor: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        for case, of_case in times.items():
            host.parts.clear()
            of_case.append(host.start(*CASES[case]))
            if case == "one":
                parts.append({part: sum(seconds) for part, seconds in host.parts.items()})
            elif case == "together":
                processor.append((host.processor_s, host.own_processor_s))
    fastest = parts[times["one"].index(min(times["one"]))]
    found = {case: min(of_case) for case, of_case in times.items()}
    whole, own = min(processor)
    return {**found, "parts": fastest, "processor": whole, "agent": own}


def _segment(number: int) -> dict[str, Any]:
    guest = {"image": "busybox", "memory_mb": 32, "cpus": 1}
    return {
        "id": "b" * 12,
        "key": "bench",
        "vlan": 100,
        "port": "eth0",
        "guests": [
            {"name": f"n{one}", "mac": f"02:00:00:00:00:{one:02x}", "addresses": [f"10.0.0.{one}/24"], **guest}
            for one in range(1, number + 1)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(measure()))  # noqa: T201 - a command's output
