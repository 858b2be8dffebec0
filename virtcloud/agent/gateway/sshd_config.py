"""The configuration of a gateway's sshd (sshd_config(5), OpenSSH 9.2), and the files that the sshd sees. Pure.

The sshd runs as an unprivileged account, whose shell is the relay (`ssh_relay_program`). The sshd offers no terminal
and no forwarding, and accepts only certificates of SBF's SSH authority.
"""

from hashlib import sha256
from typing import Final

from virtcloud.model.ssh_access import ACCOUNT, SshServer

FOLDER: Final = "/etc/ssh"
"""The folder of this sshd's files in this sshd's mount namespace.

In this mount namespace, these files hide the files of the gateway's usual sshd.
"""
CONFIG, HOST_KEY, AUTHORITY, RELAY, PASSWD, NSSWITCH = "sshd_config", "host_key", "authority", "relay", "passwd", "nss"
REQUESTS: Final = "requests"
"""The subfolder of `FOLDER` with the agent's socket for relays."""
SOCKET: Final = "agent.sock"
CERTIFICATES: Final = (
    "ssh-ed25519-cert-v01@openssh.com,rsa-sha2-512-cert-v01@openssh.com,rsa-sha2-256-cert-v01@openssh.com,"
    "ecdsa-sha2-nistp256-cert-v01@openssh.com,ecdsa-sha2-nistp384-cert-v01@openssh.com,"
    "ecdsa-sha2-nistp521-cert-v01@openssh.com"
)
FIXED_OPTIONS: Final = (
    f"HostKey {FOLDER}/{HOST_KEY}",
    f"TrustedUserCAKeys {FOLDER}/{AUTHORITY}",
    f"AllowUsers {ACCOUNT}",
    "AuthenticationMethods publickey",
    f"PubkeyAcceptedAlgorithms {CERTIFICATES}",
    "CASignatureAlgorithms ssh-ed25519",
    "AuthorizedKeysFile none",
    "PasswordAuthentication no",
    "KbdInteractiveAuthentication no",
    "HostbasedAuthentication no",
    f"ForceCommand {ACCOUNT}",
    "ExposeAuthInfo yes",
    "DisableForwarding yes",
    "PermitTTY no",
    "PermitTunnel no",
    "PermitUserRC no",
    "PermitUserEnvironment no",
    "MaxAuthTries 3",
    "MaxSessions 1",
    "MaxStartups 200:30:300",
    "PerSourceMaxStartups 100",
    "LoginGraceTime 20",
    "ClientAliveInterval 30",
    "ClientAliveCountMax 4",
    "Compression no",
    "UseDNS no",
    "PrintMotd no",
    "PidFile none",
)
"""``PerSourceMaxStartups`` limits only unauthenticated connections. So a user can have many connections to guests.

Options of later versions are arguments of sshd (`sshd_program`), because an sshd refuses a file with an unknown option.
"""


def render_sshd_config(port: int, *, ipv6: bool) -> str:
    """Return the configuration. ``ipv6``: whether the sshd accepts IPv6 in addition to IPv4."""
    own = (f"Port {port}", f"AddressFamily {'any' if ipv6 else 'inet'}")
    return "\n".join((*own, *FIXED_OPTIONS, ""))


def render_sshd_files(server: SshServer, relay: str, uid: int, gid: int, *, ipv6: bool) -> dict[str, str]:
    """Return the contents of the files of a gateway's sshd by file name.

    ``relay`` is the text of the relay program. ``uid`` and ``gid`` are the IDs of the sshd's account.
    """
    return {
        CONFIG: render_sshd_config(server.port, ipv6=ipv6),
        HOST_KEY: server.host_key.get_secret_value(),
        AUTHORITY: f"{server.authority}\n",
        RELAY: relay,
        PASSWD: f"{ACCOUNT}:x:{uid}:{gid}::/:{FOLDER}/{RELAY}\n",
        NSSWITCH: "passwd: files\ngroup: files\n",
    }


def digest_sshd_files(files: dict[str, str]) -> str:
    """Return a digest of the files, by which the agent recognizes changed files."""
    text = "\0".join(part for name in sorted(files) for part in (name, files[name]))
    return sha256(text.encode()).hexdigest()[:16]
