"""Emulated provider edges by platform."""

from contextlib import AbstractContextManager

from emulators.edge import Edge
from emulators.edge_eos import EdgeEos
from emulators.edge_iosxe import EdgeIosXe
from emulators.edge_iosxr import EdgeIosXr
from emulators.edge_junos import EdgeJunos
from emulators.edge_nxos import EdgeNxos
from emulators.server import listening

EDGES: dict[str, type[Edge]] = {kind.platform: kind for kind in (EdgeIosXe, EdgeIosXr, EdgeJunos, EdgeEos, EdgeNxos)}


def emulate_edge(platform: str, **options: object) -> AbstractContextManager[Edge]:
    """Run a provider edge for as long as the context lasts; options are those of its class."""
    return listening(EDGES[platform](**options))
