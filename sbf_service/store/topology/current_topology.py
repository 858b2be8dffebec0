"""Reads the current topology. The store caches the two newest versions."""

from sbf_service.store.topology.topology_documents import read_documents, read_stored_version, read_version_of_topology
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Unit
from virtcloud.model.topology import Topology


def read_topology_version(unit: Unit) -> int | None:
    """Return the version of the current topology, or None before the first topology."""
    return read_version_of_topology(unit.connection)


def read_topology(unit: Unit) -> Topology:
    """Return the current topology. Raise NotFound before the first topology.

    A topology that this unit has stored is cached only after the commit, because another topology could get the same
    version after a rollback.
    """
    version = read_cached_version(unit)
    if unit.new_topology is not None and version == unit.topology_version:
        return unit.new_topology
    unit.topology_version = version
    found = unit.cache.topologies.get(version)
    return found or _read_new_version(unit, version)


def _read_new_version(unit: Unit, version: int) -> Topology:
    with unit.cache.parsing:
        if version not in unit.cache.topologies:
            unit.cache.wait_for_commit()
        found = unit.cache.topologies.get(version)
        if found is None:
            found = read_documents(unit.connection, *unit.cache.find_former(version))
            if TOPOLOGY_TOPIC not in unit.changed:
                unit.cache.add(version, found)
        return found


def read_cached_version(unit: Unit) -> int:
    """Return the version of the topology, also before the first topology.

    Only the first call queries the database, and each call after the unit has stored a topology.
    """
    if TOPOLOGY_TOPIC in unit.changed or unit.values.topology_version is None:
        unit.values.topology_version = read_stored_version(unit.connection)
    return unit.values.topology_version
