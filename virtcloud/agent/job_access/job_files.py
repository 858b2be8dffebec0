"""The files of a job: a hosts file in the format of /etc/hosts, a host file for `mpirun`, and an ssh configuration."""

import shlex
import stat
import sys
from collections.abc import Iterable
from ipaddress import ip_interface
from pathlib import Path
from typing import Protocol

from virtcloud.agent.job_access import connect_program
from virtcloud.agent.job_access.access import JobAccess, ScriptEnvironment
from virtcloud.agent.job_access.job_folder import FileSystemMounts, JobFolders, find_account
from virtcloud.agent.job_access.job_relays import NoFreeAddress
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.guest_spec import Guest

PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/libexec/platform-python")
SSH_CONFIG = """\
# Cluster {key}: ssh -F {folder}/ssh_config {first}
#
# ssh reaches the guests through the job's relay, because this host has no address in the cluster's network. The file
# known_hosts has the host keys that SBF knows. For a guest without a key in this file, ssh accepts the first key that
# the guest sends, and then rejects any other key of the guest while the job runs. ssh does not read your ~/.ssh/config:
# a ControlPath there could reach a guest with the same name or address in another cluster.
{hosts}
Host *
  ProxyCommand {command}
  ProxyUseFdpass yes
  StrictHostKeyChecking accept-new
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""


class RelayProvider(Protocol):
    """Creates and removes the relays of jobs. All methods are idempotent."""

    def ensure(self, access: JobAccess, uid: int) -> Path:
        """Create a relay to which the user ``uid`` can connect. Return the path of the relay's socket.

        Raise NoFreeAddress if no subnet has a free address. Raise Refused if the relay cannot be created.
        """

    def socket_path(self, key: str) -> Path:
        """Return the path of a relay's socket. The relay need not exist."""

    def ensure_none(self, key: str) -> None:
        """Remove a relay. Do nothing if the relay is absent."""

    def is_lost(self, key: str) -> bool:
        """Return whether a relay's process has ended, and no connection through the relay is left."""


class JobFiles:
    """A `JobAccessProvider` that writes files to the job's folder and creates a relay to the guests."""

    def __init__(self, root: Path, relays: RelayProvider, mounts: FileSystemMounts) -> None:
        """Create an object for jobs' folders below ``root``."""
        self._folders = JobFolders(root, mounts)
        self._relays = relays
        self._lost: set[str] = set()

    def open(self, access: JobAccess) -> ScriptEnvironment:
        """Create the relay and write the files. Raise Refused if the user is unknown or the relay cannot start.

        If no subnet has a free address for the relay, the call has one of two results:

        * If the job had a relay before, raise NoFreeAddress and leave the files unchanged, so that the caller tries
          again. The job had a relay if `is_lost` has returned true, or if the job's folder contains the files for use
          with a relay.
        * Otherwise, write the files. ssh with these files only prints the error that no address is free.
        """
        files = {"hosts": render_hosts(access.guests), "hostfile": render_hostfile(access.guests)}
        variables = {"VCLUSTER_HOSTS": "hosts", "VCLUSTER_HOSTFILE": "hostfile"}
        if any(guest.addresses for guest in access.guests):
            files |= self._open_relay(access, files)
            variables |= {"VCLUSTER_SSH_CONFIG": "ssh_config", "VCLUSTER_KNOWN_HOSTS": "known_hosts"}
        folder = self._folders.ensure(access.key, access.user, files)
        self._lost.discard(access.key)
        return {name: str(folder / file) for name, file in variables.items()}

    def _open_relay(self, access: JobAccess, others: dict[str, str]) -> dict[str, str]:
        """Create the relay. Return the files for ssh. ``others`` are the job's other files."""
        folder, relay = self._folders.path(access.key), self._relays.socket_path(access.key)
        argv = [find_python(), "-I", "-S", str(folder / "connect"), "--hand-over", "--wait", "30", str(relay)]
        files = {
            "ssh_config": render_ssh_config(access, f"{shlex.join(argv)} %h %p", folder),
            "known_hosts": render_known_hosts(access.peers),
            "connect": Path(connect_program.__file__).read_text(),
        }
        try:
            self._relays.ensure(access, find_account(access.user).pw_uid)
        except NoFreeAddress as error:
            if access.key in self._lost or self._folders.is_complete(access.key, access.user, others | files):
                raise
            command = f"echo {shlex.quote(f'virtcloud: {error}')} >&2"  # ssh prints the message
            files["ssh_config"] = render_ssh_config(access, command, folder)
        return files

    def close(self, key: str) -> None:
        """Remove the relay and the files."""
        self._lost.discard(key)
        self._relays.ensure_none(key)
        self._folders.ensure_none(key)

    def is_lost(self, key: str) -> bool:
        """Return whether the relay's process has ended, and no connection through the relay is left.

        Once true, the result remains true until `open` has created the relay again, or `close` has removed the relay.
        """
        if self._relays.is_lost(key):
            self._lost.add(key)
        return key in self._lost


def render_hosts(guests: Iterable[Guest]) -> str:
    """Return the guests in the format of /etc/hosts: one line for each address. Pure."""
    return "".join(f"{ip_interface(address).ip} {guest.name}\n" for guest in guests for address in guest.addresses)


def render_hostfile(guests: Iterable[Guest]) -> str:
    """Return an Open MPI host file: one line for each guest, with its processors as slots. Pure."""
    return "".join(f"{guest.name} slots={guest.cpus}\n" for guest in guests)


def render_ssh_config(access: JobAccess, command: str, folder: Path) -> str:
    """Return an ssh configuration (ssh_config(5)) for guests' names, and for addresses in the cluster's subnets. Pure.

    ssh reaches all guests through the job's relay, by the ProxyCommand ``command``. The relay chooses the address of a
    guest, so the configuration has no HostName. At least one guest of ``access`` must have an address.
    """
    addressed_guests = [guest for guest in access.guests if guest.addresses]
    user = f"  User {access.login}\n" if access.login not in {None, access.user} else ""
    entries = [f"Host {guest.name}\n{user}" for guest in addressed_guests]
    return SSH_CONFIG.format(
        key=access.key, folder=folder, first=addressed_guests[0].name, hosts="".join(entries), command=command
    )


def find_python() -> str:
    """Return a Python interpreter that all users may run, or "python3" if none is found.

    The agent's interpreter may be in a folder that only root can enter.
    """
    return next((program for program in PYTHONS if _is_executable_by_all(Path(program))), "python3")


def _is_executable_by_all(program: Path) -> bool:
    if not program.exists():
        return False
    paths = [program.resolve(), *program.resolve().parents, *program.parents]
    return all(path.stat().st_mode & stat.S_IXOTH for path in paths)
