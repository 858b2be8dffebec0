"""``prologue`` on a job's first host, ``prologue.parallel`` on all others, before that."""

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from virtcloud.jobs.cluster import MARGIN_S, SETUP_S, Network, Run, cluster_of
from virtcloud.jobs.pbs import check_walltime
from virtcloud.jobs.request import Request, parse
from virtcloud.jobs.sizes import seconds_of
from virtcloud.jobs.torque import admit, check_no_array, hosts_of
from virtcloud.torque.scripts.barrier import announce, await_clear, is_deleted, wait_until_up
from virtcloud.torque.scripts.call import ABORT, DELETED, REQUEUE, Call, Ended
from virtcloud.torque.scripts.ending import leave
from virtcloud.torque.scripts.environment import ensure_environment
from virtcloud.torque.scripts.patience import SISTERS_S, Patience
from virtcloud.torque.scripts.sbf import Sbf
from virtcloud.torque.scripts.settings import Settings

PRIVATE = "private"


def prologue(call: Call, settings: Settings) -> None:
    """Ask for the job's cluster and wait until it is up; raises Ended, RequestError. Whatever ends it undoes it."""
    wish = _admitted(call, settings)
    patience = Patience(settings.patience)
    sbf = Sbf(settings.where, call.key, patience)
    run = Run(call.key, call.user, _elements(call, settings), seconds_of(call.wanted["walltime"]))
    with _undoing(call, settings):
        announce(settings.socket, call, patience)
        with _heeding(call, settings, patience):
            sbf.put(lambda: spec_of(run, wish, call.network, sbf), sbf.next_attempt())
            facts = wait_until_up(settings.socket, call, patience)
            ensure_environment(settings.environments, call, facts)


def prologue_parallel(call: Call, settings: Settings) -> None:
    """See that this host can take part, before the first host asks for anything; raises Ended."""
    await_clear(settings.socket, call, Patience(min(SISTERS_S, settings.patience)))


@contextmanager
def _undoing(call: Call, settings: Settings) -> Iterator[None]:
    """Undo what was asked for when it comes to nothing."""
    try:
        yield
    except BaseException:
        with suppress(Ended):  # what is said is why it came to this; the lease is the last resort
            leave(call, settings)
        raise


@contextmanager
def _heeding(call: Call, settings: Settings, patience: Patience) -> Iterator[None]:
    """Notice that the job was deleted: were it put back into its queue then, it would run again."""
    patience.in_vain = lambda: is_deleted(settings.socket, call)
    try:
        yield
    except Ended as error:
        if error.code == REQUEUE and is_deleted(settings.socket, call):
            raise Ended(ABORT, DELETED) from error
        raise


def spec_of(run: Run, wish: Optional[Request], network: Optional[str], sbf: Sbf) -> Dict[str, Any]:
    """Give the spec of the job's cluster; one without guests of ours only brings the network to its hosts."""
    name = wish.net if wish else None if network == PRIVATE else network
    joined = None if name is None else sbf.network(name)
    if wish is not None:
        return cluster_of(wish, run, joined)
    return _of_hosts(run, joined)


def _of_hosts(run: Run, joined: Optional[Network]) -> Dict[str, Any]:
    lease = run.walltime_s + SETUP_S + MARGIN_S
    spec = {"owner": run.owner, "hosts": sorted(run.hosts), "guests": [], "lease_s": lease}  # type: Dict[str, Any]
    return spec if joined is None else dict(spec, joins=joined.key)


def _admitted(call: Call, settings: Settings) -> Optional[Request]:
    """Give the request of a job that may have a cluster; raises RequestError."""
    if call.request is None:
        check_no_array("[" in call.job)
        check_walltime(call.wanted.get("walltime"), settings.longest_walltime)
        return None
    wish = parse(call.request)
    admit(wish, call.wanted, settings.longest_walltime, "[" in call.job)
    return wish


def _elements(call: Call, settings: Settings) -> Tuple[str, ...]:
    """Give SBF's names of the job's hosts, this one's first."""
    file = call.environment.get("PBS_NODEFILE")
    try:
        hosts = (
            hosts_of(Path(file).read_text()) if file else (call.environment.get("PBS_MSHOST") or os.uname().nodename,)
        )
    except OSError as error:
        text = "PBS_NODEFILE %s cannot be read: %s; the job will be tried again" % (file, error.strerror)
        raise Ended(REQUEUE, text) from error
    return tuple(settings.element(host) for host in hosts)
