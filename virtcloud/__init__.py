"""virtcloud: private layer-2 networks, with virtual machines on them, across several sites.

This package is what every machine imports: the model, the client, the agent, the command line and the lab.
The service that owns all clusters is the package ``sbf_service``.
"""

from importlib import import_module

__version__ = "0.2.0"
__all__ = ["Client", "Cluster", "ClusterSpec", "Guest", "VirtcloudError", "__version__"]

_HOMES = {
    "Client": "virtcloud.client.api",
    "Cluster": "virtcloud.client.api",
    "ClusterSpec": "virtcloud.model.cluster",
    "Guest": "virtcloud.model.cluster",
    "VirtcloudError": "virtcloud.model.errors",
}


def __getattr__(name: str) -> object:
    """Import the Python API when it is first used, so that ``import virtcloud`` costs nothing (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the Python API with the module's own names."""
    return sorted({*globals(), *__all__})
