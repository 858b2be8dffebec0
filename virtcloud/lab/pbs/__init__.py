"""A real OpenPBS in a running lab, for users who submit jobs.

The PBS server runs on the station, the node on which SBF runs. A MoM, PBS's daemon, runs on each host.
"""

from virtcloud.lab.pbs.openpbs import LabPbs, as_user

__all__ = ["LabPbs", "as_user"]
