"""Actors: real code that pauses before every call to the store or to a device, until a schedule resumes it.

Each actor is a coroutine (a greenlet). A schedule resumes one actor and waits until it pauses again or ends. No other
code switches between coroutines. So a seed always leads to the same steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from greenlet import getcurrent, greenlet

from virtcloud.model.values import Name

UNSET = object()


@dataclass(slots=True)
class Changes:
    """The number of changes of all watched objects."""

    count: int = 0


class Watched:
    """An object whose fields the invariants read. ``changes`` counts the changes of the fields of all such objects.

    A change within a value, such as a new key of a dictionary, is not counted. Therefore the simulation replaces
    values. ``uncounted`` contains the names of fields whose changes are not counted either, so the invariants must not
    read these fields.
    """

    __slots__ = ()
    changes: ClassVar[Changes] = Changes()
    uncounted: ClassVar[frozenset[str]] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field, and count the change unless the field already has this value."""
        if name not in self.uncounted and getattr(self, name, UNSET) != value:
            self.changes.count += 1
        object.__setattr__(self, name, value)


class KilledError(BaseException):
    """The actor's process was killed.

    The error ends the actor's code. Each later call of the store or a device raises the error again.
    """


class _Puppet:
    """A coroutine that runs pieces of work one after another. :meth:`go` runs a piece until it stops or ends."""

    def __init__(self) -> None:
        self.work: Callable[[], None] = lambda: None
        self._greenlet = greenlet(self._run)

    def go(self) -> None:
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def stop(self) -> None:
        """Return to the caller of ``go``. The work calls this method. The next ``go`` continues the work."""
        assert self._greenlet.parent is not None
        self._greenlet.parent.switch()

    def _run(self) -> None:
        while True:
            self.work()
            self.stop()


_IDLE: list[_Puppet] = []


@dataclass
class Actor:
    """Work in progress on an element.

    A schedule may resume an actor that waits in :meth:`stop` at any time, unless ``paused`` is true. After its random
    events, the schedule resumes all actors.
    """

    stage: "Stage"
    work: Callable[[], None]
    holder: str
    element: Name | str
    paused: bool = False
    ended: bool = False
    at: str = "its start"
    _killed: bool = False
    _error: BaseException | None = None
    _puppet: _Puppet | None = None

    def go(self) -> None:
        """Run the work until it calls ``stop`` or ends. Raise the error of the work, if any."""
        if self._puppet is None:
            self._puppet = _IDLE.pop() if _IDLE else _Puppet()
            self._puppet.work = self._run
        before, self.stage.acting = self.stage.acting, self
        self._puppet.go()
        self.stage.acting = before
        if self.ended:
            _IDLE.append(self._puppet)
        if self._error is not None:
            raise self._error

    def kill(self) -> None:
        self._killed = True
        if self._puppet is None:
            self.ended = True
        else:
            self.go()

    def stop(self, at: str) -> None:
        """Pause until the schedule resumes the actor. The work calls this method before it calls the store or a device.

        Raise KilledError if the actor was killed.
        """
        if not self._killed and self._puppet is not None:
            self.at = at
            self._puppet.stop()
        if self._killed:
            raise KilledError

    def _run(self) -> None:
        try:
            self.work()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the schedule
            self._error = error
        self.ended = True


@dataclass
class Stage:
    """All actors in progress. ``broken`` contains messages about the faults that the database or a device detected.

    Code that runs outside an actor does not pause: :meth:`gate` calls ``each_time`` instead.
    """

    actors: list[Actor] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    acting: Actor | None = None
    each_time: Callable[[str], None] = lambda _at: None

    def gate(self, at: str) -> None:
        if self.acting is None:
            self.each_time(at)
        else:
            self.acting.stop(at)

    def enter(self, work: Callable[[], None], holder: str, element: Name | str) -> None:
        self.actors.append(Actor(self, work, holder, element))

    def advance(self, one: Actor) -> None:
        try:
            one.go()
        finally:
            if one.ended:
                self.actors.remove(one)

    def kill(self, holder: str) -> int:
        found = [one for one in self.actors if one.holder == holder]
        for one in found:
            one.kill()
            self.actors.remove(one)
        return len(found)
