"""Comparison with networking-generic-switch: the same VLANs on the same two trunks of the same emulated switch.

A command takes 300 ms; the configuration is saved after each change; both run in the same run. Our driver is the
service's: its time includes a reading before and after the change, which networking-generic-switch does not do. That
one is measured with a connection for each change (its default) and with a kept connection
(``ngs_ssh_reuse_connection``). It is installed from PyPI into a virtual environment in the temporary folder.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import gettempdir

from emulators.switch_device import ENABLE_SECRET, PASSWORD

from benchmarks.installation import HOST_PORTS
from benchmarks.measurement import TIMES, Measurement
from benchmarks.second_change import driver_for
from benchmarks.switches import switches
from sbf_service.drivers.contract import SwitchDriver, SwitchScope
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted, compare_switch

PACKAGE = "networking-generic-switch"
HOME = Path(gettempdir()) / "virtcloud-benchmarks-neighbour"
PORTS = tuple(PortName(port) for port in HOST_PORTS)
MANAGED = SwitchScope(PORTS, VlanSet.parse("100-199"))
SINGLE = [100, 102, 104]
MANY = range(110, 116)


def run() -> Iterator[Measurement]:
    """Measure our driver, the other one, and the other one with a kept connection."""
    if not _installed():
        print(f"SKIPPED: side by side: {PACKAGE} cannot be installed here", file=sys.stderr)  # noqa: T201
        return
    with switches(1) as emulated:
        driver = driver_for(emulated.addresses[0])
        try:
            _change(driver, SINGLE[:1])
            _change(driver, [])
            ours = median(_change(driver, [vlan]) for vlan in SINGLE)
            _change(driver, [])
            many = _change(driver, list(MANY))
            _change(driver, [])
        finally:
            driver.close()
        theirs = _neighbour(emulated.addresses[0], keeps=False, vlans=SINGLE)
        kept = _neighbour(emulated.addresses[0], keeps=True, vlans=[120, *MANY])
    yield Measurement("a VLAN on two trunks, ours", ours, "s")
    yield Measurement("the same, networking-generic-switch", median(theirs), "s")
    yield Measurement("ours against it", ours / median(theirs), TIMES)
    yield Measurement("ours against it with a kept connection", ours / median(kept[1:]), TIMES)
    yield Measurement(f"{len(MANY)} VLANs on two trunks, ours", many, "s")
    yield Measurement("ours against it with a kept connection, all of them", many / sum(kept[1:]), TIMES)


def _change(driver: SwitchDriver, vlans: list[int]) -> float:
    """Set the ports' VLANs as a worker does. Return the seconds."""
    wanted = SwitchWanted(ports=dict.fromkeys(PORTS, VlanSet(vlans)))
    started = time.monotonic()
    driver.apply(compare_switch(wanted, driver.read(MANAGED)))
    left = compare_switch(wanted, driver.read(MANAGED))
    if left:
        raise AssertionError(f"expected VLANs {vlans} on the switch, still to do: {left}")
    return time.monotonic() - started


def _neighbour(address: str, *, keeps: bool, vlans: list[int]) -> list[float]:
    """Return the seconds of the other driver for each VLAN."""
    host, _, port = address.partition(":")
    script = Path(__file__).with_name("generic_switch.py")
    told = [host, port, "admin", PASSWORD, ENABLE_SECRET, ",".join(PORTS), str(keeps), *map(str, vlans)]
    done = subprocess.run(  # noqa: S603 - our own
        [HOME / "bin" / "python", script, *told], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"{PACKAGE} did not do it: {done.stderr[-2000:]}")
    found: list[float] = json.loads(done.stdout)
    return found


def _installed() -> bool:
    """Install the other driver, unless an earlier run did."""
    marker = HOME / "installed"
    if marker.exists():
        return True
    steps: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", HOME],
        [HOME / "bin" / "pip", "install", "-q", PACKAGE],
    ]
    if any(subprocess.run(step, check=False).returncode for step in steps):  # noqa: S603 - our own
        return False
    marker.touch()
    return True
