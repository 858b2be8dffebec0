"""The client of SBF for Python: clusters as objects (``Client``, ``Cluster``), and all HTTP calls (``SbfClient``).

A name is imported at its first use. The import of httpx omits httpx's command line, which saves 5 MB of memory.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virtcloud.client.agent_client import DEFAULT_URL
    from virtcloud.client.api import Client
    from virtcloud.client.calls import ANY_VERSION
    from virtcloud.client.cluster import Cluster
    from virtcloud.client.sbf import SbfClient

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # "The module cache" in Python's reference

__all__ = ["ANY_VERSION", "DEFAULT_URL", "Client", "Cluster", "SbfClient"]

_MODULES = {
    "ANY_VERSION": "calls",
    "Client": "api",
    "Cluster": "cluster",
    "DEFAULT_URL": "agent_client",
    "SbfClient": "sbf",
}


def __getattr__(name: str) -> object:
    """Import a name of this package at its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
