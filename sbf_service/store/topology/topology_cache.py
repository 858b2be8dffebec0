"""The parsed topologies of a store, and what the store knows about each version."""

from dataclasses import dataclass, field
from operator import itemgetter
from threading import Lock

from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

BEFORE_ALL_VERSIONS = -1
KEPT_VERSIONS = 2
MAX_COMMIT_WAIT_S = 5.0
"""The maximum time in seconds that a thread waits for the commit of a new topology."""


@dataclass(frozen=True, slots=True)
class TopologyCache:
    """The two newest topologies of a store, by version, and the reserved VLAN IDs of sites.

    ``checked`` contains the versions without unchecked elements. Only a restore, which changes the topology's version,
    makes elements unchecked.

    Units of work that began before the last change of the topology use the older topology. If a part is equal in both
    topologies, both contain the same Python object for this part.
    A thread holds ``parsing`` while it parses documents, and ``committing`` while it commits a new topology. A thread
    that needs a new topology waits for both: for the commit at most ``MAX_COMMIT_WAIT_S``, because a commit whose
    answer is lost ends only when the connection to the database fails. A thread that commits waits for no other thread,
    because it holds the locks of the database.
    """

    topologies: dict[int, Topology] = field(default_factory=dict)
    excluded: dict[tuple[int | None, Name], VlanSet] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)
    parsing: Lock = field(default_factory=Lock)
    committing: Lock = field(default_factory=Lock)

    def add(self, version: int, topology: Topology) -> None:
        """Cache this version, and remove all versions except the two newest."""
        self.topologies[version] = topology
        for outdated in sorted(self.topologies)[:-KEPT_VERSIONS]:
            self.topologies.pop(outdated, None)
        for key in [key for key in list(self.excluded) if key[0] not in self.topologies]:
            self.excluded.pop(key, None)
        self.checked.intersection_update(self.topologies)

    def wait_for_commit(self) -> None:
        """Wait until no thread commits a new topology, but at most ``MAX_COMMIT_WAIT_S``."""
        if self.committing.acquire(timeout=MAX_COMMIT_WAIT_S):
            self.committing.release()

    def copy(self) -> "TopologyCache":
        """Return a copy for a unit that will be rolled back, whose topology must not get into this cache."""
        return TopologyCache(dict(self.topologies), dict(self.excluded), set(self.checked))

    @property
    def newest(self) -> Topology | None:
        """The newest cached topology, or None."""
        return max(list(self.topologies.items()), key=itemgetter(0), default=(BEFORE_ALL_VERSIONS, None))[1]

    def find_former(self, version: int) -> tuple[int, Topology | None]:
        """Return the newest cached version up to ``version``, and its topology.

        Without such a version, return a number below all versions, and None.
        """
        known = [(number, found) for number, found in list(self.topologies.items()) if number <= version]
        return max(known, key=itemgetter(0), default=(BEFORE_ALL_VERSIONS, None))
