"""The files that every job finds: its guests' names as in /etc/hosts, a host file for mpirun, settings for ssh."""

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
from virtcloud.model.cluster import Guest

PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/libexec/platform-python")
SSH_CONFIG = """\
# Cluster {key}: ssh -F {folder}/ssh_config {first}
#
# Guests are reached through the cluster's own segment, which this machine has no address on. A guest makes its host
# key when it boots: a key is taken on trust the first time, and must stay the same while the job lasts. Your own
# ~/.ssh/config is left out: a ControlPath there may lead to a guest with the same address in another cluster.
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
    """Makes and removes the way to a job's guests; both may be repeated."""

    def ensure(self, opening: JobAccess, uid: int) -> Path:
        """Make it for the user ``uid``; gives the socket where its relay listens. Raises NoFreeAddress, Refused."""

    def ensure_none(self, key: str) -> None:
        """Remove it; nothing there is success."""


class JobFiles:
    """Opens a job's place: files in a folder of its own, and a way to its guests."""

    def __init__(self, root: Path, way: RelayProvider, volumes: FileSystemMounts) -> None:
        """Keep the folders of jobs below ``root``."""
        self._root = root
        self._folders = JobFolders(root, volumes)
        self._way = way

    def open(self, opening: JobAccess) -> ScriptEnvironment:
        """Write the files; raises Refused when the user is not known here, or when no way can be made."""
        files = {"hosts": render_hosts(opening.guests), "hostfile": render_hostfile(opening.guests)}
        facts = {"VCLUSTER_HOSTS": "hosts", "VCLUSTER_HOSTFILE": "hostfile"}
        if any(guest.addresses for guest in opening.guests):
            files |= self._ssh(opening, self._folders.place(opening.key))
            facts["VCLUSTER_SSH_CONFIG"] = "ssh_config"
        folder = self._folders.ensure(opening.key, opening.user, files)
        return {name: str(folder / file) for name, file in facts.items()}

    def _ssh(self, opening: JobAccess, folder: Path) -> dict[str, str]:
        script = Path(connect_program.__file__).read_text()
        try:
            relay = self._way.ensure(opening, find_account(opening.user).pw_uid)
            words = [find_python(), "-I", "-S", str(folder / "connect"), "--hand-over", "--wait", "30", str(relay)]
            command = f"{shlex.join(words)} %h %p"
        except NoFreeAddress as error:  # whoever calls ssh reads it
            command = f"echo {shlex.quote(f'virtcloud: {error}')} >&2"
        return {"ssh_config": render_ssh_config(opening, command, folder), "known_hosts": "", "connect": script}

    def close(self, key: str) -> None:
        """Remove them."""
        self._way.ensure_none(key)
        self._folders.ensure_none(key)


def render_hosts(guests: Iterable[Guest]) -> str:
    """PURE. Write the guests in the manner of /etc/hosts: a line for each address."""
    return "".join(f"{ip_interface(address).ip} {one.name}\n" for one in guests for address in one.addresses)


def render_hostfile(guests: Iterable[Guest]) -> str:
    """PURE. Write the guests as a host file of Open MPI: a line for each, with its processors as slots."""
    return "".join(f"{one.name} slots={one.cpus}\n" for one in guests)


def render_ssh_config(opening: JobAccess, command: str, folder: Path) -> str:
    """PURE. Write settings for ssh (ssh_config(5)) by which it reaches every guest by name, and others by address."""
    reached = [guest for guest in opening.guests if guest.addresses]
    entries = [f"Host {one.name}\n  HostName {ip_interface(one.addresses[0]).ip}\n" for one in reached]
    return SSH_CONFIG.format(
        key=opening.key, folder=folder, first=reached[0].name, hosts="".join(entries), command=command
    )


def find_python() -> str:
    """Give a Python that users may run too: the agent's own may be in a folder that is root's alone."""
    return next((one for one in PYTHONS if _is_executable_by_all(Path(one))), "python3")


def _is_executable_by_all(program: Path) -> bool:
    if not program.exists():
        return False
    places = [program.resolve(), *program.resolve().parents, *program.parents]
    return all(one.stat().st_mode & stat.S_IXOTH for one in places)
