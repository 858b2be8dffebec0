"""The topology: sites, elements, links and transports, as administrators describe them, without faults."""

from typing import Self

from pydantic import model_validator

from virtcloud.model.topology_document import TopologyDocument
from virtcloud.model.topology_faults import find_topology_faults


class Topology(TopologyDocument):
    """All sites, elements, links and transports that SBF may configure. Raise BadInput with the first fault, if any."""

    @model_validator(mode="after")
    def _check_faults(self) -> Self:
        for fault in find_topology_faults(self):
            raise fault
        return self
