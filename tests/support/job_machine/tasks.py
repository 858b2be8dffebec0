"""Simulated time: threads of which only one runs at a time, and which sleep without waiting.

The real hooks and agents run in such threads. So a sequence of actions always gives the same result.
"""

import threading
from collections.abc import Callable
from contextlib import suppress


class Killed(BaseException):
    """The process in which the code runs was killed."""


class Life:
    """One life of a process. A thread that works for a dead process ends at its next pause."""

    def __init__(self) -> None:
        self.dead = False


class Task:
    """A simulated thread. It continues at the time ``wake``, or when ``until()`` is true."""

    def __init__(self, tasks: "Tasks", name: str, work: Callable[[], object]) -> None:
        self.tasks, self.name, self._work = tasks, name, work
        self.wake, self.until = tasks.now, _never
        self.lives: list[Life] = []
        self.error: BaseException | None = None
        self.failure: BaseException | None = None
        self.done = False
        self.turn = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True, name=name).start()

    def join(self, _seconds: float) -> None:
        """Do nothing: a task ends at its next pause."""

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if self.error is None:
                self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - `Tasks` raises it in the test's thread
            self.failure = error
        self.done = True
        self.tasks.main.release()


def _never() -> bool:
    return False


class Tasks:
    """All tasks, and the time in seconds. ``on_time`` is called when the time changes."""

    def __init__(self, on_time: Callable[[float], object]) -> None:
        self.now, self.on_time = 0.0, on_time
        self.all: list[Task] = []
        self.current: Task | None = None
        self.main = threading.Semaphore(0)

    def start(self, name: str, work: Callable[[], object]) -> Task:
        task = Task(self, name, work)
        self.all.append(task)
        return task

    def sleep(self, seconds: float, until: Callable[[], bool] = _never) -> None:
        """Pause the present task. In the test's own thread, only advance the time."""
        task = self.current
        if task is None:
            self._set(self.now + seconds)
            return
        lives = tuple(task.lives)
        task.wake, task.until = self.now + max(0.0, seconds), lambda: until() or any(life.dead for life in lives)
        self.main.release()
        task.turn.acquire()
        if task.error is not None:
            error, task.error = task.error, None
            raise error
        if any(life.dead for life in lives):
            raise Killed

    def run(self, until: float) -> None:
        while ready := self._find_ready(until):
            self._set(max(self.now, min(ready.wake, until)) if not ready.until() else self.now)
            self._resume(ready)
        self._set(max(self.now, until))

    def kill(self, task: Task, error: BaseException | None = None) -> None:
        if not task.done and task is not self.current:
            task.error = error or Killed()
            task.wake = self.now

    def close(self) -> None:
        for _ in range(50):
            for task in self.all:
                if not task.done:
                    task.error = Killed()
                    with suppress(BaseException):
                        self._resume(task)
            self.all = [task for task in self.all if not task.done]

    def _find_ready(self, until: float) -> Task | None:
        self.all = [task for task in self.all if not task.done]
        by_condition = next((task for task in self.all if task.until()), None)
        if by_condition is not None:
            return by_condition
        waiting = [task for task in self.all if task.wake <= until]
        return min(waiting, key=lambda task: task.wake, default=None)

    def _resume(self, task: Task) -> None:
        self.current, task.until = task, _never
        task.turn.release()
        self.main.acquire()
        self.current = None
        if task.failure is not None:
            raise AssertionError(f"unexpected error in {task.name}") from task.failure

    def _set(self, now: float) -> None:
        if now != self.now:
            self.now = now
            self.on_time(now)
