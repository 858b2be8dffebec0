"""What a batch system's server says of a job, for a host that wants to begin it."""

from typing import Annotated

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import ElementWords


class JobWord(Document):
    """A job as its server knows it: whose it is, on which hosts it begins, and which network it asked to join.

    ``runs`` is false for a job that the server does not run, or that asked for no cluster; ``words`` say which.
    """

    runs: bool
    """Whether the server runs the job, and the job asked for a cluster."""
    owner: UserName | None = Field(None, description="The user under whose account the job runs.")
    hosts: tuple[Name, ...] = Field((), description="The job's hosts, by their names in SBF.")
    network: ClusterKey | None = Field(None, description="The network that the job asked to join.")
    words: Annotated[ElementWords, Field(max_length=1000)] = Field("", description="The job's state, for people.")
