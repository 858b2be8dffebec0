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
    at: datetime
    who: str
    what: str
    why: str | None = None
    element: Name | None = None
    cluster: ClusterKey | None = None
    cluster_id: str | None = None
    difference: DeviceDifference | HostDifference | None = None
