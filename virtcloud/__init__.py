"""virtcloud: private layer-2 networks across several sites, with virtual machines on them.

This package is installed on every host and gateway, and on users' computers. The service that manages all clusters is
the package ``sbf_service``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virtcloud.client.api import Client
    from virtcloud.client.asynchronous import AsyncClient
    from virtcloud.client.cluster import Cluster
    from virtcloud.client.ssh_arguments import SshOptions
    from virtcloud.model.cluster import ClusterSpec
    from virtcloud.model.errors import VirtcloudError
    from virtcloud.model.guest_spec import Guest

__version__ = "0.3.0"
__all__ = ["AsyncClient", "Client", "Cluster", "ClusterSpec", "Guest", "SshOptions", "VirtcloudError", "__version__"]

_MODULES = {
    "AsyncClient": "virtcloud.client.asynchronous",
    "Client": "virtcloud.client.api",
    "Cluster": "virtcloud.client.api",
    "ClusterSpec": "virtcloud.model.cluster",
    "Guest": "virtcloud.model.guest_spec",
    "SshOptions": "virtcloud.client.ssh_arguments",
    "VirtcloudError": "virtcloud.model.errors",
}


def __getattr__(name: str) -> object:
    """Import an object of the Python API when the object is used, so that ``import virtcloud`` is fast (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the names of the Python API and of the module."""
    return sorted({*globals(), *__all__})
