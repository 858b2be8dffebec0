"""The settings of retention: how long SBF stores audit rows and ended clusters. Pure."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from virtcloud.model.document import Document

MIN_DAYS = 7
"""The minimum days for which SBF stores audit rows, and the rows of a cluster after the beginning of its removal.

While the rows of a cluster exist, SBF recognizes and refuses late calls of earlier attempts with the cluster's key.
"""
Days = Annotated[int, Field(ge=MIN_DAYS, le=36500)]
Rows = Annotated[int, Field(ge=1000, lt=2**53)]


class RetentionLimits(Document):
    """The table ``[retention]`` of the settings.

    SBF writes rows beyond these limits to files of JSON lines, and then deletes these rows from the database.
    """

    folder: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Folder of the archive files, which have mode 0600. Default: the folder `archive` beside the file "
        "of an SQLite database; for PostgreSQL, `/var/lib/virtcloud/archive`. SBF's systemd unit must permit a folder "
        "outside `/var/lib/virtcloud` (`ReadWritePaths=`).",
    )
    audit_days: Days = Field(3650, description="Days for which SBF keeps the rows of the audit log.")
    audit_rows: Rows = Field(20_000_000, description="Largest number of rows of the audit log; the newest are kept.")
    cluster_days: Days = Field(
        1825,
        description="Days for which SBF keeps a cluster, its placements and its VPN profiles after the beginning of "
        "the cluster's removal.",
    )
    clusters: Rows = Field(2_000_000, description="Largest number of ended clusters; the newest are kept.")

    @property
    def audit_age(self) -> timedelta:
        """The age after which SBF deletes audit rows."""
        return timedelta(days=self.audit_days)

    @property
    def cluster_age(self) -> timedelta:
        """The time from the beginning of a cluster's removal to the deletion of its rows."""
        return timedelta(days=self.cluster_days)
