"""The outputs of emulated switches about LLDP neighbours, in the form of recorded outputs of real devices.

To connect a cable, a test adds an :class:`LldpPeer` to ``switch.peers``. To remove the cable, it deletes the peer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

BAR = "-" * 79


@dataclass(frozen=True)
class LldpPeer:
    """The device at the other end of a cable, with the content of its LLDP frames. Empty fields are not sent."""

    name: str
    port: str
    description: str = ""
    chassis: str = "0200.0000.00aa"
    address: str = "192.0.2.7"


Peers = Mapping[str, LldpPeer]


def ios(peers: Peers) -> str:
    blocks = [
        f"{'-' * 48}\nLocal Intf: {port.replace('GigabitEthernet', 'Gi').replace(' ', '')}\n"
        f"Chassis id: {peer.chassis}\nPort id: {peer.port}\n"
        f"{_ios('Port Description', peer.description)}\n{_ios('System Name', peer.name)}\n\n"
        "System Description:\nAn operating system\nChassis of some kind\n\nTime remaining: 91 seconds\n"
        f"System Capabilities: B,R\nEnabled Capabilities: B\nManagement Addresses:\n    IP: {peer.address}\n"
        "Auto Negotiation - not supported\nVlan ID: - not advertised\n"
        for port, peer in peers.items()
    ]
    return "\n".join(["", *blocks, "", f"Total entries displayed: {len(peers)}", ""])


def _ios(key: str, value: str) -> str:
    return f"{key}: {value}" if value else f"{key} - not advertised"


def nxos(peers: Peers) -> str:
    blocks = [
        f"Chassis id: {peer.chassis}\nPort id: {peer.port}\nLocal Port id: {port.replace('Ethernet', 'Eth')}\n"
        f"Port Description: {peer.description or 'not advertised'}\nSystem Name: {peer.name or 'not advertised'}\n"
        "System Description: An operating system\nTime remaining: 93 seconds\nSystem Capabilities: B, R\n"
        f"Enabled Capabilities: B\nManagement Address: {peer.address}\nVlan ID: not advertised\n\n"
        for port, peer in peers.items()
    ]
    head = "Capability codes:\n  (R) Router, (B) Bridge\nDevice ID            Local Intf      Hold-time  Port ID\n"
    return "\n".join([head, *blocks, f"Total entries displayed: {len(peers)}"])


def eos(peers: Peers, ports: tuple[str, ...]) -> str:
    """Render ``show lldp neighbors detail`` of EOS: every port, including ports without neighbours."""
    blocks = []
    for port in ports:
        peer = peers.get(port)
        blocks.append(f"Interface {port} detected {1 if peer else 0} LLDP neighbors:\n")
        if peer:
            description = f'  - Port Description: "{peer.description}"\n' if peer.description else ""
            name = f'  - System Name: "{peer.name}"\n' if peer.name else ""
            blocks.append(
                f"  Neighbor {peer.chassis}/{peer.port}, age 12 seconds\n"
                "  Discovered 0:01:11 ago; Last changed 0:01:11 ago\n"
                f"  - Chassis ID type: MAC address (4)\n    Chassis ID     : {peer.chassis}\n"
                f'  - Port ID type: Interface name (5)\n    Port ID     : "{peer.port}"\n'
                f"  - Time To Live: 120 seconds\n{description}{name}"
                f"  - Management Address Subtype: IPv4 (1)\n    Management Address        : {peer.address}\n"
                "  - IEEE802.1/IEEE802.3 Link Aggregation\n"
                "    Link Aggregation Status: Capable, Disabled (0x01)\n    Port ID                : 0\n"
            )
    return "\n".join(blocks)


def aoscx(peers: Peers) -> str:
    head = (
        f"LLDP Neighbor Information\n=========================\n\nTotal Neighbor Entries          : {len(peers)}\n"
        "Total Neighbor Entries Deleted  : 0\n"
    )
    blocks = [
        f"{BAR}\nPort                           : {port}\nNeighbor Entries               : 1\n"
        f"Neighbor Chassis-Name          : {peer.name}\nNeighbor Chassis-Description   : some system\n"
        f"Neighbor Chassis-ID            : {peer.chassis}\nNeighbor Management-Address    : {peer.address}\n"
        f"Neighbor Port-ID               : {peer.port}\nNeighbor Port-Desc             : {peer.description}\n"
        "Neighbor Port VLAN ID          : \nTTL                            : 120\n"
        for port, peer in peers.items()
    ]
    return "\n".join([head, *blocks])


def comware(peers: Peers) -> str:
    """Render ``display lldp neighbor-information verbose`` of Comware 7. The output is empty without neighbours."""
    return "\n".join(
        f"LLDP neighbor-information of port {number}[{port}]:\nLLDP agent nearest-bridge:\n LLDP neighbor index : 1\n"
        f" Chassis type        : MAC address\n Chassis ID          : {peer.chassis}\n"
        f" Port ID type        : Interface name\n Port ID             : {peer.port}\n Time to live        : 120\n"
        f" Port description    : {peer.description}\n System name         : {peer.name}\n"
        f" System description  : some system\n Management address                : {peer.address}\n"
        " Maximum frame size         : 9216\n"
        for number, (port, peer) in enumerate(peers.items(), start=1)
    )


def procurve(peers: Peers) -> str:
    blocks = [
        f"  Local Port   : {port}\n  ChassisType  : mac-address         \n  ChassisId    : {peer.chassis}\n"
        f"  PortType     : interface-name                                            \n  PortId       : {peer.port}  \n"
        f"  SysName      : {peer.name}  \n  System Descr : some system...  \n  PortDescr    : {peer.description}  \n"
        "  Pvid         :                          \n\n  Remote Management Address\n     Type    : ipv4\n"
        f"     Address : {peer.address}\n"
        for port, peer in peers.items()
    ]
    return "\n LLDP Remote Device Information Detail\n\n" + f"\n{'-' * 78}\n".join(blocks)


def dell(peers: Peers, *, counts: bool) -> str:
    """Render ``show lldp neighbors detail`` of OS9 (with ``counts``) or of OS10."""
    blocks = []
    for port, peer in peers.items():
        if counts:
            blocks.append(f" Local Interface {port.replace('TenGigabitEthernet', 'Te')} has 1 neighbor\n{'-' * 71}")
        name = f"    Remote System Name:  {peer.name or 'Not Advertised'}"
        blocks.append(
            f"\n    Remote Chassis ID Subtype: Mac address (4)\n    Remote Chassis ID:  {peer.chassis}\n"
            f"    Remote Port Subtype:  Interface name (5)\n    Remote Port ID:  {peer.port}\n"
            f"    Remote Port Description:  {peer.description}\n    Local Port ID: {port}\n{name}\n"
            f"    Remote Management Address (IPv4):  {peer.address}\n{'-' * 75}"
        )
    return "\n".join(blocks)


def lldpctl(peers: Peers) -> str:
    blocks = [
        f"Interface:    {port}, via: LLDP, RID: 2, Time: 0 day, 01:34:39\n"
        f"  Chassis:\n    ChassisID:    mac {peer.chassis}\n"
        f"    SysName:      {peer.name}\n    MgmtIP:       {peer.address}\n"
        f"  Port:\n    PortID:       ifname {peer.port}\n"
        f"    PortDescr:    {peer.description}\n    TTL:          120\n{BAR}"
        for port, peer in peers.items()
    ]
    return "\n".join([BAR, "LLDP neighbors:", BAR, *blocks])


def junos(peers: Peers) -> str:
    """Render ``get-lldp-neighbors-information`` of Junos: the short list, without addresses."""
    rows = [
        f"<lldp-neighbor-information><lldp-local-port-id>{port}</lldp-local-port-id>"
        f"<lldp-local-parent-interface-name>-</lldp-local-parent-interface-name>"
        f"<lldp-remote-chassis-id-subtype>Mac address</lldp-remote-chassis-id-subtype>"
        f"<lldp-remote-chassis-id>{peer.chassis}</lldp-remote-chassis-id>"
        f"<lldp-remote-port-description>{peer.description}</lldp-remote-port-description>"
        f"<lldp-remote-port-id>{peer.port}</lldp-remote-port-id>"
        f"<lldp-remote-system-name>{peer.name}</lldp-remote-system-name></lldp-neighbor-information>"
        for port, peer in peers.items()
    ]
    return f"<lldp-neighbors-information>{''.join(rows)}</lldp-neighbors-information>"


def xr(peers: Peers) -> str:
    """Render the model ``Cisco-IOS-XR-ethernet-lldp-oper`` of IOS-XR. The output is empty without neighbours."""
    rows = [
        f"<detail><lldp-neighbor><receiving-interface-name>{port}</receiving-interface-name>"
        f"<chassis-id>{peer.chassis}</chassis-id><port-id-detail>{peer.port}</port-id-detail>"
        f"<detail><network-addresses><lldp-addr-entry><address><address-type>ipv4</address-type>"
        f"<ipv4-address>{peer.address}</ipv4-address></address></lldp-addr-entry></network-addresses>"
        f"<system-name>{peer.name}</system-name><port-description>{peer.description}</port-description></detail>"
        f"</lldp-neighbor></detail>"
        for port, peer in peers.items()
    ]
    inner = f"<nodes><node><neighbors><details>{''.join(rows)}</details></neighbors></node></nodes>"
    return f'<lldp xmlns="http://cisco.com/ns/yang/Cisco-IOS-XR-ethernet-lldp-oper">{inner}</lldp>' if rows else ""


LLDP_OUTPUT: dict[str, Callable[[Peers, tuple[str, ...]], str]] = {
    "cisco_ios": lambda peers, _: ios(peers),
    "cisco_nxos": lambda peers, _: nxos(peers),
    "arista_eos": eos,
    "aruba_aoscx": lambda peers, _: aoscx(peers),
    "hp_comware": lambda peers, _: comware(peers),
    "hp_procurve": lambda peers, _: procurve(peers),
    "dell_force10": lambda peers, _: dell(peers, counts=True),
    "dell_os10": lambda peers, _: dell(peers, counts=False),
    "sonic": lambda peers, _: lldpctl(peers),
    "arista_eapi": eos,
    "cisco_iosxr": lambda peers, _: xr(peers),
    "juniper_junos": lambda peers, _: junos(peers),
}
