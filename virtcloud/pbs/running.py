"""Which jobs run with a cluster, by ``qselect``: users' variables can spoil what ``qstat`` says in JSON."""

from virtcloud.model.errors import SchedulerSilent
from virtcloud.pbs.place import Place
from virtcloud.scheduler.command import runner

PATIENCE_S = 60.0
SELECT = ("-s", "RESU", "-l", "vcluster.ge.a")
"""Running, ending, suspended; requests begin with a letter, and a resource that is not set is below all."""


def running(place: Place) -> list[str]:
    """Give their ids. Raises :class:`NotFound` and :class:`SchedulerSilent`: no answer is not "none"."""
    ended = runner(None, PATIENCE_S)((str(place.program("qselect")), *SELECT))
    if ended.code or ended.err.strip():
        raise SchedulerSilent(f"{ended.complaint}: it cannot be told which jobs run with a cluster; see to the server")
    return ended.out.split()
