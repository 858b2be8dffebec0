"""The configuration of NFS-Ganesha for one network (ganesha-config(8), ganesha-core-config(8)). Pure.

The server speaks NFSv4.2 over TCP only. The server executes all requests as one account (``All_Squash``): the owner of
the cluster that created the network. The process itself also runs with these IDs (``only_one_user``), so no mistake in
the configuration can grant a client the rights of another user.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from virtcloud.model.nfs import NfsExport, NfsServer

PORT: Final = 2049
LEASE_S: Final = 20
"""Seconds after the last request of a client until the server discards the client's open files and locks."""
CACHED_ENTRIES: Final = 20_000
"""Maximum number of files and folders whose attributes the server caches. Each file or folder takes about 3 KB of
memory."""
CONNECTIONS: Final = 256
EXPORTS: Final = "/exports"
RECOVERY: Final = "/recovery"

_GENERAL: Final = f"""\
NFS_CORE_PARAM {{
  Protocols = 4; NFS_Port = {PORT}; Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false;
  mount_path_pseudo = true; RPC_Max_Connections = {CONNECTIONS};
}}
NFSV4 {{
  Minor_Versions = 2; Lease_Lifetime = {LEASE_S}; Grace_Period = {LEASE_S}; Delegations = false;
  RecoveryBackend = fs; RecoveryRoot = {RECOVERY}; Only_Numeric_Owners = true;
}}
NFS_KRB5 {{ Active_krb5 = false; }}
MDCACHE {{ Entries_HWMark = {CACHED_ENTRIES}; }}
VFS {{ only_one_user = true; }}
LOG {{ Default_Log_Level = EVENT; }}
"""


@dataclass(frozen=True, slots=True)
class OwnerAccount:
    """The account of a cluster's owner on this gateway."""

    name: str
    uid: int
    gid: int


def render_ganesha(server: NfsServer, account: OwnerAccount) -> str:
    """Return the configuration of the server of one network."""
    blocks = (_render_export(export, number, account) for number, export in enumerate(server.exports, 1))
    return _GENERAL + "".join(blocks)


def digest_server(server: NfsServer, account: OwnerAccount) -> str:
    """Return a digest of the server's wanted state and the account.

    A running server that was started with another digest must be restarted.
    """
    text = f"{server.model_dump_json()}\0{render_ganesha(server, account)}"
    return sha256(text.encode()).hexdigest()[:16]


def _render_export(export: NfsExport, number: int, account: OwnerAccount) -> str:
    access = "RO" if export.read_only else "RW"
    return (
        f"EXPORT {{\n  Export_Id = {number}; Path = {EXPORTS}/{export.name}; Pseudo = /{export.name};"
        f" Access_Type = {access};\n  Squash = All_Squash; Anonymous_uid = {account.uid};"
        f" Anonymous_gid = {account.gid};\n  SecType = sys; Protocols = 4; Transports = TCP;"
        " FSAL { Name = VFS; }\n}\n"
    )
