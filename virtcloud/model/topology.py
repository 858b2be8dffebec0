"""The checked topology: an administrator's document of sites, elements, links and transports, without faults."""

from functools import cached_property
from typing import Self

from pydantic import model_validator

from virtcloud.model.errors import BadInput
from virtcloud.model.topology_document import TopologyDocument
from virtcloud.model.topology_faults import find_topology_faults


class Topology(TopologyDocument):
    """All sites, elements, links and transports that SBF may configure. Raise BadInput with the first fault, if any."""

    @cached_property
    def first_fault(self) -> BadInput | None:
        """The first fault of the topology, or None. The value is cached, because FastAPI validates a topology twice."""
        return next(find_topology_faults(self), None)

    @model_validator(mode="after")
    def _check_faults(self) -> Self:
        if self.first_fault is not None:
            raise self.first_fault
        return self
