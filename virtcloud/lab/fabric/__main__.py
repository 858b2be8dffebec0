"""The first process of the lab's namespaces, and of the lab's User-mode Linux kernel if the lab uses one."""

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

from virtcloud.lab.fabric import plan, syscalls, uml
from virtcloud.lab.fabric.build import Fabric
from virtcloud.lab.fabric.control_server import ControlServer
from virtcloud.lab.fabric.events import EventLog
from virtcloud.lab.fabric.plan import FabricSettings

KERNEL_S = 90.0


def main(argv: list[str]) -> int:
    """Create and run the nodes that the settings file ``argv[0]`` describes. Return only after an error."""
    path = Path(argv[0])
    if os.getpid() == 1 and not Path("/proc/self").exists():
        syscalls.mount("proc", "/proc", "proc")
    settings = plan.read_settings(path)
    if settings.in_uml:
        uml.mount_file_systems(settings.state, settings.modules, tuple(argv[1:]))
    events = EventLog(Path(settings.events))
    try:
        _run(settings, events)
    except BaseException as error:  # noqa: BLE001 - the launcher must receive every error
        traceback.print_exc()
        events.write("fabric", "failed", str(error))
    return _end(settings)


def _end(settings: FabricSettings) -> int:
    if settings.in_uml:
        os.sync()
        uml.power_off()
    return 1


def _run(settings: FabricSettings, events: EventLog) -> None:
    if not settings.in_uml:
        _prepare_station(settings)
    kernel = uml.boot_kernel(settings) if settings.kernel else None
    fabric = Fabric(plan.plan_from_json(Path(settings.plan).read_text()), settings.state, events)
    fabric.connect()
    if kernel:
        uml.report_end(kernel, events)
    relay = (lambda: _connect(settings.relay)) if settings.relay else None
    power = {"off": fabric.power_off, "on": fabric.power_on}
    server = ControlServer(fabric.nodes, fabric.services, settings.token, power, relay)
    threading.Thread(target=server.listen, args=(_create_listener(settings.listen),), daemon=True).start()
    fabric.serve()
    events.write("ready", "done")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        time.sleep(1)
        fabric.reap(kernel.pid if kernel else 0)


def _prepare_station(settings: FabricSettings) -> None:
    """Write this process's ID and start time to the file ``pid``, and mount the lab's own /proc.

    The ID is read before the mount, so that it is valid in the machine's PID namespace.
    """
    pid = Path("/proc/self").readlink().name
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    syscalls.mount_private()
    syscalls.mount("proc", "/proc", "proc")
    target = Path(settings.state, "pid")
    target.with_suffix(".new").write_text(json.dumps({"pid": int(pid), "start": int(start)}))
    target.with_suffix(".new").replace(target)


def _create_listener(address: str) -> socket.socket:
    kind, _, rest = address.partition(":")
    if kind == "unix":
        Path(rest).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(rest)
        Path(rest).chmod(0o600)
    else:
        address, _, port = rest.rpartition(":")
        listener = socket.create_server((address, int(port)))
    listener.listen(64)
    return listener


def _connect(address_and_port: str) -> socket.socket:
    address, _, port = address_and_port.rpartition(":")
    deadline = time.monotonic() + KERNEL_S
    while True:
        try:
            connection = socket.create_connection((address, int(port)), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
