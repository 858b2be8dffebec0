"""Writes the files that a lab needs before its start: keys, plans, settings and images."""

import pwd
import secrets
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from virtcloud.lab import debian_image, guest_kernel, lab_images, lab_kernel, node_services
from virtcloud.lab.addressing import device_addresses
from virtcloud.lab.errors import LabFailed
from virtcloud.lab.fabric.events import Watcher
from virtcloud.lab.fabric.plan import FabricPlan, FabricSettings, plan_to_json, write_settings
from virtcloud.lab.lab_file import LabFile
from virtcloud.lab.layout import TMPFS, fabric_plan, join_plans, station_plan
from virtcloud.lab.node_services import LabMaterials, LldpAccount, elements_with_agents
from virtcloud.lab.state import LabState
from virtcloud.model.element import Hypervisor


@dataclass(frozen=True, slots=True)
class LabOptions:
    """The options of a lab's start.

    ``bare``: start neither SBF nor agents. ``kernel``: ``direct``, ``uml``, or None for an automatic choice.
    ``timing``: settings of SBF, in seconds.
    """

    bare: bool = False
    kernel: str | None = None
    timing: Mapping[str, float] = field(default_factory=dict)


def write_launch_files(lab: LabFile, state: LabState, options: LabOptions, kernel: str, watch: Watcher) -> None:
    """Write all files of a lab that runs in ``kernel``: ``direct`` or ``uml``."""
    _create_folders(lab, state)
    state.write_lab_file(lab)
    materials = _materials(lab, state, options)
    station = station_plan(materials, tap=kernel == "uml")
    nodes = fabric_plan(lab, materials, uplink="vec0" if kernel == "uml" else "")
    metadata = {"name": lab.name, "kernel": kernel, "bare": options.bare, "nodes": _services(station, nodes)}
    state.write_metadata({**metadata, "token": secrets.token_hex(16)})
    _write_plans(state, materials.visible_folders, station, nodes)
    if not options.bare:
        config = node_services.sbf_config(str(state.folder), str(state.sbf_socket), options.timing)
        (state.folder / "sbf.toml").write_text(config)
    _write_images(lab, state, watch)


def _create_folders(lab: LabFile, state: LabState) -> None:
    state.make()
    state.sbf_socket.parent.mkdir(parents=True, exist_ok=True)
    Path(node_services.CACHE, "qemu").mkdir(parents=True, exist_ok=True)
    for name in elements_with_agents(lab.topology):
        Path(node_services.token_folder(str(state.folder), name)).mkdir(parents=True)


def _write_images(lab: LabFile, state: LabState, watch: Watcher) -> None:
    images = state.folder / "images"
    lab_images.make_container_image(images)
    lab_images.make_ssh_image(images, (state.folder / "keys/user.pub").read_text())
    if Hypervisor.QEMU in lab.hypervisors:
        lab_images.make_qemu_image(images, guest_kernel.fetch_guest_kernel(watch))
        lab_images.make_disk_image(images)
    for name in lab.images:
        root = debian_image.ensure_debian_root(debian_image.LAB_IMAGES[name], watch)
        lab_images.make_debian_image(images, name, root)
    lab_images.make_images_readable(images)


def _services(*plans: FabricPlan) -> dict[str, list[str]]:
    return {node.name: [service.name for service in node.services] for plan in plans for node in plan.nodes}


def _materials(lab: LabFile, state: LabState, options: LabOptions) -> LabMaterials:
    devices = device_addresses(lab.topology)
    keys = state.folder / "keys"
    authorized, host_keys = make_keys(keys, devices)
    (keys / "known_hosts").write_text(known_hosts(keys, devices))
    return LabMaterials(
        state=str(state.folder),
        authorized_key=authorized,
        host_keys=host_keys,
        visible_folders=_hidden_folders(),
        bare=options.bare,
        lldp=_lldp_account() if lab.lldp else None,
    )


def _lldp_account() -> LldpAccount:
    account = pwd.getpwnam("_lldpd")
    return LldpAccount(account.pw_uid, account.pw_gid)


def _source() -> Path:
    return Path(__file__).resolve().parents[2]


def _hidden_folders() -> tuple[str, ...]:
    folders = {str(_source()), sys.prefix, sys.base_prefix}
    return tuple(sorted(folder for folder in folders if any(Path(folder).is_relative_to(hidden) for hidden in TMPFS)))


def _write_plans(state: LabState, visible_folders: tuple[str, ...], station: FabricPlan, nodes: FabricPlan) -> None:
    station_settings = _fabric_settings(state, "station", f"unix:{state.socket}")
    if state.metadata["kernel"] == "direct":
        _write_plan(state, "station", station_settings, join_plans(station, nodes))
        return
    folder, relay, kernel = state.folder, lab_kernel.relay_address(), lab_kernel.require_uml_kernel()
    boot_command = lab_kernel.uml_command(kernel, folder, folder / "init")
    with_kernel = replace(
        station_settings, relay=relay, kernel=boot_command, preload=lab_kernel.preload_library(kernel, folder)
    )
    _write_plan(state, "station", with_kernel, station)
    fabric_settings = _fabric_settings(state, "fabric", f"tcp:{relay}")
    _write_plan(state, "fabric", replace(fabric_settings, in_uml=True, modules=str(kernel.modules)), nodes)
    init = folder / "init"
    init.write_text(lab_kernel.init_text(sys.executable, folder / "fabric.json", visible_folders, python_path()))
    init.chmod(0o755)


def _fabric_settings(state: LabState, name: str, listen: str) -> FabricSettings:
    plan, events = str(state.folder / f"{name}.plan"), str(state.folder / f"{name}.events")
    return FabricSettings(str(state.folder), plan, events, state.metadata["token"], listen)


def _write_plan(state: LabState, name: str, settings: FabricSettings, plan: FabricPlan) -> None:
    Path(settings.plan).touch(mode=0o600)
    Path(settings.plan).write_text(plan_to_json(plan))
    Path(settings.events).touch()
    write_settings(settings, state.folder / f"{name}.json")


def python_path() -> list[str]:
    """Return the folders for PYTHONPATH, in which the lab's processes find virtcloud."""
    return [str(_source())]


def make_keys(folder: Path, devices: Iterable[str]) -> tuple[str, Mapping[str, str]]:
    """Create all SSH keys: SBF's key for devices, the users' key, and each device's host key.

    Return SBF's public key, and the devices' private host keys by the device's name.
    """
    _make_key(folder / "switch")
    _make_key(folder / "user")
    hosts = {name: _make_key(folder / f"host-{name}").read_text() for name in devices}
    return (folder / "switch.pub").read_text(), hosts


def known_hosts(folder: Path, addresses: Mapping[str, str]) -> str:
    """Return the text of known_hosts with the devices' public host keys.

    ``addresses`` are the devices' addresses, by the device's name.
    """
    return "".join(f"{address} {(folder / f'host-{name}.pub').read_text()}" for name, address in addresses.items())


def _make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtcloud-lab", "-f", str(path)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    if completed.returncode:
        raise LabFailed(f"ssh-keygen could not create the key {path}: {completed.stderr.strip()}")
    return path
