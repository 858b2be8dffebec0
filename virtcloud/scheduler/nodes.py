"""PURE. Which of a scheduler's hosts are none to SBF; a host without a link to a switch is in no topology."""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from virtcloud.model.element import ElementKind, kind_of
from virtcloud.model.topology import Topology
from virtcloud.scheduler.alerts import Alert, AlertName

TO_DO = "add it to the topology, name it in [scheduler.hosts], or say in 'apart' that it takes no part"


def unfit(nodes: Collection[str], topology: Topology, names: Mapping[str, str], apart: Collection[str]) -> list[Alert]:
    """Name the nodes that SBF cannot give a cluster to; ``names`` and ``apart`` are the settings."""
    asked = sorted(one for one in nodes if not any(fnmatchcase(one, pattern) for pattern in apart))
    return [alert for node in asked for alert in _faults(node, element_of(node, names), topology)]


def element_of(node: str, names: Mapping[str, str]) -> str:
    """Give SBF's name of a node: as the settings say, else the name up to the first dot, lower case."""
    return names.get(node) or node.partition(".")[0].lower()


def _faults(node: str, element: str, topology: Topology) -> Iterator[Alert]:
    found = next((one for name, one in topology.elements.items() if name == element), None)
    if found is None or kind_of(found) is not ElementKind.HOST:
        what = "nothing of that name" if found is None else f"a {kind_of(found)} of that name"
        text = f"host {node} is {element} to SBF, which knows {what}: {TO_DO}"
        yield Alert(AlertName.HOST_UNKNOWN, node, text)
