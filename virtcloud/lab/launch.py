"""The start of a lab: starts the first process, waits for the services, and registers the topology with SBF.

An interrupt is possible at any time, except between the start of a process and the recording of its process ID.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from virtcloud.client.calls import ANY_VERSION
from virtcloud.client.credentials import write_token
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import addressing, control_client
from virtcloud.lab.addressing import with_addresses
from virtcloud.lab.errors import LabFailed
from virtcloud.lab.fabric.events import LabEvent, Watcher, follow_events
from virtcloud.lab.lab_file import LabFile
from virtcloud.lab.launch_files import LabOptions, python_path, write_launch_files
from virtcloud.lab.node_services import AGENT_KINDS, elements_with_agents, token_folder
from virtcloud.lab.state import LabState
from virtcloud.model.access import Role
from virtcloud.model.element_views import Pool
from virtcloud.model.values import Name

DEADLINE_S = 300.0
PROGRAM_S = 1.0
TAIL_LINES = 20
NAMESPACES = ("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")


SBF_RUNS = LabEvent(f"{addressing.STATION} sbf", "done")


def launch(lab: LabFile, state: LabState, options: LabOptions, kernel: str, watch: Watcher) -> None:
    """Start the lab and return when all services run. Raise LabFailed if a part of the lab fails or is not up in time.

    After an error, the caller must remove the lab.
    """
    watch(LabEvent("files", "begin"))
    write_launch_files(lab, state, options, kernel, watch)
    watch(LabEvent("files", "done"))
    process = _start_first_process(state)

    def watch_start(event: LabEvent) -> None:
        watch(event)
        if event == SBF_RUNS:
            register_topology(lab, state, watch)

    _wait_for_start(state, kernel, process, watch_start)
    if not options.bare:
        wait_for_agents(state, watch)
    _check_all_run(state)


def _check_all_run(state: LabState) -> None:
    """Raise LabFailed if a service has ended already. Some programs first accept connections and fail soon after."""
    nodes = control_client.send_request(state, {"do": "status", "node": addressing.STATION})["nodes"]
    for name, node in nodes.items():
        for service, status in node["services"].items():
            if status != "running":
                tail = _tail(state.folder / "log" / f"{name}.{service}.log")
                raise LabFailed(f"{name}: {service} {status} soon after its start{tail}")


def _start_first_process(state: LabState) -> subprocess.Popen[bytes]:
    command = [*NAMESPACES, sys.executable, "-m", "virtcloud.lab.fabric", str(state.folder / "station.json")]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": os.pathsep.join(python_path()),
        "HOME": str(state.folder),
        "LANG": "C.UTF-8",
    }
    with (
        (state.folder / "supervisor.log").open("ab") as log,
        defer_interrupts(),
    ):  # an interrupt here would leave a first process whose process ID is not recorded
        process = subprocess.Popen(  # noqa: S603 - a module of virtcloud
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, start_new_session=True
        )
        state.note_launcher(process.pid)
        _wait_for_program(process)
    threading.Thread(target=process.wait, daemon=True).start()  # reap the first process if it ends before this process
    return process


def _wait_for_program(process: subprocess.Popen[bytes]) -> None:
    """Wait until unshare(1) has started its program, at most ``PROGRAM_S`` seconds.

    If unshare is killed earlier, its child process can continue to run: the child requests a signal for the end of
    unshare (``--kill-child``) only some time after the fork.
    """
    children, deadline = Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic() + PROGRAM_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            names = [Path(f"/proc/{child}/comm").read_text().strip() for child in children.read_text().split()]
            if names and NAMESPACES[0] not in names:
                return
        time.sleep(0.001)


def _wait_for_start(state: LabState, kernel: str, process: subprocess.Popen[bytes], watch: Watcher) -> None:
    """Wait until the services of all nodes run. Raise LabFailed if a step fails.

    User-mode Linux is ready when both ``station.events`` and ``fabric.events`` contain the event ``ready``. An end of
    User-mode Linux is recorded in ``station.events``, also after the event ``ready``.
    """
    files = [state.folder / "station.events"] + ([state.folder / "fabric.events"] if kernel == "uml" else [])
    readers = {file: follow_events(file) for file in files}
    if kernel == "uml":
        watch(LabEvent("kernel", "begin"))
    deadline, booted = time.monotonic() + DEADLINE_S, kernel != "uml"
    waiting = set(files)
    while waiting:
        if process.poll() is not None:
            raise LabFailed(f"the lab's first process ended{_tail(state.folder / 'supervisor.log')}")
        if time.monotonic() > deadline:
            raise LabFailed(f"the lab was not up after {DEADLINE_S:.0f} s{_tail(state.folder / 'supervisor.log')}")
        for file, reader in readers.items():
            for event in next(reader):
                if file.name == "fabric.events" and not booted:
                    booted = True
                    watch(LabEvent("kernel", "done"))
                if event.state == "failed":
                    raise LabFailed(_explain_failure(state, event))
                if event.step == "ready":
                    waiting.remove(file)
                else:
                    watch(event)
        time.sleep(0.05)


def _explain_failure(state: LabState, event: LabEvent) -> str:
    words_of_event = event.text.split()
    logs = [Path(word) for word in words_of_event if word.startswith(f"{state.folder}/log/")]
    log = logs[0] if logs else state.folder / ("console.log" if "kernel" in event.step else "supervisor.log")
    return f"{event.step}: {event.text}{_tail(log)}"


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
    return "".join(f"\n    {line}" for line in [f"the end of {log.name}:", *lines]) if lines else ""


AGENTS_S = 120.0


POLL_S = 0.2


def register_topology(lab: LabFile, state: LabState, watch: Watcher) -> None:
    """Send SBF the topology (with the devices' addresses) and the pools. Create a token for each agent. Idempotent."""
    watch(LabEvent("topology and pools", "begin"))
    with SbfClient(f"unix://{state.sbf_socket}") as client:
        client.put_topology(with_addresses(lab.topology), ANY_VERSION)
        for site, vlans in lab.pools.items():
            client.put_pool(site, Pool(vlans=vlans))
        for name in elements_with_agents(lab.topology):
            _create_token(client, state, name)
    watch(LabEvent("topology and pools", "done"))


def _create_token(client: SbfClient, state: LabState, element: Name) -> None:
    file = Path(token_folder(str(state.folder), element)) / "token"
    if not file.exists():
        write_token(file, client.create_token(element, Role.AGENT).token)


def wait_for_agents(state: LabState, watch: Watcher) -> None:
    """Wait until every agent has called SBF. Raise LabFailed with the missing agents after `AGENTS_S` seconds."""
    watch(LabEvent("agents", "begin"))
    deadline = time.monotonic() + AGENTS_S
    with SbfClient(f"unix://{state.sbf_socket}") as client:
        while missing := _list_missing_agents(client):
            if time.monotonic() > deadline:
                raise LabFailed(f"agents of {', '.join(missing)} did not reach SBF within {AGENTS_S:.0f} s")
            time.sleep(POLL_S)
    watch(LabEvent("agents", "done"))


def _list_missing_agents(client: SbfClient) -> list[str]:
    elements = client.elements()
    return [element.name for element in elements if element.kind in AGENT_KINDS and element.last_seen is None]


TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM within the context."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    _set_handler(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        _set_handler(signal.SIGTERM, before)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the end of the context.

    The signal mask is not changed, because processes that are started in the context would inherit the mask.
    """
    received_signals: list[int] = []
    before = {number: signal.getsignal(number) for number in TERMINATION_SIGNALS}
    for number in TERMINATION_SIGNALS:
        _set_handler(number, lambda received_number, _: received_signals.append(received_number))
    try:
        yield
    finally:
        for number, handler in before.items():
            _set_handler(number, handler)
        for first in received_signals[:1]:
            signal.raise_signal(first)


def _set_handler(number: int, handler: Any) -> None:  # noqa: ANN401 - a value of the signal module
    try:
        signal.signal(number, handler)
    except ValueError:  # only the main thread can set handlers, and only the main thread executes them
        return
