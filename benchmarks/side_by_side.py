"""Comparison with networking-generic-switch: the same VLANs on the same two trunks of the same emulated switch.

The emulated switch takes 300 ms for each command. Both programs save the configuration after each change. Only
virtcloud's driver reads the switch: before the change, before the save and after the save. networking-generic-switch is
measured with a new connection for each change (its default), and with a reused connection
(``ngs_ssh_reuse_connection``).
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import gettempdir

from support.emulators.switch_device import ENABLE_SECRET, PASSWORD

from benchmarks.installation import HOST_PORTS
from benchmarks.measurement import TIMES, Measurement
from benchmarks.second_change import driver_for
from benchmarks.switches import switches
from sbf_service.drivers.contract import SwitchDriver, SwitchScope
from virtcloud.model.switch_state import SwitchWanted, compare_switch
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

PACKAGE = "networking-generic-switch"
HOME = Path(gettempdir()) / "virtcloud-benchmarks-generic-switch"
PORTS = tuple(PortName(port) for port in HOST_PORTS)
MANAGED = SwitchScope(PORTS, VlanSet.parse("100-199"))
SINGLE = [100, 102, 104]
MANY = range(110, 116)
COMPARED = "virtcloud compared with networking-generic-switch"


def run() -> Iterator[Measurement]:
    """Measure virtcloud's driver, then networking-generic-switch with new connections and with a reused connection."""
    if not _try_to_install():
        print(f"SKIPPED: side by side: {PACKAGE} cannot be installed here", file=sys.stderr)  # noqa: T201
        return
    with switches(1) as emulated:
        driver = driver_for(emulated.addresses[0])
        try:
            _change(driver, SINGLE[:1])
            _change(driver, [])
            single = median(_change(driver, [vlan]) for vlan in SINGLE)
            _change(driver, [])
            many = _change(driver, list(MANY))
            _change(driver, [])
        finally:
            driver.close()
        other = median(_time_generic_switch(emulated.addresses[0], reuse=False, vlans=SINGLE))
        reused = _time_generic_switch(emulated.addresses[0], reuse=True, vlans=[120, *MANY])[1:]
    yield Measurement("one VLAN on two trunks: virtcloud", single, "s")
    yield Measurement("one VLAN on two trunks: networking-generic-switch", other, "s")
    yield Measurement(f"one VLAN: {COMPARED}", single / other, TIMES)
    yield Measurement(f"one VLAN: {COMPARED}, reused connection", single / median(reused), TIMES)
    yield Measurement(f"{len(MANY)} VLANs on two trunks: virtcloud", many, "s")
    yield Measurement(f"{len(MANY)} VLANs: {COMPARED}, reused connection", many / sum(reused), TIMES)


def _change(driver: SwitchDriver, vlans: list[int]) -> float:
    wanted = SwitchWanted(ports=dict.fromkeys(PORTS, VlanSet(vlans)))
    started = time.monotonic()
    driver.apply(compare_switch(wanted, driver.read(MANAGED)))
    driver.read(MANAGED)
    driver.save()
    difference = compare_switch(wanted, driver.read(MANAGED))
    if difference:
        raise AssertionError(f"expected VLANs {vlans} on the switch, found the difference {difference}")
    return time.monotonic() - started


def _time_generic_switch(address: str, *, reuse: bool, vlans: list[int]) -> list[float]:
    host, _, port = address.partition(":")
    script = Path(__file__).with_name("generic_switch.py")
    arguments = [host, port, "admin", PASSWORD, ENABLE_SECRET, ",".join(PORTS), str(reuse), *map(str, vlans)]
    result = subprocess.run(  # noqa: S603 - the command is our own
        [HOME / "bin" / "python", script, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    if result.returncode != 0:
        raise AssertionError(f"{PACKAGE} failed: {result.stderr[-2000:]}")
    durations: list[float] = json.loads(result.stdout)
    return durations


def _try_to_install() -> bool:
    marker = HOME / "installed"
    if marker.exists():
        return True
    steps: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", HOME],
        [HOME / "bin" / "pip", "install", "-q", PACKAGE],
    ]
    if any(subprocess.run(step, check=False).returncode for step in steps):  # noqa: S603 - the command is our own
        return False
    marker.touch()
    return True
