"""PURE. How what we make on a machine is called, and how it is known again.

======================  =====================================  ==========================
what                    name                                   example
======================  =====================================  ==========================
tagged interface        ``<uplink>.<vlan>``                    ``eth0.100``
… if that is too long   ``<5 of uplink>~<4 hex>.<vlan>``       ``enp65~a64b.1234``
bridge                  ``br<vlan>``                           ``br100``
a guest's bridge port   ``vc<vlan>-<8 hex>``                   ``vc100-9f3a2b1c``
a job's port            ``vj<vlan>-<8 hex>``                   ``vj100-0c56e1aa``
not yet marked          ``vcnew-``, ``vcnewb-``, ``vcnewj-<vlan>``  ``vcnew-100``
domain                  ``vc-<cluster id>-<guest>``            ``vc-4c1f-g1``
a job's files           ``<key>``                              ``12.pbs``
… if that is too long   ``<46 of the key>~<16 hex>``
======================  =====================================  ==========================

An interface's name has at most 15 characters (IFNAMSIZ, linux/if.h). The hexadecimal digits are the first of the
SHA-256 of the uplink's name, of ``<cluster id>/<guest>``, or of a job's key. All but guests' ports carry the alias
``virtcloud:<cluster id>``: the mark of what is ours. What lacks it is never touched, whatever its name. An untagged
segment has no interface of its own: the uplink is a port of its bridge, whose alias says which,
``virtcloud:<cluster id>@<uplink>``.
"""

import re
from hashlib import sha256

MAX_INTERFACE_NAME = 15
MAX_DOMAIN_NAME = 64  # systemd-machined's limit for a machine's name
MAX_FILE_NAME = 63
ALIAS_PREFIX = "virtcloud:"
_BRIDGE = re.compile(r"br([1-9][0-9]{0,3})")
_JOB_PORT = re.compile(r"vj([1-9][0-9]{0,3})-[0-9a-f]{8}")
_GUEST_PORT = re.compile(r"vc[1-9][0-9]{0,3}-[0-9a-f]{8}")


def tagged_interface_name(uplink: str, vlan: int) -> str:
    """Name the 802.1q interface of ``vlan`` on ``uplink``."""
    name = f"{uplink}.{vlan}"
    return name if len(name) <= MAX_INTERFACE_NAME else f"{uplink[:5]}~{_digest(uplink, 4)}.{vlan}"


def bridge_name(vlan: int) -> str:
    """Name the bridge of ``vlan``; a site gives a number to one cluster only, so a machine has one."""
    return f"br{vlan}"


def vlan_of_bridge(name: str) -> int | None:
    """Read the VLAN number back from a bridge's name."""
    found = _BRIDGE.fullmatch(name)
    return int(found.group(1)) if found else None


def guest_port_name(cluster: str, guest: str, vlan: int) -> str:
    """Name a guest's port on the bridge; the same after every start, so that it can be put back where it belongs."""
    return f"vc{vlan}-{_digest(f'{cluster}/{guest}', 8)}"


def is_guest_port(name: str, vlan: int | None = None) -> bool:
    """Say whether an interface is a port of a guest of ours, in ``vlan`` if given."""
    found = _GUEST_PORT.fullmatch(name)
    return bool(found) and (vlan is None or name.startswith(f"vc{vlan}-"))


def job_port_name(key: str, vlan: int) -> str:
    """Name the port of a job on its cluster's bridge."""
    return f"vj{vlan}-{_digest(key, 8)}"


def vlan_of_job_port(name: str) -> int | None:
    """Read the VLAN number back from the name of a job's port."""
    found = _JOB_PORT.fullmatch(name)
    return int(found.group(1)) if found else None


def is_job_port(name: str, key: str) -> bool:
    """Say whether an interface is the port of this job, in whatever VLAN."""
    return vlan_of_job_port(name) is not None and name.endswith(_digest(key, 8))


def file_name(key: str) -> str:
    """Name a job's file or folder: as its key, which no key of another can be where that had to be cut.

    A file's name has at most 255 characters, the path of a socket 107 (unix(7)); of folders below, 40 are left.
    """
    return key if len(key) <= MAX_FILE_NAME else f"{key[: MAX_FILE_NAME - 17]}~{_digest(key, 16)}"


def temporary_job_port_name(vlan: int) -> str:
    """Name a job's port that does not have its mark yet."""
    return f"vcnewj-{vlan}"


def temporary_name(final: str, vlan: int) -> str:
    """Name what was created and does not have its mark yet, so that a crash in between leaves nothing unknown."""
    return f"vcnewb-{vlan}" if vlan_of_bridge(final) else f"vcnew-{vlan}"


def ownership_alias(cluster: str, untagged: str | None = None) -> str:
    """Give the alias that says: made by us, for this cluster; and on which uplink ``untagged``."""
    return ALIAS_PREFIX + cluster + (f"@{untagged}" if untagged else "")


def cluster_of_alias(alias: str | None) -> str | None:
    """Give the cluster that an alias names; None when the interface is not ours."""
    return alias.removeprefix(ALIAS_PREFIX).partition("@")[0] if alias and alias.startswith(ALIAS_PREFIX) else None


def uplink_of_alias(alias: str | None) -> str | None:
    """Give the uplink that is a port of the bridge with this alias; None when its segment is tagged or not ours."""
    return (alias.partition("@")[2] or None) if alias and alias.startswith(ALIAS_PREFIX) else None


def domain_name(cluster: str, guest: str) -> str:
    """Name a guest's domain, another one in each cluster."""
    name = f"vc-{cluster}-{guest}"
    return name if len(name) <= MAX_DOMAIN_NAME else f"vc-{_digest(cluster, 24)}-{guest}"


def domain_name_patterns(cluster: str) -> tuple[str, str]:
    """Return the patterns of the names of a cluster's domains, short and long ones."""
    return f"vc-{cluster}-*", f"vc-{_digest(cluster, 24)}-*"


def _digest(text: str, digits: int) -> str:
    return sha256(text.encode()).hexdigest()[:digits]
