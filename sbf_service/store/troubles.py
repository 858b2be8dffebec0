"""What an element says is wrong, as the owner of a cluster on it is told.

An element's whole text names every cluster that fails there, by its key, and is for administrators.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

NOTHING: Mapping[str, str] = MappingProxyType({})
OF_OTHERS = "it has trouble with another cluster"


def written(clusters: Mapping[str, str], most: int) -> str | None:
    """Write what is about single clusters, by id, each in so many characters; None: it is about the element."""
    return json.dumps({one: text[:most] for one, text in sorted(clusters.items())}) if clusters else None


def told(trouble: str | None, troubles: str | None, *ids: str | None) -> str | None:
    """Give what is about a cluster, whose own id comes first, then that of its network."""
    if trouble is None or troubles is None:
        return trouble
    found = _read(troubles)
    return next((found[one] for one in ids if one in found), OF_OTHERS)


@lru_cache(maxsize=1024)
def _read(troubles: str) -> Mapping[str | None, str]:
    return MappingProxyType(dict(json.loads(troubles)))
