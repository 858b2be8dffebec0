"""Real ssh connections to this machine: ssh starts an sshd for each connection, without any network.

The guests are aliases in an ssh configuration, as in the configuration of a job's script. Each sshd runs in its own
process session (setsid(2)).
"""

import getpass
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SSHD = "/usr/sbin/sshd"
SSHD_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PermitUserEnvironment HOME
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
SSH_CONFIG = """\
Host *
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  HostKeyAlias guest
"""


@dataclass(frozen=True, slots=True)
class RealSshd:
    """The folder with the keys and configurations."""

    folder: Path

    @property
    def home(self) -> Path:
        """The home folder of every guest.

        If the tests run as root, each login finds an empty file system of 64 KiB in the subfolder ``small``.
        """
        return self.folder / "home"

    def job(self, *guests: str, **proxies: str) -> dict[str, str]:
        """Write the ssh configuration of a job with these guests. Return the environment of the job's script.

        ``proxies`` maps further guests to the commands (ProxyCommand) that connect ssh to these guests.
        """
        commands = {**dict.fromkeys(guests, self.make_proxy_command()), **proxies}
        hosts = "".join(f"Host {name}\n  ProxyCommand {command}\n" for name, command in commands.items())
        config = self.folder / "ssh_config"
        config.write_text(hosts + SSH_CONFIG.format(user=getpass.getuser(), folder=self.folder))
        return {"VCLUSTER_ID": "demo", "VCLUSTER_SSH_CONFIG": str(config), "VCLUSTER_GUESTS": " ".join(commands)}

    def make_proxy_command(self) -> str:
        start = f"{SSHD} -i -e -f {self.folder}/sshd_config 2>>{self.folder}/sshd.log"
        if os.geteuid() == 0:  # an sshd of root needs /run/sshd, which may be missing
            small = f"mount -t tmpfs -o size=64k small {self.home}/small"
            start = f"unshare --mount sh -c 'mount -t tmpfs run /run && mkdir /run/sshd && {small} && exec {start}'"
        return f"setsid {start}"


def make_real_sshd(folder: Path) -> RealSshd:
    """Create keys and configurations in ``folder``. Skip the test if this machine has no sshd."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        pytest.skip("NOT TESTED: OpenSSH's client or server is not installed")
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)  # noqa: S603, S607
    (folder / "home/small").mkdir(parents=True)
    key = (folder / "key.pub").read_text()
    # With another HOME, the shell does not read the .bashrc of the user who runs the tests.
    (folder / "authorized_keys").write_text(f'environment="HOME={folder}/home" {key}')
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
    (folder / "known_hosts").write_text(f"guest {(folder / 'host_key.pub').read_text()}")
    return RealSshd(folder)
