"""A real OpenPBS in a running lab: a server on the station, a MoM on each host, and users who submit jobs."""

from virtcloud.lab.pbs.openpbs import LabPbs, as_user

__all__ = ["LabPbs", "as_user"]
