"""The client of SBF: connection, credentials, HTTP client, and the Python API."""

from importlib import import_module

_HOMES = {"Client": "virtcloud.client.api", "Cluster": "virtcloud.client.api", "SbfClient": "virtcloud.client.sbf"}
__all__ = ["Client", "Cluster", "SbfClient"]


def __getattr__(name: str) -> object:
    """Import a name when it is first used (PEP 562): commands that ask nothing of SBF start without its client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
