"""File servers of gateways (NFSv4.2): the exports that administrators define, and each network's own server."""

from typing import Annotated, Final, Self

from pydantic import Field, IPvAnyAddress, model_validator

from virtcloud.model.document import OMIT_EMPTY, Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name, PatternText, UserName

NFS: Final = "nfs"
"""Capability that segments with ``nfs`` require. An agent without this capability would offer no files."""
OWNER: Final = "{owner}"
"""The placeholder in a folder's path for the name of the cluster's owner."""


class ExportFolder(PatternText):
    """The folder of an export on the gateway. ``{owner}`` stands for the name of the cluster's owner."""

    __slots__ = ()
    pattern = r"(?:/(?!\.{1,2}(?:/|$))(?:[A-Za-z0-9_.@-]|\{owner\})+)+"
    meaning = "an absolute path of letters, digits, '_', '.', '@', '-' and '{owner}', such as /srv/home/{owner}"


class NfsExport(Document):
    """A folder that a gateway exports to the clusters that ask for the service ``nfs``."""

    name: Name
    """The name of the export. Guests mount the folder as `nfs:/NAME`."""
    folder: ExportFolder
    """The folder on the gateway. `{owner}` stands for the name of the cluster's owner."""
    read_only: bool = False
    """Whether guests have read-only access."""
    size_mb: Annotated[int, Field(ge=16, le=16 * 1024 * 1024)] | None = None
    """Size in MiB of the file system that the gateway creates for the files, in the file `FOLDER.ext4`. Null: the
    folder exists on the gateway and is the root of a mounted file system."""


class NfsListener(Document):
    """The file server of a gateway, as the topology describes it."""

    exports: Annotated[tuple[NfsExport, ...], Field(min_length=1, max_length=16)]
    """The folders that the gateway exports to clusters."""

    @model_validator(mode="after")
    def _check_writable(self) -> Self:
        for export in self.exports:
            if OWNER not in export.folder and not export.read_only:
                raise BadInput(
                    f"export {export.name}: expected {OWNER} in a folder that guests may write, got {export.folder}: "
                    f"add {OWNER}, or read_only: true",
                    ("exports",),
                )
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [export.name for export in self.exports]
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"expected each export to have its own name, got {name} twice", ("exports",))
        return self


class NfsServer(Document):
    """The file server of one network on a gateway. The server runs with the rights of the owner's account."""

    owner: UserName
    """The owner of the cluster that created the network."""
    exports: tuple[NfsExport, ...]
    """The exports. In their folders, the owner's name has replaced `{owner}`."""


class FileMount(Document):
    """A folder that the guests and the users' devices of a network can mount."""

    name: Name
    """The name of the export."""
    gateway: Name
    """The gateway that serves the folder."""
    address: IPvAnyAddress
    """The address of the server in the network."""
    read_only: Annotated[bool, OMIT_EMPTY] = False
    """Whether the folder can only be read."""

    @property
    def command(self) -> str:
        """The command that mounts the folder. Run the command as root.

        The command works in a virtual machine, and on a computer with a VPN profile.
        """
        server = f"[{self.address}]" if ":" in str(self.address) else str(self.address)
        return f"mount -t nfs4 -o vers=4.2 {server}:/{self.name} /mnt"


def make_nfs_server(listener: NfsListener, owner: UserName) -> NfsServer:
    """Return the file server of a network of ``owner``. Every user name is also a valid folder name."""
    exports = tuple(
        export.model_copy(update={"folder": ExportFolder(export.folder.replace(OWNER, owner))})
        for export in listener.exports
    )
    return NfsServer(owner=owner, exports=exports)
