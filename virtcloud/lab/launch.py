"""Tells the lab's SBF what there is, gives every agent its token, and waits until all have found it.

When a start may be interrupted: at any time, but for the moments in which something would be lost sight of.

Brings a lab up: writes what it needs, starts its first process, and watches until everything runs.
"""

import json
import os
import pwd
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from virtcloud.client.calls import ANY_VERSION
from virtcloud.client.credentials import write_token
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import addressing, control_client, guest_kernel, lab_images, lab_kernel, node_services
from virtcloud.lab.errors import LabFailed
from virtcloud.lab.fabric import plan as fabric_plan
from virtcloud.lab.fabric import plan as settings
from virtcloud.lab.fabric.events import LabEvent, Watcher
from virtcloud.lab.fabric.plan import FabricSettings
from virtcloud.lab.lab_file import LabFile
from virtcloud.lab.lab_files import known_hosts, make_keys
from virtcloud.lab.layout import TMPFS, device_addresses, join_plans, station_plan, with_addresses
from virtcloud.lab.layout import fabric_plan as plan_nodes
from virtcloud.lab.node_services import LabMaterials, LldpAccount, token_folder
from virtcloud.lab.state import LabState
from virtcloud.model.access import Role
from virtcloud.model.element import ElementKind, Hypervisor, kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import Pool

AGENTS_S = 60.0
POLL_S = 0.2
WITH_AGENTS = (ElementKind.HOST, ElementKind.GATEWAY)


def register_topology(lab: LabFile, state: LabState, watch: Watcher) -> None:
    """Put the topology, with the devices' management addresses, the pools, and agents' tokens; may be repeated."""
    watch(LabEvent("topology and pools", "begin"))
    with SbfClient(f"unix://{state.sbf_socket}") as client:
        client.put_topology(with_addresses(lab.topology), ANY_VERSION)
        for site, vlans in lab.pools.items():
            client.put_pool(site, Pool(vlans=vlans))
        for name in elements_with_agents(lab.topology):
            _give_token(client, state, name)
    watch(LabEvent("topology and pools", "done"))


def elements_with_agents(topology: Topology) -> list[Name]:
    """Give the elements that have an agent."""
    return [name for name, element in topology.elements.items() if kind_of(element) in WITH_AGENTS]


def _give_token(client: SbfClient, state: LabState, element: Name) -> None:
    file = Path(token_folder(str(state.folder), element)) / "token"
    if not file.exists():
        write_token(file, client.create_token(element, Role.AGENT).token)


def wait_for_agents(state: LabState, watch: Watcher) -> None:
    """Wait until SBF has heard of every agent; raises :class:`LabFailed` that names the silent ones."""
    watch(LabEvent("agents", "begin"))
    deadline = time.monotonic() + AGENTS_S
    with SbfClient(f"unix://{state.sbf_socket}") as client:
        while silent := _agents_not_seen(client):
            if time.monotonic() > deadline:
                raise LabFailed(f"agents of {', '.join(silent)} did not reach SBF within {AGENTS_S:.0f} s")
            time.sleep(POLL_S)
    watch(LabEvent("agents", "done"))


def _agents_not_seen(client: SbfClient) -> list[str]:
    elements = client.elements()
    return [one.name for one in elements if one.kind in WITH_AGENTS and one.last_seen is None]


TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Treat a request to end (SIGTERM) like an interrupt."""

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
    """Hold interrupts and requests to end back until the body is through.

    Python's handlers change, not the mask of signals: a process that the body starts has the usual ones.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in TERMINATION_SIGNALS}
    for number in TERMINATION_SIGNALS:
        _set_handler(number, lambda which, _: came.append(which))
    try:
        yield
    finally:
        for number, handler in before.items():
            _set_handler(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def _set_handler(number: int, handler: Any) -> None:  # noqa: ANN401 - whatever the signal module gave us
    try:
        signal.signal(number, handler)
    except ValueError:  # not in the main thread: then nobody interrupts us either
        return


DEADLINE_S = 180.0
TAIL_LINES = 20
NAMESPACES = ("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")


@dataclass(frozen=True, slots=True)
class LabOptions:
    """How a lab is to be started. ``kernel``: ``direct``, ``uml`` or whichever goes; ``timing``: seconds for SBF."""

    bare: bool = False
    kernel: str | None = None
    timing: Mapping[str, float] = field(default_factory=dict)


SBF_RUNS = LabEvent(f"{addressing.STATION} sbf", "done")


def launch(lab: LabFile, state: LabState, wishes: LabOptions, chosen: str, watch: Watcher) -> None:
    """Start everything; returns when all services run. The caller removes what is there after an error."""
    watch(LabEvent("files", "begin"))
    _prepare(lab, state, wishes, chosen, watch)
    watch(LabEvent("files", "done"))
    process = _start(state)

    def seen(event: LabEvent) -> None:
        watch(event)
        if event == SBF_RUNS:
            register_topology(lab, state, watch)

    _await(state, chosen, process, seen)
    if not wishes.bare:
        wait_for_agents(state, watch)
    _check_all_run(state)


def _check_all_run(state: LabState) -> None:
    """Raise :class:`LabFailed` when a service did not outlive the start: one may listen for a moment and then end."""
    nodes = control_client.send_request(state, {"do": "status", "node": addressing.STATION})["nodes"]
    for name, node in nodes.items():
        for service, said in node["services"].items():
            if said != "running":
                tail = _tail(state.folder / "log" / f"{name}.{service}.log")
                raise LabFailed(f"{name}: {service} {said} soon after its start{tail}")


def _prepare(lab: LabFile, state: LabState, wishes: LabOptions, chosen: str, watch: Watcher) -> None:
    state.make()
    state.sbf_socket.parent.mkdir(parents=True, exist_ok=True)
    Path(node_services.CACHE, "qemu").mkdir(parents=True, exist_ok=True)
    for name in elements_with_agents(lab.topology):
        Path(node_services.token_folder(str(state.folder), name)).mkdir(parents=True)
    state.write_lab_file(lab)
    materials = _materials(lab, state, wishes)
    station = station_plan(materials, tap=chosen == "uml")
    nodes = plan_nodes(lab, materials, uplink="vec0" if chosen == "uml" else "")
    about = {"name": lab.name, "kernel": chosen, "bare": wishes.bare, "nodes": _services(station, nodes)}
    state.write_about({**about, "token": secrets.token_hex(16)})
    _write_plans(state, materials.kept, station, nodes)
    if not wishes.bare:
        (state.folder / "sbf.toml").write_text(
            node_services.sbf_config(str(state.folder), str(state.sbf_socket), wishes.timing)
        )
    lab_images.make_container_image(state.folder / "images")
    lab_images.make_ssh_image(state.folder / "images", (state.folder / "keys/user.pub").read_text())
    if Hypervisor.QEMU in lab.hypervisors:
        lab_images.make_machine_image(state.folder / "images", guest_kernel.fetch_guest_kernel(watch))
        lab_images.make_disk_image(state.folder / "images")
    lab_images.make_readable(state.folder / "images")


def _services(*plans: fabric_plan.FabricPlan) -> dict[str, list[str]]:
    return {node.name: [service.name for service in node.services] for plan in plans for node in plan.nodes}


def _materials(lab: LabFile, state: LabState, wishes: LabOptions) -> LabMaterials:
    devices = device_addresses(lab.topology)
    keys = state.folder / "keys"
    authorized, host_keys = make_keys(keys, devices)
    (keys / "known_hosts").write_text(known_hosts(keys, devices))
    return LabMaterials(
        state=str(state.folder),
        python=sys.executable,
        authorized_key=authorized,
        host_keys=host_keys,
        kept=_covered_folders(),
        bare=wishes.bare,
        sbf=(sys.executable, "-m", "sbf_service"),
        lldp=_lldp_account() if lab.lldp else None,
    )


def _lldp_account() -> LldpAccount:
    account = pwd.getpwnam("_lldpd")
    return LldpAccount(account.pw_uid, account.pw_gid)


def _source() -> Path:
    return Path(__file__).resolve().parents[2]


def _covered_folders() -> tuple[str, ...]:
    """Give the folders of this program that a node's own file systems would hide."""
    ours = {str(_source()), sys.prefix, sys.base_prefix}
    return tuple(sorted(one for one in ours if any(Path(one).is_relative_to(place) for place in TMPFS)))


def _write_plans(
    state: LabState, kept: tuple[str, ...], station: fabric_plan.FabricPlan, nodes: fabric_plan.FabricPlan
) -> None:
    folder, token = state.folder, state.about["token"]
    listen = f"unix:{state.socket}"
    ours = FabricSettings(str(folder), str(folder / "station.plan"), str(folder / "station.events"), token, listen)
    if state.about["kernel"] == "direct":
        _write(state, "station", ours, join_plans(station, nodes))
        return
    boot = lab_kernel.uml_command(folder, folder / "init")
    preload = lab_kernel.preload_library(folder)
    _write(state, "station", _with(ours, relay=lab_kernel.relay_address(), kernel=boot, preload=preload), station)
    inside = FabricSettings(
        str(folder),
        str(folder / "fabric.plan"),
        str(folder / "fabric.events"),
        token,
        f"tcp:{lab_kernel.relay_address()}",
    )
    _write(state, "fabric", _with(inside, machine=True), nodes)
    init = folder / "init"
    init.write_text(lab_kernel.init_text(sys.executable, folder / "fabric.json", kept, _search_path()))
    init.chmod(0o755)


def _with(base: FabricSettings, **changes: object) -> FabricSettings:
    fields = {name: getattr(base, name) for name in FabricSettings.__slots__}
    return FabricSettings(**{**fields, **changes})


def _write(state: LabState, name: str, told: FabricSettings, plan: fabric_plan.FabricPlan) -> None:
    Path(told.plan).touch(mode=0o600)
    Path(told.plan).write_text(fabric_plan.plan_to_json(plan))
    Path(told.events).touch()
    settings.write_settings(told, state.folder / f"{name}.json")


def _search_path() -> list[str]:
    return [str(_source())]


def _start(state: LabState) -> subprocess.Popen[bytes]:
    command = [*NAMESPACES, sys.executable, "-m", "virtcloud.lab.fabric", str(state.folder / "station.json")]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": os.pathsep.join(_search_path()),
        "HOME": str(state.folder),
        "LANG": "C.UTF-8",
    }
    with (
        (state.folder / "supervisor.log").open("ab") as log,
        defer_interrupts(),
    ):  # nobody would know of it until it is noted
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, start_new_session=True
        )
        state.note_launcher(process.pid)
    threading.Thread(target=process.wait, daemon=True).start()  # it outlives us, or we are there when it ends
    return process


def _await(state: LabState, chosen: str, process: subprocess.Popen[bytes], watch: Watcher) -> None:
    files = [state.folder / "station.events"] + ([state.folder / "fabric.events"] if chosen == "uml" else [])
    waiting = {file: _follow(file) for file in files}
    if chosen == "uml":
        watch(LabEvent("kernel", "begin"))
    deadline, booted = time.monotonic() + DEADLINE_S, chosen != "uml"
    while waiting:
        if process.poll() is not None:
            raise LabFailed(f"the lab's first process ended{_tail(state.folder / 'supervisor.log')}")
        if time.monotonic() > deadline:
            raise LabFailed(f"the lab was not up after {DEADLINE_S:.0f} s{_tail(state.folder / 'supervisor.log')}")
        for file in list(waiting):
            for event in next(waiting[file]):
                if file.name == "fabric.events" and not booted:
                    booted = True
                    watch(LabEvent("kernel", "done"))
                if event.state == "failed":
                    raise LabFailed(_explain_failure(state, event))
                if event.step == "ready":
                    del waiting[file]
                else:
                    watch(event)
        time.sleep(0.05)


def _follow(path: Path) -> Iterator[list[LabEvent]]:
    """Give what was added to a file of events since last time, again and again."""
    with path.open() as file:
        part = ""
        while True:
            part += file.read()
            whole, _, part = part.rpartition("\n")
            lines = [json.loads(line) for line in whole.splitlines()]
            yield [LabEvent(line["step"], line["state"], line["text"]) for line in lines]


def _explain_failure(state: LabState, event: LabEvent) -> str:
    """Say what failed, with the end of the log that tells more: the logs themselves will not stay."""
    words = event.text.split()
    named = [Path(word) for word in words if word.startswith(f"{state.folder}/log/")]
    log = named[0] if named else state.folder / ("console.log" if "kernel" in event.step else "supervisor.log")
    return f"{event.step}: {event.text}{_tail(log)}"


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
    return "".join(f"\n    {line}" for line in [f"the end of {log.name}:", *lines]) if lines else ""
