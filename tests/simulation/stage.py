"""Actors: real code that stops at every call of the store and of a device, until a schedule lets it go on.

Each actor has a thread, and exactly one thread runs at a time: whoever drives the schedule hands the turn over and gets
it back at the actor's next stop. Nothing else switches threads, so a seed always has the same story.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, Thread

from virtcloud.model.values import Name


class KilledError(BaseException):
    """The actor's process was killed: its code is unwound, and every call that it still makes raises this too."""


class _Puppet:
    """A thread that does work after work, and stops where the work says so."""

    def __init__(self) -> None:
        self._go, self._stopped = Lock(), Lock()
        self._go.acquire()
        self._stopped.acquire()
        self.work: Callable[[], None] = lambda: None
        Thread(target=self._run, daemon=True).start()

    def go(self) -> None:
        """Run the work up to its next stop, or to its end."""
        self._go.release()
        self._stopped.acquire()

    def stop(self) -> None:
        """Return to the caller of ``go``; called by the work."""
        self._stopped.release()
        self._go.acquire()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            self.work()
            self._stopped.release()


_IDLE: list[_Puppet] = []


@dataclass
class Actor:
    """Work under way on an element; ``paused`` is one that others do not wait for, and that may go on long after."""

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
        """Run it up to its next call. Raise its error."""
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
        """End it where it stands."""
        self._killed = True
        if self._puppet is None:
            self.ended = True
        else:
            self.go()

    def stop(self, at: str) -> None:
        """Wait for the turn; called by the work, before it calls the store or a device."""
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
        except BaseException as error:  # noqa: BLE001 - raised where the schedule is
            self._error = error
        self.ended = True


@dataclass
class Stage:
    """Everybody who is under way, and what they broke.

    ``each_time`` is called at the stops of what is run without an actor.
    """

    actors: list[Actor] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    acting: Actor | None = None
    each_time: Callable[[str], None] = lambda _at: None

    def gate(self, at: str) -> None:
        """Stop here until it is this actor's turn again."""
        if self.acting is None:
            self.each_time(at)
        else:
            self.acting.stop(at)

    def enter(self, work: Callable[[], None], holder: str, element: Name | str) -> None:
        """Add an actor, which has done nothing yet."""
        self.actors.append(Actor(self, work, holder, element))

    def advance(self, one: Actor) -> None:
        """Run an actor up to its next stop; remove it when it has ended."""
        try:
            one.go()
        finally:
            if one.ended:
                self.actors.remove(one)

    def kill(self, holder: str) -> int:
        """Kill everybody who acts for ``holder``; return how many were under way."""
        found = [one for one in self.actors if one.holder == holder]
        for one in found:
            one.kill()
            self.actors.remove(one)
        return len(found)
