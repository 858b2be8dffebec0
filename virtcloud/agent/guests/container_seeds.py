"""The seed of a container, written to the container's root before the container starts.

If the image has cloud-init, the agent writes the NoCloud data to the root. Otherwise the agent writes the guest's name,
the guest's SSH host key, the user, the user's authorized SSH keys, and the private key of the cluster's SSH key pair.
In both cases, the container has read-only access to the guest's peer files (`peer_files`) in ``/etc/virtcloud``.

At a later start, the agent does not replace the user's SSH files, because the guest may have changed these files.
"""

from pathlib import PurePosixPath
from typing import Final

from virtcloud.agent.files import describe_os_error
from virtcloud.agent.guests import peer_files
from virtcloud.agent.guests.rooted_files import GuestRoot, RootedFiles
from virtcloud.agent.guests.seeds import NETWORK_CONFIG, VIRTCLOUD_FOLDER, home_folder, render_nocloud
from virtcloud.model.errors import Refused
from virtcloud.model.guest_seed import GuestSeed
from virtcloud.model.wanted import GuestWanted, Segment

CLOUD_INIT: Final = "usr/bin/cloud-init"
NOCLOUD_FOLDER: Final = "var/lib/cloud/seed/nocloud"
HOST_KEY: Final = "etc/ssh/ssh_host_ed25519_key"
LINKS: Final = {
    "etc/hosts": f"{VIRTCLOUD_FOLDER}/{peer_files.HOSTS}",
    "etc/ssh/ssh_known_hosts": f"{VIRTCLOUD_FOLDER}/{peer_files.KNOWN_HOSTS}",
}
NO_NETWORK_CONFIG: Final = "network: {config: disabled}\n"
"""cloud-init must not configure the network, because libvirt sets the addresses before the container starts."""
PRIVATE, PRIVATE_FOLDER, SUDOERS_MODE = 0o600, 0o700, 0o440
FIRST_USER_ID, LAST_USER_ID = 1000, 59999  # login.defs(5) and Debian's policy 9.2.2
PASSWD_FIELDS = 7


def write_container_seed(root: GuestRoot, segment: Segment, guest: GuestWanted, seed: GuestSeed) -> None:
    """Write a container's seed to its root. Idempotent.

    Raise Refused if the spec has a cloud-config but the image has no cloud-init, or if the root cannot be written.
    """
    files = RootedFiles(root)
    try:
        files.ensure_folder(VIRTCLOUD_FOLDER.lstrip("/"))
        for path, target in LINKS.items():
            files.write_link(path, target)
        if files.exists(CLOUD_INIT):
            _write_nocloud(files, segment, guest, seed)
        else:
            _write_essentials(files, guest, seed)
    except OSError as error:
        raise Refused(f"guest {guest.name}: cannot write the seed: {describe_os_error(error)}") from error
    except ValueError as error:
        raise Refused(f"guest {guest.name}: cannot write the seed: the guest's root is unusable: {error}") from error


def _write_nocloud(files: RootedFiles, segment: Segment, guest: GuestWanted, seed: GuestSeed) -> None:
    data = {**render_nocloud(segment, guest, seed, {}), NETWORK_CONFIG: NO_NETWORK_CONFIG}
    for name, text in data.items():
        files.write(f"{NOCLOUD_FOLDER}/{name}", text, PRIVATE)


def _write_essentials(files: RootedFiles, guest: GuestWanted, seed: GuestSeed) -> None:
    if seed.user_data is not None:
        raise Refused(
            f"guest {guest.name}: user_data needs cloud-init, which image {guest.image} lacks; use another image"
        )
    files.write("etc/hostname", f"{guest.name}\n")
    _write_host_key(files, seed)
    user_id, home = _ensure_user(files, seed.user)
    _write_users_files(files, seed, user_id, home)


def _write_host_key(files: RootedFiles, seed: GuestSeed) -> None:
    """Replace the image's SSH host keys, which all its guests would share."""
    key = seed.host_key.get_secret_value()
    if files.read(HOST_KEY) != key:
        files.remove("etc/ssh", "ssh_host_*_key*")
        files.write(HOST_KEY, key, PRIVATE)


def _write_users_files(files: RootedFiles, seed: GuestSeed, user_id: int, home: str) -> None:
    files.ensure_folder(home, owner=user_id)
    files.ensure_folder(f"{home}/.ssh", PRIVATE_FOLDER, user_id)
    authorized_keys = "".join(f"{key}\n" for key in seed.authorized_keys)
    for name, text in (("authorized_keys", authorized_keys), ("id_ed25519", seed.cluster_key.get_secret_value())):
        if not files.exists(f"{home}/.ssh/{name}"):
            files.write(f"{home}/.ssh/{name}", text, PRIVATE, user_id)


def _ensure_user(files: RootedFiles, name: str) -> tuple[int, str]:
    """Create the user, unless the image has the user. Return the user's ID and home folder.

    If the image has sudo, permit a created user to use sudo without a password.
    """
    passwd = _read_table(files, "etc/passwd")
    for entry in passwd:
        if entry[0] == name and len(entry) == PASSWD_FIELDS:
            return int(entry[2]), _relative(entry[5])
    groups = _read_table(files, "etc/group")
    others = [entry for entry in groups if entry[0] != name]  # a killed agent may have created only the group
    used = {int(entry[2]) for entry in (*passwd, *others) if len(entry) > 2 and entry[2].isdecimal()}  # noqa: PLR2004
    user_id = next((number for number in range(FIRST_USER_ID, LAST_USER_ID) if number not in used), LAST_USER_ID)
    home, shell = home_folder(name), "/bin/bash" if files.exists("bin/bash") else "/bin/sh"
    files.append_line("etc/group", f"{name}:x:{user_id}:")
    if files.exists("etc/shadow"):
        files.append_line("etc/shadow", f"{name}:*:::::::")
    if files.exists("etc/sudoers.d"):
        files.write(f"etc/sudoers.d/90-virtcloud-{name}", f"{name} ALL=(ALL) NOPASSWD:ALL\n", SUDOERS_MODE)
    password = "x" if files.exists("etc/shadow") else "*"
    files.append_line("etc/passwd", f"{name}:{password}:{user_id}:{user_id}::{home}:{shell}")
    return user_id, _relative(home)


def _read_table(files: RootedFiles, path: str) -> list[list[str]]:
    return [line.split(":") for line in (files.read(path) or "").splitlines()]


def _relative(path: str) -> str:
    return str(PurePosixPath(path)).lstrip("/") or "."
