"""A world with hosts that carry segments, and a store that runs another caller's action before a change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from sbf_service.store.elements.elements import read_wanted_revision
from sbf_service.store.store import Store
from sbf_service.store.unit_of_work import Unit
from support.sbf_fakes.world import World
from virtcloud.model.wanted import HostWanted, Segment


@dataclass(frozen=True)
class BusyStore(Store):
    """A store for tests of concurrent callers. Before each change, it calls and removes the last of ``actions``."""

    actions: list[Callable[[], None]] = field(default_factory=list)

    @contextmanager
    def change(self, *, who: str = "sbf") -> Iterator[Unit]:
        if self.actions:
            self.actions.pop()()
        with super().change(who=who) as unit:
            yield unit


def make_busy_store(store: Store, *actions: Callable[[], None]) -> BusyStore:
    busy = BusyStore(*(getattr(store, one.name) for one in fields(Store)))
    busy.actions.extend(actions)
    return busy


@dataclass
class WorldWithHosts(World):
    """A world whose hosts carry the segments that their agents read, before the agents confirm a revision."""

    segments: dict[str, tuple[Segment, ...]] = field(default_factory=dict)

    def confirm(self, name: str, revision: int) -> None:
        self.reconcile_host(name)
        super().confirm(name, revision)

    def reconcile_host(self, host: str) -> int:
        with self.store.read() as unit:
            target = read_wanted_revision(unit, host)
        assert isinstance(target.wanted, HostWanted)
        self.segments[host] = target.wanted.segments
        return target.revision
