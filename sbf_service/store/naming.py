"""What a cluster is called: by its key, or by the name that it has until it ends."""

import re

from sqlalchemy import bindparam, select

from sbf_service.store.keys import latest
from sbf_service.store.session import Unit
from sbf_service.store.tables import ClusterRow
from virtcloud.model.cluster import ENDED
from virtcloud.model.errors import NameTaken
from virtcloud.model.values import Name

_IS_NAME = re.compile(Name.pattern).fullmatch
_NAMED = select(ClusterRow.key).where(ClusterRow.name == bindparam("name"))


def called(unit: Unit, word: str) -> ClusterRow | None:
    """Find the cluster that has not ended and is called so: by its name, or by its key."""
    row = latest(unit, _named(unit, word) or word)
    return None if row is None or row.state in ENDED else row


def refuse_taken(unit: Unit, key: str, name: Name | None) -> None:
    """Raise NameTaken when one word would stand for two clusters that have not ended."""
    if (other := _named(unit, key)) is not None:
        raise NameTaken(f"the key {key} is the name of cluster {other}: choose another key")
    if name is not None and (taken := called(unit, name)) is not None:
        raise NameTaken(f"the name {name} is taken by cluster {taken.key}, which is {taken.state}: choose another name")


def _named(unit: Unit, word: str) -> str | None:
    """Give the key of the cluster that has this name: it has not ended, and is the newest under its key."""
    if not _IS_NAME(word):  # a batch job's key has a dot
        return None
    return unit.connection.execute(_NAMED, {"name": word}).scalar()
