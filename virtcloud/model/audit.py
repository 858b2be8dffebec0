"""The audit log's rows as documents."""

from datetime import datetime

from virtcloud.model.device import DeviceDifference
from virtcloud.model.document import Document
from virtcloud.model.preview import HostDifference
from virtcloud.model.values import ClusterKey, Name


class AuditEntry(Document):
    """One change: who made it, what, when, why, on which element, for which cluster, with the difference applied.

    ``id`` grows from row to row. ``who`` is a cluster's owner, an administrator, an element, or a part of the service.
    """

    id: int
    """Number of the row; later rows have higher numbers."""
    at: datetime
    """When the change was made."""
    who: str
    """Who made the change: a user, an element or a part of the service."""
    what: str
    """The kind of change, such as `cluster_active`."""
    why: str | None = None
    """The reason, where one was recorded."""
    element: Name | None = None
    """The element that was changed."""
    cluster: ClusterKey | None = None
    """The key of the cluster that the change concerns."""
    cluster_id: str | None = None
    """The id of the cluster that the change concerns."""
    difference: DeviceDifference | HostDifference | None = None
    """What was changed on the element."""
