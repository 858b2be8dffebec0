"""The objects that a hook uses: event, job, resource lists, server, vnodes."""

from typing import Any, Dict, List

from .attributes import JOB, RESOURCE_LISTS, RESOURCES, pbs_env
from .pbs_events import ALL_MOM_EVENTS
from .pbs_values import (
    BadAttributeValueError,
    EventIncompatibleError,
    UnsetAttributeNameError,
    UnsetResourceNameError,
    pbs_str,
    vnode_state,
)


class Attributes:
    """An object of PBS. Each attribute has a type, and is None until it is set."""

    _owner = ""

    def __init__(self, rules: Any, types: Dict[str, Any]) -> None:
        """Store the rules of the hook's run, and the type of each attribute."""
        self.__dict__.update(_rules=rules, _types=types, _values={}, _changed=[], _readonly=False)

    def __getattr__(self, name: str) -> Any:
        """Return the value, or None if the attribute is unset. Raise AttributeError for an unknown name."""
        if name.startswith("__") or name not in self._types:
            raise AttributeError("'%s' object has no attribute '%s'" % (type(self).__name__, name))
        return self._values.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. If a hook may not set the attribute, raise the same exception as PBS."""
        if name not in self._types:
            self._handle_unknown(name)
        if self._readonly and self._rules.in_hook:
            raise BadAttributeValueError("attribute '%s' is part of a readonly object" % name)
        kind = self._types[name]
        self._rules.check(self._owner, name, value, kind)
        self._values[name] = _convert(kind, value, self._rules.in_hook)
        if self._rules.in_hook and name not in self._changed:
            self._changed.append(name)

    def _handle_unknown(self, name: str) -> None:
        raise UnsetAttributeNameError("%s attribute '%s' not found" % (self._owner, name))

    @property
    def attributes(self) -> Dict[str, Any]:
        """A dictionary whose keys are the names of the attributes. The values are None."""
        return dict.fromkeys(self._types)


def _convert(kind: type, value: Any, in_hook: bool) -> Any:
    if value is None:
        return "" if in_hook else None
    return value if isinstance(value, kind) or value == "" else kind(value)


class Resources(Attributes):
    """A list of resources, such as ``Resource_List``."""

    _owner = "resource"

    def __getitem__(self, name: str) -> Any:
        """Return the value. Raise AttributeError for an unknown resource."""
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a resource if the rules allow it."""
        setattr(self, name, value)

    def __contains__(self, name: str) -> bool:
        """Return whether the resource exists. An existing resource may have no value."""
        return name in self._types

    def keys(self) -> List[str]:
        """Return the names of the resources that are set."""
        return [name for name, value in self._values.items() if value is not None]

    def __str__(self) -> str:
        """Return text such as ``ncpus=1,walltime=60``."""
        return ",".join("%s=%s" % pair for pair in self._values.items() if pair[1] is not None)

    def _handle_unknown(self, name: str) -> None:
        """Add an unknown resource. In a hook of the server, raise UnsetResourceNameError instead."""
        if self._rules.in_hook and not self._rules.number & ALL_MOM_EVENTS:
            raise UnsetResourceNameError("resource attribute '%s' not found" % name)
        self._types[name] = pbs_str


class PbsJob(Attributes):
    """A job."""

    _owner = "job"

    def __init__(self, rules: Any, description: Dict[str, Any], resources: Dict[str, Any]) -> None:
        """Create a job from a ``fakepbs.HookJob``. ``resources`` contains the types of custom resources."""
        super().__init__(rules, dict(JOB, id=str))
        lists = {name: Resources(rules, dict(RESOURCES, **resources)) for name in RESOURCE_LISTS}
        self.__dict__.update(lists, _description=description, _rerun=False, _delete=False)
        self.__dict__["Variable_List"] = pbs_env(description["variables"])
        self.__dict__["_variables"] = dict(self.Variable_List)
        self.id = description["id"]
        for name, value in description["attributes"].items():
            setattr(self, name, value)
        for name, value in description["resources"].items():
            self.Resource_List[name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute if the rules allow it. A resource list cannot be replaced."""
        if name in RESOURCE_LISTS:
            raise AssertionError("can't set the head resource '%s' directly " % name)
        if name == "id" and self._rules.in_hook:
            raise BadAttributeValueError("job attribute 'id' is readonly")
        super().__setattr__(name, value)

    def __str__(self) -> str:
        """Return the ID."""
        return str(self.id)

    def rerun(self) -> None:
        """Request a rerun of the job. Raise NotImplementedError in a hook of the server."""
        self._request("_rerun", "rerun(): only for mom hooks")

    def delete(self) -> None:
        """Request the deletion of the job. Raise NotImplementedError in a hook of the server."""
        self._request("_delete", "delete(): only for mom hooks")

    def _request(self, flag: str, refusal: str) -> None:
        if not self._rules.number & ALL_MOM_EVENTS:
            raise NotImplementedError(refusal)
        self.__dict__[flag] = True

    def in_ms_mom(self) -> bool:
        """Return whether the hook runs on the job's first host."""
        return bool(self._description["first_host"])

    def is_checkpointed(self) -> bool:
        """Return False, because checkpoints are not supported."""
        return False

    def stdout_file(self) -> str:
        """Return the path of the file that receives the job's output while the job runs; "" if unknown."""
        return str(self._description["stdout_file"] or "")

    def stderr_file(self) -> str:
        """Return the path of the file that receives the job's error output while the job runs; "" if unknown."""
        return str(self._description["stderr_file"] or "")


class PbsVnode(Attributes):
    """A vnode."""

    _owner = "vnode"

    def __init__(self, rules: Any, description: Dict[str, Any], resources: Dict[str, Any]) -> None:
        """Create a vnode from a ``fakepbs.HookVnode``."""
        super().__init__(
            rules, {"name": str, "state": vnode_state, "comment": pbs_str, "Mom": pbs_str, "jobs": pbs_str}
        )
        available = Resources(rules, dict(RESOURCES, **resources))
        self.__dict__["resources_available"] = available
        for name, value in description["resources"].items():
            available[name] = value
        self.name, self.state, self.Mom = description["name"], description["state"], description["name"]

    def __str__(self) -> str:
        """Return the name."""
        return str(self.name)


class PbsServer:
    """The server, with read-only jobs and vnodes."""

    def __init__(self, name: str, jobs: Dict[str, Any], vnodes: Dict[str, Any]) -> None:
        """Store the jobs and vnodes by name."""
        self.name = name
        self._jobs, self._vnodes = jobs, vnodes

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def job(self, identifier: str) -> Any:
        """Return a job, or None."""
        return self._jobs.get(identifier)

    def jobs(self) -> Any:
        """Return an iterator over the jobs."""
        return iter(self._jobs.values())

    def vnode(self, name: str) -> Any:
        """Return a vnode, or None."""
        return self._vnodes.get(name)

    def vnodes(self) -> Any:
        """Return an iterator over the vnodes."""
        return iter(self._vnodes.values())


class PbsEvent:
    """The event: its parameters, and the methods accept and reject."""

    _settable = ("progname", "argv", "env")

    def __init__(self, rules: Any, number: int, facts: Dict[str, Any], parameters: Dict[str, Any]) -> None:
        """Store the facts of the event (caller, hook name) and its parameters."""
        self.__dict__.update(_rules=rules, type=number, _param=parameters, accepted=True, message=None, **facts)

    def accept(self, ecode: int = 0) -> None:
        """End the hook. The event continues."""
        self._end(True, None, ecode)

    def reject(self, emsg: str = "", ecode: int = 255) -> None:
        """End the hook and stop the event, with ``emsg`` as the reason."""
        self._end(False, str(emsg), ecode)

    def _end(self, accepted: bool, message: Any, code: int) -> None:
        self._rules.stopped = True
        self.__dict__.update(accepted=accepted, message=message)
        raise SystemExit(str(code))

    def __getattr__(self, name: str) -> Any:
        """Return a parameter. Raise EventIncompatibleError if the event has no such parameter."""
        try:
            return self.__dict__["_param"][name]
        except KeyError:
            raise EventIncompatibleError('"%s" not found in self._param' % name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a parameter of a launch event.

        Raise UnsetAttributeNameError if the event has no such parameter. Raise BadAttributeValueError if the parameter
        is read-only.
        """
        if name not in self._param:
            raise UnsetAttributeNameError("event attribute '%s' not found" % name)
        if name not in self._settable:
            raise BadAttributeValueError("event attribute '%s' is readonly" % name)
        self._param[name] = value
