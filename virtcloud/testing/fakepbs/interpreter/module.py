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
    """The objects of one run of a hook: rules, event, and logs."""

    def __init__(self, description: Dict[str, Any]) -> None:
        """Create the objects from the description of an event (``fakepbs.HookEvent.as_json``)."""
        self.log: List[List[Any]] = []
        self.job_log: List[List[str]] = []
        self.rules = SetRules(description["kind"])
        custom = {name: CUSTOM_TYPES[kind] for name, kind in description["custom_resources"].items()}
        self._custom = custom
        self.server = self._server(description)
        self.event = self._event(description)

    def _server(self, description: Dict[str, Any]) -> "PbsServer":
        jobs = {item["id"]: _readonly(self._job(item)) for item in description["server_jobs"]}
        vnodes = {item["name"]: _readonly(self._vnode(item)) for item in description["server_vnodes"]}
        return PbsServer(description["server"], jobs, vnodes)

    def _job(self, description: Dict[str, Any]) -> PbsJob:
        return PbsJob(self.rules, description, self._custom)

    def _vnode(self, description: Dict[str, Any]) -> PbsVnode:
        return PbsVnode(self.rules, description, self._custom)

    def _event(self, description: Dict[str, Any]) -> "PbsEvent":
        all_parameters = {
            "job": description["job"] and self._job(description["job"]),
            "job_o": description["job_o"] and _readonly(self._job(description["job_o"])),
            "src_queue": None,
            "vnode_list": {item["name"]: self._vnode(item) for item in description["vnodes"]},
            "vnode_list_fail": {},
            "job_list": {item["id"]: self._job(item) for item in description["job_list"]},
            "progname": description["progname"],
            "argv": list(description["argv"]),
            "env": pbs_env(dict(description["env"]), generic=True),
            "pid": 1,
        }
        facts = {name: description[name] for name in ("requestor", "requestor_host", "hook_name")}
        facts.update(hook_type="site", freq=None)
        parameters = {name: all_parameters[name] for name in pbs_events.PARAMETERS[description["kind"]]}
        return PbsEvent(self.rules, self.rules.number, facts, parameters)


def _readonly(pbs_object: Any) -> Any:
    for part in [pbs_object] + [value for value in vars(pbs_object).values() if isinstance(value, Resources)]:
        part.__dict__["_readonly"] = True
    return pbs_object


def build_module(stage: HookStage, description: Dict[str, Any]) -> types.ModuleType:
    """Return the module ``pbs`` for a run."""
    module = types.ModuleType("pbs")
    for table in (pbs_events.constants(), pbs_events.LOG_LEVELS, pbs_events.JOB_STATES, pbs_values.NAMED):
        module.__dict__.update(table)
    module.__dict__.update(
        {type_or_exception.__name__: type_or_exception for type_or_exception in TYPES + pbs_values.EXCEPTIONS}
    )
    module.__dict__.update(
        event=lambda: stage.event,
        server=lambda: stage.server,
        get_local_nodename=lambda: description["node"],
        hook_config_filename=description["config_file"],
        logmsg=lambda level, text: stage.log.append([int(level), str(text)]),
        logjobmsg=lambda identifier, text: stage.job_log.append([str(identifier), str(text)]),
        size_to_kbytes=pbs_values.size_to_kbytes,
        pbs_conf=dict(description["pbs_conf"]),
    )
    return module
