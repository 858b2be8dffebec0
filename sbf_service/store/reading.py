"""Reading the topology that is in force."""

from functools import lru_cache

from sqlalchemy import select

from sbf_service.store.session import Unit
from sbf_service.store.tables import TopologyRow
from virtcloud.model.errors import NotFound
from virtcloud.model.topology import Topology


def read_topology(unit: Unit) -> Topology:
    """Read the topology; raises NotFound before the first one was put."""
    document = unit.session.scalars(select(TopologyRow.document)).first()
    if document is None:
        raise NotFound("there is no topology yet: put one with PUT /v1/topology")
    return parsed(document)


@lru_cache(maxsize=4)
def parsed(document: str) -> Topology:
    """Parse a topology that was checked when it was put; the newest ones are kept, since every unit reads it."""
    return Topology.model_validate_json(document)
