"""The lab: an installation with several sites on one machine, for trials, demonstrations and tests.

A lab consists of nodes: switches, provider edges, hosts, gateways, transport cores, the user's laptop, and the
*station*, on which SBF runs.

A module is imported at the first use of one of its names: a lab can run in User-mode Linux, where imports are slow.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virtcloud.lab.errors import LabError, LabFailed, LabImpossible, LabIsDown, LabIsUp, UnknownInLab
    from virtcloud.lab.fabric.events import LabEvent
    from virtcloud.lab.lab import Lab, ServiceHandle, take_down
    from virtcloud.lab.lab_file import LabFile, read_lab_file
    from virtcloud.lab.launch_files import LabOptions

_HOMES = {
    "LabEvent": "fabric.events",
    "Lab": "lab",
    "LabError": "errors",
    "LabFailed": "errors",
    "LabFile": "lab_file",
    "LabImpossible": "errors",
    "LabIsDown": "errors",
    "LabIsUp": "errors",
    "ServiceHandle": "lab",
    "UnknownInLab": "errors",
    "LabOptions": "launch_files",
    "read_lab_file": "lab_file",
    "take_down": "lab",
}

__all__ = [
    "Lab",
    "LabError",
    "LabEvent",
    "LabFailed",
    "LabFile",
    "LabImpossible",
    "LabIsDown",
    "LabIsUp",
    "LabOptions",
    "ServiceHandle",
    "UnknownInLab",
    "read_lab_file",
    "take_down",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute may be anything
    """Import a name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see the module's docstring

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
