"""The first process of the lab's namespaces, and of its User-mode Linux kernel where there is one."""

import contextlib
import json
import os
import signal
import socket
import subprocess
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
    """Build and serve what the settings file ``argv[0]`` names; never returns while all is well."""
    path = Path(argv[0])
    if os.getpid() == 1 and not Path("/proc/self").exists():
        syscalls.mount("proc", "/proc", "proc")
    if "--machine" in argv:
        uml.set_up_machine(argv[0].rpartition("/")[0], tuple(argv[2:]))
    told = plan.read_settings(path)
    events = EventLog(Path(told.events))
    try:
        _run(told, events)
    except BaseException as error:  # noqa: BLE001 - whoever watches must hear of everything
        traceback.print_exc()
        events.write("fabric", "failed", str(error))
    return _end(told)


def _end(told: FabricSettings) -> int:
    if told.machine:
        os.sync()
        _power_off()
    return 1


def _power_off() -> None:
    subprocess.run(["/bin/busybox", "poweroff", "-f"], check=False)


def _run(told: FabricSettings, events: EventLog) -> None:
    if not told.machine:
        _settle_station(told)
    kernel = _boot(told) if told.kernel else None
    fabric = Fabric(plan.plan_from_json(Path(told.plan).read_text()), told.state, events)
    fabric.connect()
    if kernel:
        _watch(kernel, events)
    relay = (lambda: _dial(told.relay)) if told.relay else None
    server = ControlServer(fabric.nodes, fabric.services, told.token, relay)
    threading.Thread(target=server.listen, args=(_listener(told.listen),), daemon=True).start()
    fabric.serve()
    events.write("ready", "done")
    _reap_for_ever(kernel.pid if kernel else 0)


def _settle_station(told: FabricSettings) -> None:
    """Note who we are as seen from outside, then see our own processes only."""
    outside = Path("/proc/self").readlink().name
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    syscalls.mount_private()
    syscalls.mount("proc", "/proc", "proc")
    target = Path(told.state, "pid")
    target.with_suffix(".new").write_text(json.dumps({"pid": int(outside), "start": int(start)}))
    target.with_suffix(".new").replace(target)


def _boot(told: FabricSettings) -> subprocess.Popen[bytes]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": told.state, "TMPDIR": "/dev/shm"}  # noqa: S108
    if told.preload:
        environment["LD_PRELOAD"] = told.preload
    with Path(told.state, "console.log").open("ab") as console:
        subprocess.run(["ip", "tuntap", "add", "dev", "kernel0", "mode", "tap"], check=True)  # noqa: S607
        return subprocess.Popen(  # noqa: S603 - the command comes from our own launcher
            told.kernel,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env=environment,
            start_new_session=True,
        )


def _watch(kernel: subprocess.Popen[bytes], events: EventLog) -> None:
    def wait() -> None:
        kernel.wait()
        events.write("kernel", "failed", "the User-mode Linux kernel ended; its last words are in console.log")

    threading.Thread(target=wait, daemon=True).start()


def _listener(where: str) -> socket.socket:
    kind, _, rest = where.partition(":")
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


def _dial(where: str) -> socket.socket:
    """Reach the other kernel; it may still be on its way up."""
    address, _, port = where.rpartition(":")
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


def _reap_for_ever(kernel: int) -> None:
    """Be a good first process: orphans end here. The kernel is waited for by its own thread."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        time.sleep(1)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != kernel:
                os.waitpid(ended.si_pid, os.WNOHANG)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
