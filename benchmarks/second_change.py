"""The connection time of the second change on a device, compared with the first change.

Each change begins with a reading of the device. The service's driver reads an emulated switch (300 ms a command) three
times. The connection time of a reading is its duration minus the duration of the third reading.
"""

import time
from collections.abc import Iterator
from statistics import median

from pydantic import SecretStr
from support.emulators.switch_device import ENABLE_SECRET, PASSWORD

from benchmarks.installation import HOST_PORTS
from benchmarks.measurement import TIMES, Measurement
from benchmarks.switches import PLATFORM, switches
from sbf_service.drivers.contract import DeviceLogin, SwitchDriver, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.element import Switch
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

REPEATS = 5
MANAGED = SwitchScope(tuple(PortName(port) for port in HOST_PORTS), VlanSet.parse("100-199"))


def run() -> Iterator[Measurement]:
    """Measure several sessions of three readings, and omit the first session, which also loads the SSH library."""
    with switches(1) as emulated:
        sessions = [_time_session(emulated.addresses[0]) for _ in range(REPEATS + 1)][1:]
        logins = int(str(emulated.read("logins")[0]))
    first, second, third = (median(times) for times in zip(*sessions, strict=True))
    if logins != REPEATS + 1:
        raise AssertionError(f"expected a login for each of {REPEATS + 1} sessions, counted {logins}")
    connecting = first - third
    yield Measurement("connection time of the first change", connecting, "s")
    yield Measurement(
        "connection time of the second change, compared with the first", max(0, second - third) / connecting, TIMES, 0.2
    )


def driver_for(address: str) -> SwitchDriver:
    """Return a driver of the emulated switch at ``address``. The driver has not connected yet."""
    document = {"name": "sw1", "platform": PLATFORM, "address": address, "ports": list(MANAGED.ports)}
    login = DeviceLogin(
        Switch.model_validate(document), "admin", password=SecretStr(PASSWORD), enable=SecretStr(ENABLE_SECRET)
    )
    return SWITCH_PLATFORMS[PLATFORM].driver(login)


def _time_session(address: str) -> list[float]:
    driver = driver_for(address)
    try:
        return [_timed(driver) for _ in range(3)]
    finally:
        driver.close()


def _timed(driver: SwitchDriver) -> float:
    started = time.monotonic()
    driver.read(MANAGED)
    return time.monotonic() - started
