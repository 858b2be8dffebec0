"""``prologue`` on a job's first host, ``prologue.parallel`` on all others, before that.

``epilogue``, ``epilogue.parallel`` and ``epilogue.precancel``: nothing of a job stays where it was.

What a job reads of its cluster: Torque gives a prologue no way to a job's environment, so it is a file to source.

``. /run/virtcloud/torque/$PBS_JOBID`` in the job's script. The folder is root's, and the file the user's alone.
"""

import os
import pwd
import shlex
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from pbs_hooks.kit.agent_client import AgentRefused, AgentUnreachable, ask_agent
from pbs_hooks.kit.sbf_client import SbfUnreachable
from pbs_hooks.torque.scripts.agent_requests import (
    LIST_TIMEOUT_S,
    announce_job,
    build_agent_request,
    is_deleted,
    wait_until_clear,
    wait_until_up,
)
from pbs_hooks.torque.scripts.sbf_requests import JobSbfClient
from pbs_hooks.torque.scripts.script_call import (
    DELETED_MESSAGE,
    EXIT_ABORT,
    EXIT_REQUEUE,
    SCHEDULER_VARIABLE,
    SISTER_WAIT_S,
    RetryBudget,
    ScriptCall,
    ScriptExit,
)
from pbs_hooks.torque.scripts.script_settings import ScriptSettings
from virtcloud.jobs.job_cluster_spec import MARGIN_S, SETUP_S, JobNetwork, JobRun, build_cluster_spec
from virtcloud.jobs.openpbs_request import check_walltime
from virtcloud.jobs.request import JobRequest, parse_request
from virtcloud.jobs.sizes import parse_seconds
from virtcloud.jobs.torque_request import admit_torque_job, check_no_array, parse_nodefile

FOLDER_MODE, FILE_MODE = 0o711, 0o400


def ensure_environment(folder: str, call: ScriptCall, facts: Dict[str, str]) -> None:
    """Write the facts, and the network's number under its old name, too; raises OSError, and KeyError for no user."""
    place = _environment_path(folder, call)
    if not place.parent.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.parent.chmod(FOLDER_MODE)
    new = place.with_name(".new-" + place.name)
    if new.exists():
        new.unlink()
    account = pwd.getpwnam(call.user)
    told = dict(facts, **{SCHEDULER_VARIABLE: facts["VCLUSTER_VLAN"]}) if "VCLUSTER_VLAN" in facts else facts
    with os.fdopen(os.open(str(new), os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w") as file:
        file.writelines("export %s=%s\n" % (name, shlex.quote(value)) for name, value in sorted(told.items()))
        os.fchown(file.fileno(), account.pw_uid, account.pw_gid)
    new.rename(place)


def ensure_no_environment(folder: str, call: ScriptCall) -> None:
    """Remove it; nothing there is success."""
    try:
        _environment_path(folder, call).unlink()
    except FileNotFoundError:
        return


def _environment_path(folder: str, call: ScriptCall) -> Path:
    return Path(folder) / call.job


REMOVE_WAIT_S = 30.0


def run_epilogue(call: ScriptCall, settings: ScriptSettings) -> None:
    """Let the cluster go and wait until this host is rid of it; raises Ended when nobody could be told."""
    try:
        _wait_for_removal(call, settings, settings.patience)
    except (AgentUnreachable, AgentRefused) as error:
        end_through_sbf(call, settings, str(error))
    finally:
        ensure_no_environment(settings.environments, call)


def run_epilogue_parallel(call: ScriptCall, settings: ScriptSettings) -> None:
    """Wait until this host is rid of the cluster; raises Ended when its agent cannot be told."""
    try:
        _wait_for_removal(call, settings, min(SISTER_WAIT_S, settings.patience))
    except (AgentUnreachable, AgentRefused) as error:
        raise ScriptExit(EXIT_REQUEUE, str(error)) from error


def run_precancel(call: ScriptCall, settings: ScriptSettings) -> None:
    """Tell the barrier at once that nobody waits for it any more: the MoM does nothing else while this runs.

    Where it fails, the epilogue tells the barrier soon.
    """
    try:
        ask_agent(settings.socket, build_agent_request("cancel", call, reason="qdel"), grace=LIST_TIMEOUT_S)
    except (AgentUnreachable, AgentRefused):
        return


def withdraw(call: ScriptCall, settings: ScriptSettings) -> None:
    """Let what was asked for go again, waiting for nothing; its lease is the last resort."""
    try:
        ask_agent(settings.socket, build_agent_request("remove", call), wait=0)
    except (AgentUnreachable, AgentRefused) as error:
        end_through_sbf(call, settings, str(error))
    finally:
        ensure_no_environment(settings.environments, call)


def end_through_sbf(call: ScriptCall, settings: ScriptSettings, why: str) -> None:
    """Tell SBF, since this host's agent could not be told; raises Ended when neither could."""
    try:
        JobSbfClient(settings.where, call.key, RetryBudget(0)).end(call.user)
    except SbfUnreachable as error:
        text = "%s; SBF at %s: %s; its cluster ends with its lease" % (why, settings.sbf, error)
        raise ScriptExit(EXIT_REQUEUE, text) from error


def _wait_for_removal(call: ScriptCall, settings: ScriptSettings, seconds: float) -> None:
    """Ask again and again until this host carries nothing of it; the agent goes on when the time is over."""
    patience = RetryBudget(seconds)
    while True:
        answer = ask_agent(settings.socket, build_agent_request("remove", call), wait=min(REMOVE_WAIT_S, patience.left))
        if answer["gone"] or not patience.left:
            return


PRIVATE_NETWORK = "private"


def run_prologue(call: ScriptCall, settings: ScriptSettings) -> None:
    """Ask for the job's cluster and wait until it is up; raises Ended, RequestError. Whatever ends it undoes it."""
    wish = _admit(call, settings)
    patience = RetryBudget(settings.patience)
    sbf = JobSbfClient(settings.where, call.key, patience)
    run = JobRun(call.key, call.user, _read_elements(call, settings), parse_seconds(call.wanted["walltime"]))
    with _withdraw_on_error(call, settings):
        announce_job(settings.socket, call, patience)
        with _abort_if_deleted(call, settings, patience):
            sbf.put(lambda: build_spec(run, wish, call.network, sbf), sbf.next_attempt())
            facts = wait_until_up(settings.socket, call, patience)
            ensure_environment(settings.environments, call, facts)


def run_prologue_parallel(call: ScriptCall, settings: ScriptSettings) -> None:
    """See that this host can take part, before the first host asks for anything; raises Ended."""
    wait_until_clear(settings.socket, call, RetryBudget(min(SISTER_WAIT_S, settings.patience)))


@contextmanager
def _withdraw_on_error(call: ScriptCall, settings: ScriptSettings) -> Iterator[None]:
    """Undo what was asked for when it comes to nothing."""
    try:
        yield
    except BaseException:
        with suppress(ScriptExit):  # what is said is why it came to this; the lease is the last resort
            withdraw(call, settings)
        raise


@contextmanager
def _abort_if_deleted(call: ScriptCall, settings: ScriptSettings, patience: RetryBudget) -> Iterator[None]:
    """Notice that the job was deleted: were it put back into its queue then, it would run again."""
    patience.in_vain = lambda: is_deleted(settings.socket, call)
    try:
        yield
    except ScriptExit as error:
        if error.code == EXIT_REQUEUE and is_deleted(settings.socket, call):
            raise ScriptExit(EXIT_ABORT, DELETED_MESSAGE) from error
        raise


def build_spec(run: JobRun, wish: Optional[JobRequest], network: Optional[str], sbf: JobSbfClient) -> Dict[str, Any]:
    """Give the spec of the job's cluster; one without guests of ours only brings the network to its hosts."""
    name = wish.net if wish else None if network == PRIVATE_NETWORK else network
    joined = None if name is None else sbf.network(name)
    if wish is not None:
        return build_cluster_spec(wish, run, joined)
    return _build_hosts_spec(run, joined)


def _build_hosts_spec(run: JobRun, joined: Optional[JobNetwork]) -> Dict[str, Any]:
    lease = run.walltime_s + SETUP_S + MARGIN_S
    spec = {"owner": run.owner, "hosts": sorted(run.hosts), "guests": [], "lease_s": lease}  # type: Dict[str, Any]
    return spec if joined is None else dict(spec, joins=joined.key)


def _admit(call: ScriptCall, settings: ScriptSettings) -> Optional[JobRequest]:
    """Give the request of a job that may have a cluster; raises RequestError."""
    if call.request is None:
        check_no_array("[" in call.job)
        check_walltime(call.wanted.get("walltime"), settings.longest_walltime)
        return None
    wish = parse_request(call.request)
    admit_torque_job(wish, call.wanted, settings.longest_walltime, "[" in call.job)
    return wish


def _read_elements(call: ScriptCall, settings: ScriptSettings) -> Tuple[str, ...]:
    """Give SBF's names of the job's hosts, this one's first."""
    file = call.environment.get("PBS_NODEFILE")
    try:
        hosts = (
            parse_nodefile(Path(file).read_text())
            if file
            else (call.environment.get("PBS_MSHOST") or os.uname().nodename,)
        )
    except OSError as error:
        text = "PBS_NODEFILE %s cannot be read: %s; the job will be tried again" % (file, error.strerror)
        raise ScriptExit(EXIT_REQUEUE, text) from error
    return tuple(settings.element(host) for host in hosts)
