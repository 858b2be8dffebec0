"""The attributes that a hook may set in each event, and PBS's Python exceptions if a hook sets another attribute.

The rules come from measurements with OpenPBS and from its source.
"""

import time
from typing import Any

from .attributes import SETTABLE_IN_REQUEST
from .pbs_events import CHANGES_THE_REQUEST, EVENTS, SETS_JOBS, SETS_VNODES, SETTABLE_AT_RUNJOB
from .pbs_values import BadAttributeValueError, BadAttributeValueTypeError, BadResourceValueTypeError, PbsText

AT_RUNJOB = (
    "Can only set job's (%s) attribute, or a vnode's (state) attribute under RUNJOB event - got <%%s>"
    % "|".join(SETTABLE_AT_RUNJOB)
)
NOTHING_SETTABLE = "nothing is settable inside an %s hook!"


class SetRules:
    """The rules of one run of a hook. A hook may set nothing after it has accepted or rejected the event."""

    def __init__(self, event: str) -> None:
        """Create the rules for ``event``. Until the hook runs, PBS may set everything."""
        self.event = event
        self.number = EVENTS[event]
        self.in_hook = False
        self.stopped = False

    def check(self, owner: str, name: str, value: Any, kind: type) -> None:
        """Raise PBS's exception if a hook may not set ``name`` of an ``owner`` (job, resource, vnode) to ``value``."""
        if not self.in_hook:
            return
        if self.stopped:
            raise AssertionError(
                "Not permitted to modify attributes (name=%s): accept() or reject() already called." % name
            )
        if name == "Variable_List":
            raise BadAttributeValueError("attribute 'Variable_List' cannot be directly set.")
        self._check_event(owner, name)
        self._check_type(owner, name, value, kind)
        if name == "Execution_Time" and value is not None and int(value) < time.time():
            raise BadAttributeValueError("exec_time '%s' not in the future" % time.ctime(int(value)))
        if name == "run_count" and value is not None and int(value) < 0:
            raise BadAttributeValueError("run_count value must be >= 0")

    def _check_event(self, owner: str, name: str) -> None:
        attribute = "Resource_List" if owner == "resource" else name
        if self.event in CHANGES_THE_REQUEST:
            if owner == "vnode":
                raise AssertionError("Can only set job,resource attributes under %s event." % self.event)
            queue = name == "queue" and self.event == "queuejob"
            if attribute not in SETTABLE_IN_REQUEST and not queue:
                raise BadAttributeValueError("job attribute '%s' is readonly" % name)
        elif self.event == "runjob":
            if attribute not in SETTABLE_AT_RUNJOB and (owner, name) != ("vnode", "state"):
                raise AssertionError(AT_RUNJOB % attribute)
        elif self.event == "movejob":
            if name != "queue":
                raise AssertionError("Can only set job's 'queue' attribute under MOVEJOB event - got <%s>" % name)
        elif self.event in ("execjob_attach", "execjob_resize"):
            raise AssertionError(NOTHING_SETTABLE % self.event)
        elif self.event not in (SETS_VNODES if owner == "vnode" else SETS_JOBS):
            raise AssertionError("Unexpected event")

    @staticmethod
    def _check_type(owner: str, name: str, value: Any, kind: type) -> None:
        """Raise BadAttributeValueTypeError, or BadResourceValueTypeError for a resource, if ``value`` has a wrong type.

        If ``kind`` is a subclass of `PbsText` other than pbs_bool, accept values of all subclasses of `PbsText`, but no
        str.
        """
        accepted_types = (PbsText,) if issubclass(kind, PbsText) else kind.__mro__[-2:-1]
        if kind.__name__ == "pbs_bool":
            accepted_types = (bool, kind)
        elif kind.__name__ == "pbs_int":
            accepted_types = (int, float)
        if value is None or isinstance(value, (kind, *accepted_types)):
            return
        error = BadResourceValueTypeError if owner == "resource" else BadAttributeValueTypeError
        label = "pbs_resource" if owner == "resource" else "_" + owner
        raise error(
            "value for class <%s> attribute <%s> must be 'None' or '(%r,),%s'"
            % (label, name, kind, ",".join(repr(accepted) for accepted in accepted_types))
        )
