"""A switch of the lab that is an Open vSwitch: ``ovsdb-server`` and ``ovs-vswitchd`` run on the switch's node. Pure.

The datapath runs in user space (``netdev``) and therefore on any kernel. It does not add checksums and VLAN tags that
Linux has left to the network card. Therefore offloads must be disabled on the ports that send to the switch.
"""

from virtcloud.lab.fabric.plan import NodeService
from virtcloud.model.element import Switch
from virtcloud.model.topology import Topology

PLATFORM = "openvswitch"
OVS_PROGRAMS = {"ovs-vswitchd": "openvswitch-switch", "ethtool": "ethtool"}
FOLDER = "/run/openvswitch"
DATABASE = f"unix:{FOLDER}/db.sock"
BEGIN = f"{FOLDER}/begin.sh"
UNUSED_VLAN = 4095
"""The VLAN list of a trunk that carries no cluster. A trunk with an empty list would carry every VLAN."""


def ovs_files(switch: Switch) -> dict[str, str]:
    """Return the script that starts the switch, as a mapping from its path to its text.

    The script creates the bridge ``br0`` if it does not exist, and starts ovs-vswitchd.
    """
    ports = " ".join(_port(switch, port) for port in switch.ports)
    create = f"ovs-vsctl --no-wait -- init -- add-br br0 -- set bridge br0 datapath_type=netdev {ports}"
    return {BEGIN: f'set -e\novs-vsctl --no-wait br-exists br0 || {create}\nexec ovs-vswitchd {DATABASE} "$@"\n'}


def ovs_services() -> tuple[NodeService, ...]:
    """Return the services of ``ovsdb-server`` and ``ovs-vswitchd``."""
    database, schema = f"{FOLDER}/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"
    create = f"[ -e {database} ] || ovsdb-tool create {database} {schema}"
    server = f"exec ovsdb-server {database} --remote=p{DATABASE} --unixctl={FOLDER}/server.ctl"
    return (
        NodeService("ovsdb-server", ("/bin/sh", "-c", f"{create}; {server}"), ready=DATABASE),
        NodeService(
            "ovs-vswitchd", ("/bin/sh", BEGIN, f"--unixctl={FOLDER}/switch.ctl"), ready=f"unix:{FOLDER}/switch.ctl"
        ),
    )


def ip_lines(switch: Switch) -> tuple[str, ...]:
    """Return the commands that bring up the switch's interfaces. Open vSwitch stores all other configuration."""
    return tuple(f"link set {cable} up" for port in switch.ports for cable in switch.members(port))


def ovs_switch_names(topology: Topology) -> frozenset[str]:
    """Return the names of the switches that are Open vSwitches."""
    switches = (switch for site in topology.sites for switch in site.switches)
    return frozenset(switch.name for switch in switches if switch.platform == PLATFORM)


def _port(switch: Switch, port: str) -> str:
    no_vlans = f"vlan_mode=trunk trunks={UNUSED_VLAN}"
    members = switch.aggregates.get(port)  # type: ignore[call-overload]
    if members:
        return f"-- add-bond br0 {port} {' '.join(members)} lacp=active other_config:lacp-time=fast {no_vlans}"
    return f"-- add-port br0 {port} {no_vlans}"
