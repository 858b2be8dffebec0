"""Measures how long the agent, bare netlink messages, and ``ip`` commands take to create segments of a host.

A segment is a VLAN interface and a bridge. The agent also checks foreign interfaces, sets names, owners and MTUs, and
disables the host's IP stack on the new interfaces. Bare netlink and ``ip`` only create both interfaces, attach the VLAN
interface to the bridge, and bring both interfaces up.

The comparison of the agent with bare netlink is a median of ratios: each segment of bare netlink is compared with the
agent's next nine segments. The other comparisons use the shortest times, because other programs can only lengthen a
creation. The segments are in a new network namespace in the kernel of the lab, because not every machine's kernel has
802.1Q.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyroute2 import IPRoute

from benchmarks.measurement import TIMES, Measurement
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import UplinkRecordFiles
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.steps import BuildSegment
from virtcloud.lab import Lab, LabOptions, read_lab_file
from virtcloud.lab.state import LabState
from virtcloud.model.wanted import Segment

CLONE_NEWNET = 0x40000000  # linux/sched.h
ROUNDS, COMMAND_ROUNDS, MANY, HUNDRED = 10, 4, 1000, 100
ROOT = Path(__file__).parents[1]
LAB_HOST = "praha-h2"
UPLINK = "up0"
BARE_EVERY = 10
FIRST = 200


def run() -> Iterator[Measurement]:
    """Measure in a lab that has the default topology, but runs neither SBF nor agents."""
    with TemporaryDirectory() as folder:
        lab = Lab.up(read_lab_file(), LabOptions(bare=True), state=LabState(Path(folder) / "lab"))
        try:
            program = ("env", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-m", __spec__.name)
            found = json.loads(lab.run(LAB_HOST, program, timeout_s=900, check=True).stdout)
        finally:
            lab.down()
    many, bare = found["many"], found["many bare"]
    neighbours = (
        [many[number * (BARE_EVERY - 1) + other] for other in range(BARE_EVERY - 1)] for number in range(len(bare))
    )
    yield Measurement("a segment, created by the agent", 1000 * median(many), "ms")
    ratio = median(median(times) / seconds for times, seconds in zip(neighbours, bare, strict=True))
    yield Measurement("the agent compared with bare netlink", ratio, TIMES, 1.5)
    faster = min(found["commands"]) / min(found["agent"])
    yield Measurement("ip commands compared with the agent", faster, TIMES, 5, at_least=True)
    what = f"last hundred of {MANY:,} segments compared with the first hundred"
    yield Measurement(f"{what}, agent", _compare_hundreds(found["many"]), TIMES, 1.2)
    yield Measurement(f"{what}, bare netlink", _compare_hundreds(found["many bare"]), TIMES)


def _compare_hundreds(times: list[float]) -> float:
    part = len(times) * HUNDRED // MANY
    return min(times[-part:]) / min(times[:part])


def measure(many: int = MANY) -> dict[str, list[float]]:
    """Measure the creations of segments, and return the durations in seconds.

    The lists ``agent``, ``bare`` and ``commands`` contain the durations of alternate creations. The lists ``many`` and
    ``many bare`` contain the durations of the later creations by the agent and by bare netlink. Raise OSError if no
    network namespace can be created.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")
    _run(f"ip link add {UPLINK} type veth peer name switch")
    _run(f"ip link set {UPLINK} up")
    with TemporaryDirectory() as folder, closing(NetlinkKernel()) as kernel, IPRoute() as netlink:
        segments = SegmentInterfaces(kernel, UplinkRecordFiles(Path(folder)))
        host = LocalHost(segments, LocalGuests({}, GuestSettings(Path(folder), Path(folder), "x86_64"), time.sleep))
        creators = {
            "agent": lambda one: host.apply(BuildSegment(one)),
            "bare": lambda one: _create_barely(netlink, one),
            "commands": _create_by_commands,
        }
        found: dict[str, list[float]] = {creator: [] for creator in creators}
        for number in range(ROUNDS):
            for offset, (creator, create) in enumerate(creators.items()):
                if creator == "commands" and number >= COMMAND_ROUNDS:
                    continue  # ip commands are slow, so they get fewer rounds
                found[creator].append(_time(create, _segment(2 + 3 * number + offset)))
        found |= {"many": [], "many bare": []}
        for number in range(many):
            creator, times = ("bare", "many bare") if number % BARE_EVERY == 0 else ("agent", "many")
            found[times].append(_time(creators[creator], _segment(FIRST + number)))
    return found


def _time(create: Any, segment: Segment) -> float:  # noqa: ANN401 - a function
    started = time.perf_counter()
    create(segment)
    return time.perf_counter() - started


def _segment(vlan: int) -> Segment:
    return Segment.model_validate({"id": f"{vlan:012}", "key": f"k{vlan}", "vlan": vlan, "port": UPLINK, "guests": []})


def _create_barely(netlink: IPRoute, segment: Segment) -> None:
    tagged, bridge = names.tagged_interface_name(UPLINK, segment.vlan), names.bridge_name(segment.vlan)
    parent = netlink.link_lookup(ifname=UPLINK)[0]
    netlink.link("add", ifname=tagged, kind="vlan", link=parent, vlan_id=segment.vlan)
    netlink.link("add", ifname=bridge, kind="bridge")
    index = netlink.link_lookup(ifname=bridge)[0]
    netlink.link("set", index=netlink.link_lookup(ifname=tagged)[0], master=index, state="up")
    netlink.link("set", index=index, state="up")


def _create_by_commands(segment: Segment) -> None:
    tagged, bridge = names.tagged_interface_name(UPLINK, segment.vlan), names.bridge_name(segment.vlan)
    _run(f"ip link add link {UPLINK} name {tagged} type vlan id {segment.vlan}")
    _run(f"ip link add {bridge} type bridge")
    _run(f"ip link set {tagged} master {bridge} up")
    _run(f"ip link set {bridge} up")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)  # noqa: S603 - no input


if __name__ == "__main__":
    print(json.dumps(measure(int(os.environ.get("SEGMENTS", MANY)))))  # noqa: T201 - a command's output
