"""Reading the topology that is in force."""

from sqlalchemy import select

from sbf_service.store.session import Unit
from sbf_service.store.tables import TopologyRow
from virtcloud.model.errors import NotFound
from virtcloud.model.topology import Topology

TOPOLOGY = "topology"
"""Who waits for another topology waits for this."""

_VERSION = select(TopologyRow.version)
_DOCUMENT = select(TopologyRow.document)
_IS_THERE = select(TopologyRow.version, TopologyRow.document.is_not(None))


def topology_version(unit: Unit) -> int | None:
    """Return the version of the topology in force; None before the first one was put."""
    version, is_there = unit.connection.execute(_IS_THERE).one()
    return version if is_there else None


def read_topology(unit: Unit) -> Topology:
    """Read the topology; raises NotFound before the first one was put.

    Every unit reads it, so that the newest one is kept, by its version. One that this unit put is not: it may yet be
    rolled back, and another one get its version.
    """
    version = unit.connection.execute(_VERSION).scalar_one()
    found = unit.topologies.get(version)
    if found is None:
        found = _parsed(unit)
        if TOPOLOGY not in unit.changed:
            unit.topologies.clear()
            unit.topologies[version] = found
    return found


def _parsed(unit: Unit) -> Topology:
    """Parse what was checked when it was put."""
    document = unit.session.execute(_DOCUMENT).scalar_one()
    if document is None:
        raise NotFound("there is no topology yet: put one with PUT /v1/topology")
    return Topology.model_validate_json(document)
