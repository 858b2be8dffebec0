"""Builds the module ``pbs`` for one run of a hook."""

import types
from typing import Any, Dict, List

from . import pbs_events, pbs_values
from .attributes import CUSTOM_TYPES, pbs_env
from .objects import PbsEvent, PbsJob, PbsServer, PbsVnode, Resources
from .rules import SetRules

TYPES = (
    pbs_values.select,
    pbs_values.place,
    pbs_values.hold_types,
    pbs_values.exec_host,
    pbs_values.exec_vnode,
    pbs_values.vchunk,
    pbs_values.pbs_bool,
    pbs_values.pbs_int,
    pbs_values.pbs_str,
    pbs_values.pbs_float,
    pbs_values.pbs_list,
    pbs_values.duration,
    pbs_values.size,
    pbs_values.vnode_state,
    pbs_env,
)


class HookStage:
    """The objects of one run: rules, event, and logs."""

    def __init__(self, description: Dict[str, Any]) -> None:
        """Create the objects from an event (``fakepbs.HookEvent.as_json``)."""
        self.log: List[List[Any]] = []
        self.job_log: List[List[str]] = []
        self.rules = SetRules(description["kind"])
        custom = {name: CUSTOM_TYPES[kind] for name, kind in description["custom_resources"].items()}
        self._custom = custom
        self.server = self._server(description)
        self.event = self._event(description)

    def _server(self, description: Dict[str, Any]) -> "PbsServer":
        jobs = {one["id"]: _readonly(self._job(one)) for one in description["server_jobs"]}
        vnodes = {one["name"]: _readonly(self._vnode(one)) for one in description["server_vnodes"]}
        return PbsServer(description["server"], jobs, vnodes)

    def _job(self, described: Dict[str, Any]) -> PbsJob:
        return PbsJob(self.rules, described, self._custom)

    def _vnode(self, described: Dict[str, Any]) -> PbsVnode:
        return PbsVnode(self.rules, described, self._custom)

    def _event(self, description: Dict[str, Any]) -> "PbsEvent":
        all_parameters = {
            "job": description["job"] and self._job(description["job"]),
            "job_o": description["job_o"] and _readonly(self._job(description["job_o"])),
            "src_queue": None,
            "vnode_list": {one["name"]: self._vnode(one) for one in description["vnodes"]},
            "vnode_list_fail": {},
            "job_list": {one["id"]: self._job(one) for one in description["job_list"]},
            "progname": description["progname"],
            "argv": list(description["argv"]),
            "env": pbs_env(dict(description["env"]), generic=True),
            "pid": 1,
        }
        facts = {name: description[name] for name in ("requestor", "requestor_host", "hook_name")}
        facts.update(hook_type="site", freq=None)
        wanted = {name: all_parameters[name] for name in pbs_events.PARAMETERS[description["kind"]]}
        return PbsEvent(self.rules, self.rules.number, facts, wanted)


def _readonly(made: Any) -> Any:
    """Make an object read-only for hooks."""
    for one in [made] + [held for held in vars(made).values() if isinstance(held, Resources)]:
        one.__dict__["_readonly"] = True
    return made


def build_module(stage: HookStage, description: Dict[str, Any]) -> types.ModuleType:
    """Return the module ``pbs`` for a run."""
    made = types.ModuleType("pbs")
    for table in (pbs_events.constants(), pbs_events.LOG_LEVELS, pbs_events.JOB_STATES, pbs_values.NAMED):
        made.__dict__.update(table)
    made.__dict__.update({one.__name__: one for one in TYPES + pbs_values.EXCEPTIONS})
    made.__dict__.update(
        event=lambda: stage.event,
        server=lambda: stage.server,
        get_local_nodename=lambda: description["node"],
        hook_config_filename=description["config_file"],
        logmsg=lambda level, text: stage.log.append([int(level), str(text)]),
        logjobmsg=lambda identifier, text: stage.job_log.append([str(identifier), str(text)]),
        size_to_kbytes=pbs_values.size_to_kbytes,
        pbs_conf=dict(description["pbs_conf"]),
    )
    return made
