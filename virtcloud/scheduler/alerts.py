"""PURE. What administrators are told, by name; docs/how-to/when-something-fails.md says of each what to do."""

from dataclasses import dataclass
from enum import StrEnum


class AlertName(StrEnum):
    """The names that logs, the status file and the documentation have for what is wrong."""

    SCHEDULER_SILENT = "scheduler-silent"
    SBF_SILENT = "sbf-silent"
    JOB_WITHOUT_CLUSTER = "job-without-cluster"
    JOB_NOT_BEGUN = "job-not-begun"
    JOB_UNREADABLE = "job-unreadable"
    CLUSTER_NOT_ENDED = "cluster-not-ended"
    LEASE_NOT_EXTENDED = "lease-not-extended"
    HOST_UNKNOWN = "host-unknown"
    NODES_UNREAD = "nodes-unread"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something is wrong with ``about`` (a job, a cluster, a host, a service), in one line."""

    name: AlertName
    about: str
    text: str
