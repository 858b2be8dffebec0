"""Plans and settings of the fabric. The fabric's processes receive both as JSON."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FabricSettings:
    """The settings of a fabric process.

    - ``state``: the lab's folder. ``plan``: the plan's file. ``events``: the file for the events of the lab's start.
    - ``token``: the secret that requests to the control server must contain.
    - ``listen``: the address of the control server, ``unix:PATH`` or ``tcp:ADDRESS:PORT``.
    - ``relay``: the ADDRESS:PORT of the control server in User-mode Linux, or "".
    - ``in_uml``: true for the first process of a User-mode Linux kernel. ``modules``: the folder with the modules of
      this kernel, or "".
    - ``kernel``: the command with which the station (the node on which SBF runs) boots User-mode Linux, or empty.
      ``preload``: a library that is loaded into the process of this kernel, or "".
    """

    state: str
    plan: str
    events: str
    token: str
    listen: str
    relay: str = ""
    in_uml: bool = False
    modules: str = ""
    kernel: tuple[str, ...] = ()
    preload: str = ""


def write_settings(settings: FabricSettings, path: Path) -> None:
    """Write settings to a file that only root can read, because the settings contain the token."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(asdict(settings)))


def read_settings(path: Path) -> FabricSettings:
    """Read the file that :func:`write_settings` wrote."""
    data = json.loads(path.read_text())
    return FabricSettings(**{**data, "kernel": tuple(data["kernel"])})


@dataclass(frozen=True, slots=True)
class NodeService:
    """A program that runs on a node.

    If ``module`` is set, a fork of the zygote (``zygote.py``) calls ``main(argv[1:])`` of this Python module. The
    zygote has imported ``module`` and ``imports`` before.

    The service is ready when the address ``ready`` (``unix:PATH`` or ``tcp:ADDRESS:PORT``) accepts connections. If
    ``ready`` is "", the service is ready immediately.
    """

    name: str
    argv: tuple[str, ...]
    module: str = ""
    imports: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    ready: str = ""


@dataclass(frozen=True, slots=True)
class LabNode:
    """A node: its files, its network as batch lines of ip, bridge and tc, and its services in starting order.

    Offloads are disabled on ``no_offload_ports``, so that each frame leaves these ports with its checksum and its tag.
    If ``isolated`` is false, the node shares all namespaces with the fabric's process; only the station is such a node.

    A node with a ``disk``, a folder outside the node, can be powered off and on. The content of ``disk_folders`` is in
    this folder and survives a power failure. The content of the folders in ``tmpfs`` does not survive.
    """

    name: str
    kind: str
    address: str = ""
    isolated: bool = True
    tmpfs: tuple[str, ...] = ()
    disk: str = ""
    disk_folders: tuple[str, ...] = ()
    binds: tuple[tuple[str, str], ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)
    ip: tuple[str, ...] = ()
    bridge: tuple[str, ...] = ()
    tc: tuple[str, ...] = ()
    no_offload_ports: tuple[str, ...] = ()
    services: tuple[NodeService, ...] = ()


@dataclass(frozen=True, slots=True)
class VethPair:
    """A veth pair between two nodes. MTUs are in bytes.

    An end with an empty node name is in the network namespace of the fabric's process.
    """

    node: str
    port: str
    mtu: int
    peer_node: str
    peer_port: str
    peer_mtu: int


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """All nodes and cables. The ip commands in ``before`` and ``after`` run before and after the cables' creation."""

    nodes: tuple[LabNode, ...]
    cables: tuple[VethPair, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def plan_to_json(plan: FabricPlan) -> str:
    """Return a plan as JSON."""
    return json.dumps(asdict(plan))


def plan_from_json(text: str) -> FabricPlan:
    """Return the plan that :func:`plan_to_json` wrote."""
    data = json.loads(text)
    return FabricPlan(
        tuple(node_from_data(node) for node in data["nodes"]),
        tuple(VethPair(**cable) for cable in data["cables"]),
        tuple(data["before"]),
        tuple(data["after"]),
    )


def node_from_data(data: dict[str, Any]) -> LabNode:
    """Return the node for a dict of ``dataclasses.asdict``. The dict may have lists instead of tuples."""
    services = tuple(
        NodeService(**{**service, "argv": tuple(service["argv"]), "imports": tuple(service["imports"])})
        for service in data.pop("services")
    )
    names = ("tmpfs", "disk_folders", "ip", "bridge", "tc", "no_offload_ports")
    lists: dict[str, Any] = {name: tuple(data.pop(name)) for name in names}
    binds = tuple((source, target) for source, target in data.pop("binds"))
    return LabNode(**data, **lists, binds=binds, services=services)


def veth_line(cable: VethPair, pids: dict[str, int]) -> str:
    """Return the arguments of ``ip`` that create a veth pair and move each end to its node.

    ``pids`` maps each node to the process ID of its first process.
    """
    return (
        f"link add name {cable.port} mtu {cable.mtu}{_netns_option(cable.node, pids)} type veth "
        f"peer name {cable.peer_port} mtu {cable.peer_mtu}{_netns_option(cable.peer_node, pids)}"
    )


def _netns_option(node: str, pids: dict[str, int]) -> str:
    return f" netns {pids[node]}" if node else ""
