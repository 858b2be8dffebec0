"""The scripts of a job: its prologues and epilogues.

The first host runs ``prologue`` after all other hosts ran ``prologue.parallel``. A prologue cannot set the environment
of a job. The prologue therefore writes the cluster's variables to ``/run/virtcloud/torque/$PBS_JOBID``, which the job's
script sources. Only the job's user can read this file.
"""

import os
import pwd
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from pbs_hooks.kit.agent_client import BUSY_SLUG, AgentRefused, AgentUnreachable, ask_agent
from pbs_hooks.kit.deadline import ChildError
from pbs_hooks.kit.sbf_client import SbfUnreachable
from pbs_hooks.kit.user_keys import read_user_keys
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
    RETRY_PAUSE_S,
    SCHEDULER_VARIABLE,
    SISTER_WAIT_S,
    RetryBudget,
    ScriptCall,
    ScriptExit,
    requeue,
)
from pbs_hooks.torque.scripts.script_settings import ScriptSettings
from virtcloud.jobs.address_plan import AddressesInUse
from virtcloud.jobs.host_names import parse_nodefile
from virtcloud.jobs.job_cluster_spec import MARGIN_S, SETUP_S, JobNetwork, JobRun, build_cluster_spec
from virtcloud.jobs.openpbs_request import check_walltime
from virtcloud.jobs.request import JobRequest, parse_request
from virtcloud.jobs.request_values import PRIVATE_NETWORK
from virtcloud.jobs.script_variables import render_shell_commands
from virtcloud.jobs.sizes import parse_seconds
from virtcloud.jobs.torque_request import admit_torque_job, check_no_array

FOLDER_MODE, FILE_MODE = 0o711, 0o400


def ensure_environment(folder: str, call: ScriptCall, facts: Dict[str, str]) -> None:
    """Write the cluster's variables to the file that the job's script sources.

    The VLAN ID has two variables: ``VCLUSTER_VLAN`` and the older ``MAGRATHEA_VLANID``.

    Raise OSError, or KeyError for an unknown user.
    """
    path = _environment_path(folder, call)
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(FOLDER_MODE)
    new = path.with_name(".new-" + path.name)
    if new.exists():
        new.unlink()
    account = pwd.getpwnam(call.user)
    variables = dict(facts, **{SCHEDULER_VARIABLE: facts["VCLUSTER_VLAN"]}) if "VCLUSTER_VLAN" in facts else facts
    with os.fdopen(os.open(str(new), os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w") as file:
        file.write(render_shell_commands(variables))
        os.fchown(file.fileno(), account.pw_uid, account.pw_gid)
    new.rename(path)


def ensure_no_environment(folder: str, call: ScriptCall) -> None:
    """Delete the file of variables. Idempotent."""
    try:
        _environment_path(folder, call).unlink()
    except FileNotFoundError:
        return


def _environment_path(folder: str, call: ScriptCall) -> Path:
    return Path(folder) / call.job


REMOVE_WAIT_S = 30.0
AGENT_ABSENCE_S = 10.0
"""Time in seconds for which an epilogue repeats its request to an agent that restarts or is busy.

If the agent receives no request, the agent keeps its record of the job, and the job's script keeps its access to
guests.
"""


def run_epilogue(call: ScriptCall, settings: ScriptSettings) -> None:
    """Remove the cluster, and delete the file of variables.

    Wait at most ``settings.patience`` seconds until this host has no remnants of the cluster. Then return without an
    error: the agent continues the removal. Raise ScriptExit if neither the agent nor SBF ends the cluster.
    """
    try:
        _wait_for_removal(call, settings, settings.patience)
    except (AgentUnreachable, AgentRefused) as error:
        end_through_sbf(call, settings, str(error))
    finally:
        ensure_no_environment(settings.environments, call)


def run_epilogue_parallel(call: ScriptCall, settings: ScriptSettings) -> None:
    """Remove the cluster. Wait at most a minute until this host has no remnants of the cluster.

    Raise ScriptExit if the agent does not answer or refuses the removal.
    """
    try:
        _wait_for_removal(call, settings, min(SISTER_WAIT_S, settings.patience))
    except (AgentUnreachable, AgentRefused) as error:
        raise ScriptExit(EXIT_REQUEUE, str(error)) from error


def run_precancel(call: ScriptCall, settings: ScriptSettings) -> None:
    """Request that the agent cancel this run of the job. The MoM is blocked during the request.

    If the request fails, the epilogue removes the cluster soon afterwards.
    """
    try:
        ask_agent(settings.socket, build_agent_request("cancel", call, reason="qdel"), grace=LIST_TIMEOUT_S)
    except (AgentUnreachable, AgentRefused):
        return


def withdraw(call: ScriptCall, settings: ScriptSettings) -> None:
    """Ask the agent, or else SBF, to remove the cluster, and delete the file of variables.

    Do not wait for the removal. Raise ScriptExit if neither the agent nor SBF accepts the request. The cluster then
    ends with its lease.
    """
    try:
        ask_agent(settings.socket, build_agent_request("remove", call), wait=0)
    except (AgentUnreachable, AgentRefused) as error:
        end_through_sbf(call, settings, str(error))
    finally:
        ensure_no_environment(settings.environments, call)


def end_through_sbf(call: ScriptCall, settings: ScriptSettings, why: str) -> None:
    """End the cluster at SBF, because the agent did not answer or refused the removal.

    Raise ScriptExit if SBF does not end the cluster either.
    """
    try:
        JobSbfClient(settings.where, call.key, RetryBudget(0)).end(call.user)
    except SbfUnreachable as error:
        text = "%s; SBF at %s: %s; the job's cluster will end with its lease" % (why, settings.sbf, error)
        raise ScriptExit(EXIT_REQUEUE, text) from error


def _wait_for_removal(call: ScriptCall, settings: ScriptSettings, seconds: float) -> None:
    patience = RetryBudget(seconds)
    while not _is_removed(call, settings, patience) and patience.left:
        pass


def _is_removed(call: ScriptCall, settings: ScriptSettings, patience: RetryBudget) -> bool:
    """Request the removal. Return whether this host has no remnants of the cluster.

    Retry for ``AGENT_ABSENCE_S`` seconds while the agent does not answer or is busy. Then, or after any other refusal,
    raise AgentUnreachable or AgentRefused.
    """
    request, absence = build_agent_request("remove", call), RetryBudget(min(AGENT_ABSENCE_S, patience.left))
    while True:
        try:
            return bool(ask_agent(settings.socket, request, wait=min(REMOVE_WAIT_S, patience.left))["gone"])
        except (AgentUnreachable, AgentRefused) as error:
            is_passing = isinstance(error, AgentUnreachable) or error.slug == BUSY_SLUG
            if not is_passing or absence.left < RETRY_PAUSE_S:
                raise
        time.sleep(RETRY_PAUSE_S)


REPORT_S = 15
"""SBF's deadline for the cluster is ``settings.patience`` less this time in seconds, but at least 3/4 of ``patience``.

If SBF accepts the request but cannot set up the cluster, the script can thus report SBF's reason.
"""


def run_prologue(call: ScriptCall, settings: ScriptSettings) -> None:
    """Request the job's cluster and wait until the cluster is up. Withdraw the cluster after any error.

    Raise RequestError if the job may not have a cluster. Raise ScriptExit if the cluster cannot be set up.
    """
    request = _admit(call, settings)
    patience = RetryBudget(settings.patience)
    sbf = JobSbfClient(settings.where, call.key, patience)
    run = _build_run(call, settings)
    # The deadline does not depend on the remaining time: SBF refuses a repeated request with another spec.
    deadline = max(settings.patience - REPORT_S, settings.patience * 3 / 4)
    with _withdraw_on_error(call, settings):
        announce_job(settings.socket, call, patience)
        with _abort_if_deleted(call, settings, patience):
            sbf.put(lambda: dict(build_spec(run, request, call.network, sbf), deadline_s=deadline), sbf.next_attempt())
            facts = wait_until_up(settings.socket, call, patience)
            ensure_environment(settings.environments, call, facts)


def _build_run(call: ScriptCall, settings: ScriptSettings) -> JobRun:
    run = JobRun(call.key, call.user, _read_elements(call, settings), parse_seconds(call.wanted["walltime"]))
    if not settings.user_keys or call.request is None:
        return run
    try:
        return run._replace(ssh_keys=tuple(read_user_keys(call.user)))
    except ChildError:  # the home folder is not readable here: the keys that SBF stores for the user suffice
        return run


def run_prologue_parallel(call: ScriptCall, settings: ScriptSettings) -> None:
    """Wait until this host's agent answers and has removed all remnants of a former run.

    The first host requests the cluster afterwards. Raise ScriptExit if the agent refuses to list its clusters, or the
    time runs out.
    """
    wait_until_clear(settings.socket, call, RetryBudget(min(SISTER_WAIT_S, settings.patience)))


@contextmanager
def _withdraw_on_error(call: ScriptCall, settings: ScriptSettings) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # Report only the first error. If the withdrawal fails, the cluster ends with its lease.
        with suppress(ScriptExit):
            withdraw(call, settings)
        raise


@contextmanager
def _abort_if_deleted(call: ScriptCall, settings: ScriptSettings, patience: RetryBudget) -> Iterator[None]:
    """If the job is deleted, end the retries in the block and abort the job. A requeue would run the job again."""
    patience.is_pointless = lambda: is_deleted(settings.socket, call)
    try:
        yield
    except ScriptExit as error:
        if error.code == EXIT_REQUEUE and is_deleted(settings.socket, call):
            raise ScriptExit(EXIT_ABORT, DELETED_MESSAGE) from error
        raise


def build_spec(run: JobRun, request: Optional[JobRequest], network: Optional[str], sbf: JobSbfClient) -> Dict[str, Any]:
    """Return the spec of the job's cluster. Without a request for guests, the spec contains only the hosts.

    Raise ScriptExit if the network that the job joins has too few free addresses now.
    """
    name = request.net if request else None if network == PRIVATE_NETWORK else network
    joined = None if name is None else sbf.network(name)
    if request is None:
        return _build_hosts_spec(run, joined)
    try:
        return build_cluster_spec(request, run, joined)
    except AddressesInUse as error:
        if joined is None:
            raise
        raise requeue(str(error).partition(": ")[2]) from error  # the end of another job frees addresses


def _build_hosts_spec(run: JobRun, joined: Optional[JobNetwork]) -> Dict[str, Any]:
    lease = run.walltime_s + SETUP_S + MARGIN_S
    spec = {"owner": run.owner, "hosts": sorted(run.hosts), "guests": [], "lease_s": lease}  # type: Dict[str, Any]
    return spec if joined is None else dict(spec, joins=joined.key)


def _admit(call: ScriptCall, settings: ScriptSettings) -> Optional[JobRequest]:
    if call.request is None:
        check_no_array("[" in call.job)
        check_walltime(call.wanted.get("walltime"), settings.longest_walltime)
        return None
    request = parse_request(call.request)
    admit_torque_job(request, call.wanted, settings.longest_walltime, "[" in call.job)
    return request


def _read_elements(call: ScriptCall, settings: ScriptSettings) -> Tuple[str, ...]:
    file = call.environment.get("PBS_NODEFILE")
    try:
        hosts = (
            parse_nodefile(Path(file).read_text())
            if file
            else (call.environment.get("PBS_MSHOST") or os.uname().nodename,)
        )
    except OSError as error:
        raise requeue("PBS_NODEFILE %s cannot be read: %s" % (file, error.strerror)) from error
    return tuple(settings.element(host) for host in hosts)
