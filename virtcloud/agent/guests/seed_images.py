"""The seed of a virtual machine: an ISO 9660 image with NoCloud data, as a read-only disk of the guest.

cloud-init finds the disk by the volume label ``cidata``.
"""

import os
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType

from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.guests.seeds import NoCloudData
from virtcloud.model.errors import Refused

SEED = "seed.iso"
VOLUME_LABEL = "cidata"
MODE = 0o600
"""Only the file's owner may read the seed, which contains private keys.

The owner is root, or QEMU's user while the guest runs: libvirt changes the owner.
"""


def write_seed_image(guest_folder: Path, data: NoCloudData) -> None:
    """Replace a guest's seed. Raise Refused if the file cannot be written, or pycdlib is not installed."""
    new = guest_folder / f".{SEED}.new"
    with refuse_os_errors(f"write the seed of a guest in {guest_folder}"):
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "wb") as file:
            file.write(render_iso(data))
        new.rename(guest_folder / SEED)


def render_iso(data: NoCloudData) -> bytes:
    """Return an ISO 9660 image with the files in ``data``. Joliet and Rock Ridge store the files' full names.

    Raise Refused if pycdlib is not installed.
    """
    iso, image = _import_pycdlib().PyCdlib(), BytesIO()
    iso.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=VOLUME_LABEL)
    for number, (name, text) in enumerate(sorted(data.items())):
        content = text.encode()
        iso.add_fp(BytesIO(content), len(content), f"/FILE{number}.;1", rr_name=name, joliet_path=f"/{name}")
    iso.write_fp(image)
    iso.close()
    return image.getvalue()


def _import_pycdlib() -> ModuleType:
    """Import pycdlib at its first use, because it needs 6 MB of memory."""
    try:
        return import_module("pycdlib")
    except ImportError as error:
        raise Refused(
            "the seeds of QEMU guests need the Python package pycdlib: pip install 'virtcloud[agent]'"
        ) from error
