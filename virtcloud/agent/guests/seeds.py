"""The seed of a guest as NoCloud data for cloud-init: ``meta-data``, ``user-data`` and ``network-config``. Pure.

Sources of the formats: https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html, the same site's "Module
reference" and "Networking config Version 2". Some of the configuration keys need cloud-init 21.3 or later.
"""

from ipaddress import ip_interface
from typing import Final

from virtcloud.agent.guests import peer_files
from virtcloud.agent.guests.cloud_config import CloudConfig, render_cloud_config, render_yaml
from virtcloud.agent.guests.peer_files import PeerFiles
from virtcloud.agent.host_services.dnsmasq_config import list_assigned_addresses, list_routers
from virtcloud.model.guest_seed import GuestSeed
from virtcloud.model.wanted import GuestWanted, Segment

META_DATA, USER_DATA, NETWORK_CONFIG = "meta-data", "user-data", "network-config"
VIRTCLOUD_FOLDER: Final = "/etc/virtcloud"
PEER_FILE_PATHS: Final = {
    peer_files.HOSTS: "/etc/hosts",
    peer_files.KNOWN_HOSTS: "/etc/ssh/ssh_known_hosts",
    peer_files.HOSTFILE: f"{VIRTCLOUD_FOLDER}/hostfile",
    peer_files.NETWORK_HOSTFILE: f"{VIRTCLOUD_FOLDER}/network-hostfile",
}
"""The paths of the peer files in the guest, by name."""
END_OF_FILE: Final = "END OF FILE OF VIRTCLOUD"
IPV4, IPV6 = 4, 6

NoCloudData = dict[str, str]
"""The content of the files `META_DATA`, `USER_DATA` and `NETWORK_CONFIG`."""


def render_nocloud(segment: Segment, guest: GuestWanted, seed: GuestSeed, files: PeerFiles) -> NoCloudData:
    """Return the NoCloud data of a guest. At each boot, cloud-init writes the peer files ``files``.

    Raise Refused if the user's cloud-config cannot be merged.
    """
    return {
        META_DATA: render_meta_data(segment, guest),
        USER_DATA: render_cloud_config(_cloud_config(segment, guest, seed, files), guest.name, seed.user_data),
        NETWORK_CONFIG: render_network_config(segment, guest),
    }


def render_meta_data(segment: Segment, guest: GuestWanted) -> str:
    """Return the content of ``meta-data``: the instance ID and the name of a guest."""
    return render_yaml({"instance-id": instance_id(segment, guest), "local-hostname": guest.name})


def instance_id(segment: Segment, guest: GuestWanted) -> str:
    """Return the instance ID of a guest. After a change of the ID, cloud-init acts as at the first boot."""
    return f"{guest.cluster or segment.id}-{guest.name}"


def home_folder(user: str) -> str:
    """Return the home folder that cloud-init creates for a user."""
    return "/root" if user == "root" else f"/home/{user}"


def _cloud_config(segment: Segment, guest: GuestWanted, seed: GuestSeed, files: PeerFiles) -> CloudConfig:
    key_file = f"{home_folder(seed.user)}/.ssh/id_ed25519"
    return {
        "hostname": guest.name,
        "fqdn": peer_files.full_name(guest.name, peer_files.cluster_key(segment, guest)),
        "prefer_fqdn_over_hostname": False,
        "manage_etc_hosts": False,
        "users": [_user(seed)],
        "disable_root": seed.user != "root",
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": seed.host_key.get_secret_value()},
        "write_files": [_private_file(key_file, seed.cluster_key.get_secret_value(), seed.user)],
        **(
            {"bootcmd": [_write_command(PEER_FILE_PATHS[name], files[name]) for name in sorted(files)]} if files else {}
        ),
    }


def _user(seed: GuestSeed) -> CloudConfig:
    return {
        "name": seed.user,
        "shell": "/bin/bash",
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "lock_passwd": True,
        "ssh_authorized_keys": list(seed.authorized_keys),
    }


def _private_file(path: str, content: str, user: str) -> CloudConfig:
    """Return an entry of ``write_files`` for a file that only ``user`` may read.

    With ``defer``, cloud-init writes the file after it has created the users.
    """
    return {"path": path, "content": content, "owner": user, "permissions": "0600", "defer": True}


def _write_command(path: str, content: str) -> str:
    """Return a shell command that writes a file. cloud-init runs the command at each boot (``bootcmd``).

    ``write_files`` would be executed only at the first boot, but clusters also join and leave the network later.
    """
    folder = path.rpartition("/")[0]
    return f"mkdir -p {folder}; cat >{path} <<'{END_OF_FILE}'\n{content}{END_OF_FILE}\n"


def render_network_config(segment: Segment, guest: GuestWanted) -> str:
    """Return the configuration of eth0. With DHCP, list only addresses that DHCP does not assign."""
    assigned = list_assigned_addresses(segment, guest)
    versions = {ip_interface(address).version for address in assigned}
    routers = [
        router for router in list_routers(segment, guest) if ip_interface(router).version not in versions - {IPV6}
    ]
    config = {
        "version": 2,
        "ethernets": {
            "eth0": {
                "match": {"macaddress": guest.mac},
                "set-name": "eth0",
                "dhcp4": IPV4 in versions,
                "dhcp6": IPV6 in versions,
                "addresses": [address for address in guest.addresses if address not in assigned],
                **({"mtu": segment.mtu} if segment.mtu else {}),
                **({"routes": [_default_route(router) for router in routers]} if routers else {}),
            }
        },
    }
    return render_yaml(config)


def _default_route(router: str) -> CloudConfig:
    """Return a default route as ``0.0.0.0/0`` or ``::/0``: some releases of cloud-init reject ``default``."""
    return {"to": "::/0" if ":" in router else "0.0.0.0/0", "via": router}
