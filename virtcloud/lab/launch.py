"""Brings a lab up: writes what it needs, starts its first process, and watches until everything runs."""

import json
import os
import pwd
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from virtcloud.lab import guest_kernel, images, kernel, names, services, session, ssh_image
from virtcloud.lab.errors import LabFailed
from virtcloud.lab.event import Event, Watcher
from virtcloud.lab.fabric import plan as fabric_plan
from virtcloud.lab.fabric import settings
from virtcloud.lab.fabric.settings import FabricSettings
from virtcloud.lab.feed import agents, await_agents, feed
from virtcloud.lab.file import LabFile
from virtcloud.lab.interrupts import held_back
from virtcloud.lab.keys import known_hosts, make_keys
from virtcloud.lab.plan import TMPFS, device_addresses, joined, station_plan
from virtcloud.lab.plan import fabric_plan as plan_nodes
from virtcloud.lab.services import LldpAccount, Materials
from virtcloud.lab.state import State
from virtcloud.model.element import Hypervisor

DEADLINE_S = 180.0
TAIL_LINES = 20
NAMESPACES = ("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a lab is to be started. ``kernel``: ``direct``, ``uml`` or whichever goes; ``timing``: seconds for SBF."""

    bare: bool = False
    kernel: str | None = None
    timing: Mapping[str, float] = field(default_factory=dict)


SBF_RUNS = Event(f"{names.STATION} sbf", "done")


def launch(lab: LabFile, state: State, wishes: Wishes, chosen: str, watch: Watcher) -> None:
    """Start everything; returns when all services run. The caller removes what is there after an error."""
    watch(Event("files", "begin"))
    _prepare(lab, state, wishes, chosen, watch)
    watch(Event("files", "done"))
    process = _start(state)

    def seen(event: Event) -> None:
        watch(event)
        if event == SBF_RUNS:
            feed(lab, state, watch)

    _await(state, chosen, process, seen)
    if not wishes.bare:
        await_agents(state, watch)
    _check_whole(state)


def _check_whole(state: State) -> None:
    """Raise :class:`LabFailed` when a service did not outlive the start: one may listen for a moment and then end."""
    nodes = session.ask(state, {"do": "status", "node": names.STATION})["nodes"]
    for name, node in nodes.items():
        for service, said in node["services"].items():
            if said != "running":
                tail = _tail(state.folder / "log" / f"{name}.{service}.log")
                raise LabFailed(f"{name}: {service} {said} soon after its start{tail}")


def _prepare(lab: LabFile, state: State, wishes: Wishes, chosen: str, watch: Watcher) -> None:
    state.make()
    state.sbf_socket.parent.mkdir(parents=True, exist_ok=True)
    Path(services.CACHE, "qemu").mkdir(parents=True, exist_ok=True)
    for name in agents(lab.topology):
        Path(services.token_folder(str(state.folder), name)).mkdir(parents=True)
    state.write_lab_file(lab)
    materials = _materials(lab, state, wishes)
    station = station_plan(materials, tap=chosen == "uml")
    nodes = plan_nodes(lab, materials, uplink="vec0" if chosen == "uml" else "")
    about = {"name": lab.name, "kernel": chosen, "bare": wishes.bare, "nodes": _services(station, nodes)}
    state.write_about({**about, "token": secrets.token_hex(16)})
    _write_plans(state, materials.kept, station, nodes)
    if not wishes.bare:
        (state.folder / "sbf.toml").write_text(
            services.sbf_config(str(state.folder), str(state.sbf_socket), wishes.timing)
        )
    images.make_container_image(state.folder / "images")
    ssh_image.make_ssh_image(state.folder / "images", (state.folder / "keys/user.pub").read_text())
    if Hypervisor.QEMU in lab.hypervisors:
        images.make_machine_image(state.folder / "images", guest_kernel.ensure(watch))
        images.make_disk_image(state.folder / "images")
    images.open_to_all(state.folder / "images")


def _services(*plans: fabric_plan.Plan) -> dict[str, list[str]]:
    return {node.name: [service.name for service in node.services] for plan in plans for node in plan.nodes}


def _materials(lab: LabFile, state: State, wishes: Wishes) -> Materials:
    devices = device_addresses(lab.topology)
    keys = state.folder / "keys"
    authorized, host_keys = make_keys(keys, devices)
    (keys / "known_hosts").write_text(known_hosts(keys, devices))
    return Materials(
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


def _write_plans(state: State, kept: tuple[str, ...], station: fabric_plan.Plan, nodes: fabric_plan.Plan) -> None:
    folder, token = state.folder, state.about["token"]
    listen = f"unix:{state.socket}"
    ours = FabricSettings(str(folder), str(folder / "station.plan"), str(folder / "station.events"), token, listen)
    if state.about["kernel"] == "direct":
        _write(state, "station", ours, joined(station, nodes))
        return
    boot = kernel.command(folder, folder / "init")
    preload = kernel.preload_library(folder)
    _write(state, "station", _with(ours, relay=kernel.relay_address(), kernel=boot, preload=preload), station)
    inside = FabricSettings(
        str(folder), str(folder / "fabric.plan"), str(folder / "fabric.events"), token, f"tcp:{kernel.relay_address()}"
    )
    _write(state, "fabric", _with(inside, machine=True), nodes)
    init = folder / "init"
    init.write_text(kernel.init_text(sys.executable, folder / "fabric.json", kept, _search_path()))
    init.chmod(0o755)


def _with(base: FabricSettings, **changes: object) -> FabricSettings:
    fields = {name: getattr(base, name) for name in FabricSettings.__slots__}
    return FabricSettings(**{**fields, **changes})


def _write(state: State, name: str, told: FabricSettings, plan: fabric_plan.Plan) -> None:
    Path(told.plan).touch(mode=0o600)
    Path(told.plan).write_text(fabric_plan.to_json(plan))
    Path(told.events).touch()
    settings.write(told, state.folder / f"{name}.json")


def _search_path() -> list[str]:
    return [str(_source())]


def _start(state: State) -> subprocess.Popen[bytes]:
    command = [*NAMESPACES, sys.executable, "-m", "virtcloud.lab.fabric", str(state.folder / "station.json")]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": os.pathsep.join(_search_path()),
        "HOME": str(state.folder),
        "LANG": "C.UTF-8",
    }
    with (state.folder / "supervisor.log").open("ab") as log, held_back():  # nobody would know of it until it is noted
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, start_new_session=True
        )
        state.note_launcher(process.pid)
    threading.Thread(target=process.wait, daemon=True).start()  # it outlives us, or we are there when it ends
    return process


def _await(state: State, chosen: str, process: subprocess.Popen[bytes], watch: Watcher) -> None:
    files = [state.folder / "station.events"] + ([state.folder / "fabric.events"] if chosen == "uml" else [])
    waiting = {file: _follow(file) for file in files}
    if chosen == "uml":
        watch(Event("kernel", "begin"))
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
                    watch(Event("kernel", "done"))
                if event.state == "failed":
                    raise LabFailed(_explained(state, event))
                if event.step == "ready":
                    del waiting[file]
                else:
                    watch(event)
        time.sleep(0.05)


def _follow(path: Path) -> Iterator[list[Event]]:
    """Give what was added to a file of events since last time, again and again."""
    with path.open() as file:
        part = ""
        while True:
            part += file.read()
            whole, _, part = part.rpartition("\n")
            lines = [json.loads(line) for line in whole.splitlines()]
            yield [Event(line["step"], line["state"], line["text"]) for line in lines]


def _explained(state: State, event: Event) -> str:
    """Say what failed, with the end of the log that tells more: the logs themselves will not stay."""
    words = event.text.split()
    named = [Path(word) for word in words if word.startswith(f"{state.folder}/log/")]
    log = named[0] if named else state.folder / ("console.log" if "kernel" in event.step else "supervisor.log")
    return f"{event.step}: {event.text}{_tail(log)}"


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
    return "".join(f"\n    {line}" for line in [f"the end of {log.name}:", *lines]) if lines else ""
