"""A batch job's place on its cluster: what is opened when the cluster is up, and closed when it goes."""

from typing import Annotated, Protocol

from pydantic import Field

from virtcloud.model.cluster import Guest
from virtcloud.model.document import Document
from virtcloud.model.values import ClusterKey, Name, VlanId

Facts = dict[str, str]
"""The environment of the job's script, by the names of :data:`FACTS`."""
FACTS = {
    "VCLUSTER_ID": "the cluster's key",
    "VCLUSTER_NAME": "its name, if it has one",
    "VCLUSTER_VLAN": "its VLAN number at this host's site",
    "VCLUSTER_GUESTS": "the names of its guests, with spaces between them",
    "VCLUSTER_HOSTS": "a file in the manner of `/etc/hosts`: the guests' addresses and names",
    "VCLUSTER_HOSTFILE": "a file for `mpirun --hostfile`: each guest with its processors as slots",
    "VCLUSTER_SSH_CONFIG": "a file for `ssh -F`: the way to the guests by their names",
}


class Opening(Document):
    """What a job's place is made of. It is kept on disk with the job, so that a restarted agent opens it again.

    ``vlan`` is the number at this host's site (:func:`virtcloud.agent.names.bridge` names the bridge), ``user`` whose
    job it is on this machine.
    """

    key: ClusterKey
    user: Annotated[str, Field(min_length=1, max_length=64)]
    vlan: VlanId
    name: Name | None = None
    guests: tuple[Guest, ...] = ()


class JobPort(Protocol):
    """Opens and closes the places of jobs. Both may be repeated, also by an agent that was killed in between."""

    def open(self, opening: Opening) -> Facts:
        """Make the place and give its facts; raises Refused with what the user or the administrator can do."""

    def close(self, key: str) -> None:
        """Remove all of it; nothing there is success. Raises Refused when something cannot be removed."""
