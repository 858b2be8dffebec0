"""The names of interfaces, domains and files that the agent creates, and the ownership alias of interfaces. Pure.

==========================  ==============================================  =====================
object                      name                                            example
==========================  ==============================================  =====================
tagged interface            ``<uplink>.<vlan>``                             ``eth0.100``
tagged interface, if that   ``<5 of uplink>~<4 hex>.<vlan>``                ``enp65~a64b.1234``
name is too long
bridge                      ``br<vlan>``                                    ``br100``
a guest's bridge port       ``vc<vlan>-<8 hex>``                            ``vc100-9f3a2b1c``
a job's bridge port         ``vj<vlan>-<8 hex>``                            ``vj100-0c56e1aa``
the bridge port of the      ``vs<vlan>``                                    ``vs100``
DHCP and DNS server
tap of an OpenVPN server    ``vpn-udp`` or ``vpn-tcp``                      ``vpn-udp``
the VPN's bridge port       ``<tap>.<vlan>``                                ``vpn-udp.100``
the bridge port of a        ``vg<vlan>``                                    ``vg100``
gateway's namespace
a gateway's end of a link   ``vu<vlan>``                                    ``vu100``
to a network's namespace
a new interface until its   ``vcnew-<vlan>``, or with ``vcnewb-``,          ``vcnew-100``
alias is set                ``vcnewj-``, ``vcnews-``, ``vcnewv-`` or
                            ``vcnewg-`` instead of ``vcnew-``
a new tap until its alias   ``vcnew-<tap>``                                 ``vcnew-vpn-udp``
is set
libvirt domain              ``vc-<cluster ID>-<guest>``                     ``vc-4c1f-g1``
a job's files               ``<key>``                                       ``12.pbs``
a job's files, if that      ``<46 of the key>~<16 hex>``
name is too long
==========================  ==============================================  =====================

An interface's name has at most 15 characters (IFNAMSIZ, linux/if.h). The hexadecimal digits are the first digits of the
SHA-256 of the uplink's name, of ``<cluster ID>/<guest>``, or of a job's key.

A guest's port has no alias, and a new interface has no alias yet. The taps of OpenVPN servers belong to no cluster, and
have the alias `VPN_ALIAS`. All other interfaces in the table have the ownership alias ``virtcloud:<cluster ID>``.
Besides these interfaces, the agent changes only the uplinks of untagged segments. An untagged segment has no tagged
interface: the uplink itself is a port of the bridge, whose alias is ``virtcloud:<cluster ID>@<uplink>``.
"""

import re
from hashlib import sha256

MAX_INTERFACE_NAME = 15
MAX_DOMAIN_NAME = 64  # systemd-machined limits the name of a domain
MAX_FILE_NAME = 63
ALIAS_PREFIX = "virtcloud:"
SESSIONS_PREFIX = "guests."
"""The relay for sessions with a network's guests has a key that consists of this prefix and the network's ID."""
_BRIDGE = re.compile(r"br([1-9][0-9]{0,3})")
_JOB_PORT = re.compile(r"vj([1-9][0-9]{0,3})-[0-9a-f]{8}")
_SERVER_PORT = re.compile(r"vs([1-9][0-9]{0,3})")
_GATEWAY_PORT = re.compile(r"vg([1-9][0-9]{0,3})")
_OUTSIDE_LINK = re.compile(r"vu([1-9][0-9]{0,3})")
_INCOMPLETE = re.compile(r"vcnewb?-([1-9][0-9]{0,3})")
_VPN_PORT = re.compile(r"vpn-(?:udp|tcp)\.([1-9][0-9]{0,3})")
VPN_ALIAS = "virtcloud-vpn"
"""The ownership alias of the taps of OpenVPN servers."""
_GUEST_PORT = re.compile(r"vc[1-9][0-9]{0,3}-[0-9a-f]{8}")


def tagged_interface_name(uplink: str, vlan: int) -> str:
    """Return the name of the 802.1Q interface of ``vlan`` on ``uplink``."""
    name = f"{uplink}.{vlan}"
    return name if len(name) <= MAX_INTERFACE_NAME else f"{uplink[:5]}~{_digest(uplink, 4)}.{vlan}"


def bridge_name(vlan: int) -> str:
    """Return the name of the bridge of ``vlan``. At a site, a VLAN ID belongs to only one cluster at a time."""
    return f"br{vlan}"


def vlan_of_bridge(name: str) -> int | None:
    """Parse the VLAN ID from a bridge's name. Return None for another name."""
    match = _BRIDGE.fullmatch(name)
    return int(match.group(1)) if match else None


def guest_port_name(cluster: str, guest: str, vlan: int) -> str:
    """Return the name of a guest's bridge port. The name is the same at each start of the guest."""
    return f"vc{vlan}-{_digest(f'{cluster}/{guest}', 8)}"


def is_guest_port(name: str, vlan: int | None = None) -> bool:
    """Return whether an interface is a guest's bridge port. If ``vlan`` is set, the port must be in this VLAN."""
    match = _GUEST_PORT.fullmatch(name)
    return bool(match) and (vlan is None or name.startswith(f"vc{vlan}-"))


def job_port_name(key: str, vlan: int) -> str:
    """Return the name of a job's port on its cluster's bridge."""
    return f"vj{vlan}-{_digest(key, 8)}"


def vlan_of_job_port(name: str) -> int | None:
    """Parse the VLAN ID from the name of a job's port. Return None for another name."""
    match = _JOB_PORT.fullmatch(name)
    return int(match.group(1)) if match else None


def server_port_name(vlan: int) -> str:
    """Return the name of the bridge port of a cluster's DHCP and DNS server."""
    return f"vs{vlan}"


def vlan_of_server_port(name: str) -> int | None:
    """Parse the VLAN ID from the name of a server's port. Return None for another name."""
    match = _SERVER_PORT.fullmatch(name)
    return int(match.group(1)) if match else None


def gateway_port_name(vlan: int) -> str:
    """Return the name of the bridge port of a gateway's network namespace."""
    return f"vg{vlan}"


def vlan_of_gateway_port(name: str) -> int | None:
    """Parse the VLAN ID from the name of a gateway's port. Return None for another name."""
    match = _GATEWAY_PORT.fullmatch(name)
    return int(match.group(1)) if match else None


def outside_link_name(vlan: int) -> str:
    """Return the name of the gateway's end of the link to a network's namespace."""
    return f"vu{vlan}"


def vlan_of_outside_link(name: str) -> int | None:
    """Parse the VLAN ID from the name of the gateway's end of a link. Return None for another name."""
    match = _OUTSIDE_LINK.fullmatch(name)
    return int(match.group(1)) if match else None


def temporary_gateway_port_name(vlan: int) -> str:
    """Return the temporary name that a gateway's port or link has until its ownership alias is set."""
    return f"vcnewg-{vlan}"


def vpn_port_name(tap: str, vlan: int) -> str:
    """Return the name of the 802.1Q interface of ``vlan`` on the tap of an OpenVPN server."""
    return f"{tap}.{vlan}"


def vlan_of_vpn_port(name: str) -> int | None:
    """Parse the VLAN ID from the name of the VPN's bridge port. Return None for another name."""
    match = _VPN_PORT.fullmatch(name)
    return int(match.group(1)) if match else None


def temporary_tap_name(tap: str) -> str:
    """Return the temporary name that the tap of an OpenVPN server has until its alias is set."""
    return f"vcnew-{tap}"


def temporary_vpn_port_name(vlan: int) -> str:
    """Return the temporary name that the VPN's bridge port has until its ownership alias is set."""
    return f"vcnewv-{vlan}"


def temporary_server_port_name(vlan: int) -> str:
    """Return the temporary name that a server's port has until its ownership alias is set."""
    return f"vcnews-{vlan}"


def is_port_of_job(name: str, key: str) -> bool:
    """Return whether an interface is the port of the job with this key, in any VLAN."""
    return vlan_of_job_port(name) is not None and name.endswith(_digest(key, 8))


def file_name(key: str) -> str:
    """Return the name of a job's file or folder: the job's key, or a unique shortened name for a long key.

    Long keys are shortened because the path of a socket has at most 107 characters (unix(7)).
    """
    return key if len(key) <= MAX_FILE_NAME else f"{key[: MAX_FILE_NAME - 17]}~{_digest(key, 16)}"


def temporary_job_port_name(vlan: int) -> str:
    """Return the temporary name that a job's port has until its ownership alias is set."""
    return f"vcnewj-{vlan}"


def temporary_name(final: str, vlan: int) -> str:
    """Return the temporary name that the interface ``final`` has until its ownership alias is set.

    By this name, a restarted agent finds and deletes an interface without an alias.
    """
    return f"vcnewb-{vlan}" if vlan_of_bridge(final) else f"vcnew-{vlan}"


def vlan_of_incomplete(name: str) -> int | None:
    """Parse the VLAN ID from the `temporary_name` of a bridge or tagged interface. Return None for another name."""
    match = _INCOMPLETE.fullmatch(name)
    return int(match.group(1)) if match else None


def ownership_alias(cluster: str, untagged: str | None = None) -> str:
    """Return the ownership alias of a cluster's interface. ``untagged`` is the uplink of an untagged segment."""
    return ALIAS_PREFIX + cluster + (f"@{untagged}" if untagged else "")


def cluster_of_alias(alias: str | None) -> str | None:
    """Return the cluster ID in an ownership alias, or None for another alias."""
    return alias.removeprefix(ALIAS_PREFIX).partition("@")[0] if alias and alias.startswith(ALIAS_PREFIX) else None


def uplink_of_alias(alias: str | None) -> str | None:
    """Return the uplink in the alias of an untagged segment's bridge, or None for another alias."""
    return (alias.partition("@")[2] or None) if alias and alias.startswith(ALIAS_PREFIX) else None


def domain_name(cluster: str, guest: str) -> str:
    """Return the name of a guest's domain. In a long name, a digest replaces the cluster ID."""
    name = f"vc-{cluster}-{guest}"
    return name if len(name) <= MAX_DOMAIN_NAME else f"vc-{_digest(cluster, 24)}-{guest}"


def domain_name_patterns(cluster: str) -> tuple[str, str]:
    """Return two glob patterns for the names of a cluster's domains: one for full names, one for shortened names."""
    return f"vc-{cluster}-*", f"vc-{_digest(cluster, 24)}-*"


def _digest(text: str, digits: int) -> str:
    return sha256(text.encode()).hexdigest()[:digits]
