"""What the second change on a device spends on its connection, against the first one.

The driver that the service uses asks an emulated switch (300 ms a command) the same questions thrice: what the first
time takes longer than the third is its connection, what the second takes longer than the third is what is left of it.
"""

import time
from collections.abc import Iterator
from statistics import median

from emulators.switch_device import ENABLE_SECRET, PASSWORD
from pydantic import SecretStr

from benchmarks.installation import HOST_PORTS
from benchmarks.measurement import TIMES, Measurement
from benchmarks.switches import PLATFORM, switches
from sbf_service.drivers.contract import DeviceLogin, SwitchDriver, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.element import Switch
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

REPEATS = 5
MANAGED = SwitchScope(tuple(PortName(one) for one in HOST_PORTS), VlanSet.parse("100-199"))


def run() -> Iterator[Measurement]:
    """Measure some sessions; the library is loaded before, and that once."""
    with switches(1) as emulated:
        taken = [_session(emulated.addresses[0]) for _ in range(REPEATS + 1)][1:]
        logins = int(str(emulated.ask("logins")[0]))
    first, second, third = (median(times) for times in zip(*taken, strict=True))
    if logins != REPEATS + 1:
        raise AssertionError(f"expected a login for each of {REPEATS + 1} sessions, counted {logins}")
    connecting = first - third
    yield Measurement("connecting", connecting, "s")
    yield Measurement(
        "the second change's connection against the first's", max(0, second - third) / connecting, TIMES, 0.2
    )


def driver_for(address: str) -> SwitchDriver:
    """Give the driver of the emulated switch at ``address``; nothing is connected yet."""
    described = {"name": "sw1", "platform": PLATFORM, "address": address, "ports": list(MANAGED.ports)}
    login = DeviceLogin(
        Switch.model_validate(described), "admin", password=SecretStr(PASSWORD), enable=SecretStr(ENABLE_SECRET)
    )
    return SWITCH_PLATFORMS[PLATFORM].driver(login)


def _session(address: str) -> list[float]:
    driver = driver_for(address)
    try:
        return [_timed(driver) for _ in range(3)]
    finally:
        driver.close()


def _timed(driver: SwitchDriver) -> float:
    started = time.monotonic()
    driver.read(MANAGED)
    return time.monotonic() - started
