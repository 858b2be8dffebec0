"""The types of jobs' attributes and of the resources that PBS defines, and a list of attributes that hooks may set."""

import re
from typing import Any, Dict

from .pbs_values import (
    NAMED,
    BadAttributeValueError,
    duration,
    exec_host,
    exec_vnode,
    hold_types,
    job_state,
    pbs_bool,
    pbs_float,
    pbs_int,
    pbs_list,
    pbs_str,
    place,
    select,
    size,
)

READ_ONLY = frozenset(
    "PBS_ENVIRONMENT PBS_JOBDIR PBS_JOBID PBS_JOBNAME PBS_NODEFILE TMPDIR PBS_O_HOME PBS_O_HOST PBS_O_LANG "
    "PBS_O_LOGNAME PBS_O_MAIL PBS_O_PATH PBS_O_QUEUE PBS_O_SHELL PBS_O_SYSTEM PBS_O_TZ PBS_O_WORKDIR PBS_QUEUE".split()
)
LONE_BACKSLASH = r"(?<!\\)\\(?![,'\"\\])"


class pbs_env(Dict[str, Any]):
    """Environment variables. The variables that PBS sets are read-only.

    As in PBS, an assignment doubles a single backslash, unless the backslash precedes a comma or a quote.
    """

    def __init__(self, value: Any, generic: bool = False) -> None:
        r"""Accept a dict, or text such as ``A=1,B=two\,three``.

        If ``generic`` is true, PBS's variables can also be set.
        """
        self._generic = generic
        super().__init__(_parse_environment(value) if isinstance(value, str) else value)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable. Raise BadAttributeValueError for a read-only variable."""
        if name in READ_ONLY and not self._generic:
            raise BadAttributeValueError("env variable '%s' is readonly" % name)
        text = re.sub(LONE_BACKSLASH, r"\\\\", value) if isinstance(value, str) else value
        super().__setitem__(name, text)

    def __str__(self) -> str:
        """Return text such as ``A=1,B=2``."""
        return ",".join("%s=%s" % pair for pair in self.items() if pair[1] is not None)


def _parse_environment(text: str) -> Dict[str, Any]:
    """Parse text such as ``A=1,B=2``. A comma after a backslash belongs to the value."""
    pairs = (part.partition("=") for part in re.split(r"(?<!\\),", text))
    return {name: value for name, equals, value in pairs if equals}


_SPECIAL = {
    "Checkpoint": NAMED["checkpoint"],
    "Error_Path": NAMED["path"],
    "Execution_Time": pbs_int,
    "Hold_Types": hold_types,
    "Job_Name": NAMED["name"],
    "Join_Path": NAMED["join_path"],
    "Keep_Files": NAMED["keep_files"],
    "Mail_Points": NAMED["mail_points"],
    "Mail_Users": NAMED["email_list"],
    "Output_Path": NAMED["path"],
    "Priority": NAMED["priority"],
    "Shell_Path_List": NAMED["path_list"],
    "User_List": NAMED["user_list"],
    "Variable_List": pbs_env,
    "array_indices_submitted": NAMED["range"],
    "array_state_count": NAMED["state_count"],
    "depend": NAMED["depend"],
    "eligible_time": duration,
    "exec_host": exec_host,
    "exec_vnode": exec_vnode,
    "group_list": NAMED["group_list"],
    "job_state": job_state,
    "project": NAMED["project"],
    "sandbox": NAMED["sandbox"],
    "schedselect": select,
    "stagein": NAMED["staging_list"],
    "stageout": NAMED["staging_list"],
    "queue_rank": pbs_list,
    "node_set": pbs_list,
}
_WORDS = (
    "Account_Name Job_Owner Remove_Files Submit_Host Submit_arguments accounting_id alt_id alt_id2 argument_list "
    "array_id array_index array_indices_remaining comment cookie cred credential_id egroup euser exec_host2 "
    "exec_host_acct exec_host_orig exec_vnode_acct exec_vnode_deallocated exec_vnode_orig executable "
    "forward_x11_cookie gridname hashname jobdir pset queue queue_type reserve_ID resources_released resv "
    "schedselect_orig security server tolerate_node_failures"
).split()
_NUMBERS = (
    "Exit_status Stageout_status accrue_type array_index block credential_validity ctime etime forward_x11_port "
    "history_timestamp hop_count interactive job_kill_delay last_context_refresh max_run_subjobs mtime obittime qtime "
    "run_count run_version sample_starttime sched_hint sched_preempted session_id stime substate umask"
).split()
_FLAGS = (
    "Rerunable array create_resv_from_job gui no_stdio_sockets release_nodes_on_stageout topjob topjob_ineligible"
).split()

RESOURCE_LISTS = (
    "Resource_List",
    "Resource_List_acct",
    "Resource_List_orig",
    "estimated",
    "resource_released_list",
    "resources_used",
    "resources_used_acct",
    "resources_used_update",
)
JOB = dict(
    [(name, pbs_str) for name in _WORDS]
    + [(name, pbs_int) for name in _NUMBERS]
    + [(name, pbs_bool) for name in _FLAGS]
    + list(_SPECIAL.items())
)
"""The type of each attribute of a job, except lists of resources."""

SETTABLE_IN_REQUEST = frozenset(
    "Account_Name Checkpoint Error_Path Execution_Time Hold_Types Job_Name Join_Path Keep_Files Mail_Points Mail_Users "
    "Output_Path Priority Remove_Files Rerunable Resource_List Shell_Path_List Submit_Host Submit_arguments User_List "
    "Variable_List argument_list array_indices_submitted comment create_resv_from_job cred credential_id depend "
    "eligible_time estimated executable forward_x11_cookie gridname group_list max_run_subjobs no_stdio_sockets "
    "node_set project release_nodes_on_stageout run_count sandbox sched_hint sched_preempted stagein stageout "
    "tolerate_node_failures topjob_ineligible umask".split()
)
"""Attributes that a hook may set while a job is submitted or altered."""

RESOURCES = dict(
    [(name, size) for name in "mem vmem pmem pvmem file hbmem".split()]
    + [(name, duration) for name in "walltime cput pcput min_walltime max_walltime soft_walltime".split()]
    + [
        (name, pbs_int)
        for name in "ncpus mpiprocs ompthreads nodect cpupercent naccelerators nchunk ssinodes nice hpm".split()
    ]
    + [(name, pbs_str) for name in "nodes arch host vnode site partition nodemask aoe eoe preempt_targets resc".split()]
    + [("select", select), ("place", place), ("software", NAMED["software"]), ("energy", pbs_float)]
)

CUSTOM_TYPES = {
    "string": pbs_str,
    "string_array": pbs_list,
    "long": pbs_int,
    "float": pbs_float,
    "size": size,
    "boolean": pbs_bool,
}
"""The type of a custom resource's values, by the ``type`` of the resource in qmgr."""
