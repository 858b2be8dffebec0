"""The events of PBS: their numbers, their parameters, and the attributes that hooks may set.

These values were measured with OpenPBS 23.06.
"""

from typing import Any, Dict

SERVER_EVENTS = {
    "queuejob": 0x01,
    "modifyjob": 0x02,
    "resvsub": 0x04,
    "movejob": 0x08,
    "runjob": 0x10,
    "provision": 0x20,
    "periodic": 0x8000,
    "resv_end": 0x10000,
    "management": 0x200000,
    "modifyvnode": 0x400000,
    "jobobit": 0x800000,
    "resv_begin": 0x1000000,
    "resv_confirm": 0x2000000,
    "modifyresv": 0x4000000,
    "postqueuejob": 0x8000000,
}
MOM_EVENTS = {
    "execjob_begin": 0x40,
    "execjob_prologue": 0x80,
    "execjob_epilogue": 0x100,
    "execjob_end": 0x200,
    "execjob_preterm": 0x400,
    "execjob_launch": 0x800,
    "exechost_periodic": 0x1000,
    "exechost_startup": 0x2000,
    "execjob_attach": 0x4000,
    "execjob_resize": 0x20000,
    "execjob_abort": 0x40000,
    "execjob_postsuspend": 0x80000,
    "execjob_preresume": 0x100000,
}
EVENTS = dict(SERVER_EVENTS, **MOM_EVENTS)
ALL_MOM_EVENTS = sum(MOM_EVENTS.values())

PARAMETERS = {
    "queuejob": ("job",),
    "postqueuejob": ("job",),
    "modifyjob": ("job", "job_o"),
    "movejob": ("job", "src_queue"),
    "runjob": ("job",),
    "jobobit": ("job",),
    "periodic": ("vnode_list",),
    "execjob_begin": ("job", "vnode_list"),
    "execjob_prologue": ("job", "vnode_list", "vnode_list_fail"),
    "execjob_epilogue": ("job", "vnode_list"),
    "execjob_end": ("job", "vnode_list"),
    "execjob_preterm": ("job", "vnode_list"),
    "execjob_launch": ("job", "vnode_list", "vnode_list_fail", "progname", "argv", "env"),
    "execjob_attach": ("job", "vnode_list", "pid"),
    "execjob_resize": ("job", "vnode_list"),
    "execjob_abort": ("job", "vnode_list"),
    "execjob_postsuspend": ("job", "vnode_list"),
    "execjob_preresume": ("job", "vnode_list"),
    "exechost_periodic": ("job_list", "vnode_list"),
    "exechost_startup": ("vnode_list",),
}
"""The parameters of ``pbs.event()`` for each supported event."""

SETTABLE_AT_RUNJOB = (
    "Hold_Types",
    "Execution_Time",
    "project",
    "Error_Path",
    "Output_Path",
    "Resource_List",
    "Variable_List",
    "depend",
    "create_resv_from_job",
)

CHANGES_THE_REQUEST = ("queuejob", "postqueuejob", "modifyjob")
SETS_JOBS = (
    "execjob_begin",
    "execjob_prologue",
    "execjob_epilogue",
    "execjob_end",
    "execjob_abort",
    "execjob_postsuspend",
    "execjob_preresume",
    "execjob_preterm",
    "execjob_launch",
    "exechost_periodic",
)
SETS_VNODES = (*SETS_JOBS, "exechost_startup", "runjob", "periodic")


def constants() -> Dict[str, Any]:
    """Return the event numbers by their names in the module ``pbs``, such as ``EXECJOB_BEGIN``."""
    numbers = {name.upper(): number for name, number in EVENTS.items()}
    numbers["MOM_EVENTS"] = ALL_MOM_EVENTS
    numbers.update({"HOOK_EVENT_" + name: number for name, number in list(numbers.items())})
    return numbers


LOG_LEVELS = {
    "LOG_DEBUG": 5,
    "LOG_WARNING": 6,
    "LOG_ERROR": 7,
    "EVENT_ERROR": 0x1,
    "EVENT_SYSTEM": 0x2,
    "EVENT_ADMIN": 0x4,
    "EVENT_JOB": 0x8,
    "EVENT_JOB_USAGE": 0x10,
    "EVENT_SECURITY": 0x20,
    "EVENT_SCHED": 0x40,
    "EVENT_DEBUG": 0x80,
    "EVENT_DEBUG2": 0x100,
    "EVENT_RESV": 0x200,
    "EVENT_DEBUG3": 0x400,
    "EVENT_DEBUG4": 0x800,
    "EVENT_FORCE": 0x8000,
}
JOB_STATES = {
    "JOB_STATE_TRANSIT": 0,
    "JOB_STATE_QUEUED": 1,
    "JOB_STATE_HELD": 2,
    "JOB_STATE_WAITING": 3,
    "JOB_STATE_RUNNING": 4,
    "JOB_STATE_EXITING": 5,
    "JOB_STATE_EXPIRED": 6,
    "JOB_STATE_BEGUN": 7,
    "JOB_STATE_MOVED": 8,
    "JOB_STATE_FINISHED": 9,
    "JOB_STATE_SUSPEND": 400,
    "JOB_STATE_SUSPEND_USERACTIVE": 410,
}
