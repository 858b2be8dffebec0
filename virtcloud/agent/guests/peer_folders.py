"""The folder of a container's peer files, mounted read-only in the container as ``/etc/virtcloud``.

Peer files describe the network's guests to the container (`peer_files`). When another cluster joins or leaves the
network, the agent replaces the files while the container runs.
"""

from pathlib import Path

from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.agent.guests.peer_files import FILE_NAMES, PeerFiles

PEERS = "peers"
"""The folder's name in the guest's folder on the host."""
FOLDER_MODE, FILE_MODE = 0o755, 0o644


def read_peer_files(guest_folder: Path) -> PeerFiles | None:
    """Return a guest's peer files by name. Return None if the guest has no folder of peer files.

    Raise Refused if reading fails.
    """
    folder = guest_folder / PEERS
    with refuse_os_errors(f"read the guest's folder {folder}"):
        if not folder.is_dir():
            return None
        present = (folder / name for name in FILE_NAMES if (folder / name).is_file())
        return {path.name: path.read_text(errors="replace") for path in present}


def write_peer_files(guest_folder: Path, files: PeerFiles) -> None:
    """Replace each of a guest's peer files atomically. Raise Refused if a file cannot be written."""
    folder = guest_folder / PEERS
    with refuse_os_errors(f"write the guest's folder {folder}"):
        folder.mkdir(exist_ok=True)
        folder.chmod(FOLDER_MODE)
        for name, text in files.items():
            write_durably(folder / name, text.encode(), FILE_MODE)
