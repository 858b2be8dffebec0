"""A session with an emulated switch: modes, the grammar of commands, and injected faults.

A pattern consists of words, which may be abbreviated, and of values in angle brackets. ``<list>`` matches one word,
``<text...>`` all remaining words. Of two matching patterns, the one with more literal words is used, as on real
devices.
"""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from support.emulators.fault_injection import InjectedFault
from support.emulators.terminal import END_OF_MODE, Hangup, Terminal, paged

F = TypeVar("F", bound=Callable[..., Any])
Grammar = dict[str, list[tuple[str, str]]]


def accepts(mode: str, *patterns: str) -> Callable[[F], F]:

    def mark(function: F) -> F:
        function.__dict__.setdefault("_patterns", []).extend((mode, pattern) for pattern in patterns)
        return function

    return mark


def grammar_of(kind: type) -> Grammar:
    """Return the patterns of a class, each with its method. The most specific pattern comes first."""
    found: Grammar = {}
    for name in dir(kind):
        for mode, pattern in getattr(getattr(kind, name), "_patterns", ()):
            found.setdefault(mode, []).append((pattern, name))
    for patterns in found.values():
        patterns.sort(key=lambda entry: (-_count_literal_words(entry[0]), entry[0]))
    return found


def match(pattern: str, line: str) -> tuple[str, ...] | None:
    typed = line.split()
    values: list[str] = []
    words = pattern.split()
    for index, word in enumerate(words):
        if index >= len(typed):
            return None
        if word.endswith("...>"):
            return (*values, " ".join(typed[index:]))
        if word.startswith("<"):
            values.append(typed[index])
        elif not word.lower().startswith(typed[index].lower()):
            return None
    return tuple(values) if len(typed) == len(words) else None


def _count_literal_words(pattern: str) -> int:
    return sum(not word.startswith("<") for word in pattern.split())


if TYPE_CHECKING:
    from support.emulators.switch_device import EmulatedPort, EmulatedSwitch


class CommandRejected(Exception):
    """The device refuses a command. The answer is the exception's text, or the usual error if the text is empty."""


class EmulatedSession:
    """A session. ``context`` contains the VLANs or ports that the mode configures."""

    def __init__(self, switch: "EmulatedSwitch", terminal: Terminal) -> None:
        self.switch, self.terminal = switch, terminal
        self.mode = switch.first_mode
        self.context: tuple[str, ...] = ()
        self.pending: set[int] = set()
        self.page = switch.page
        self._deferred: list[Callable[[], None]] | None = None

    def run(self) -> None:
        """Print the greeting, then answer line by line. Raise Hangup when the session ends."""
        self.switch.open_sessions.append(self)
        try:
            self.switch.greeting(self)
            while True:
                line = self.terminal.line(self.switch.prompt(self))
                if line.strip():
                    self.answer("end" if line == END_OF_MODE else line.strip())
        finally:
            self.switch.open_sessions.remove(self)

    def answer(self, line: str) -> None:
        switch = self.switch
        if switch.slowness:
            switch.closing.wait(switch.slowness)
        switch.commands.append(line)
        refusal = switch.find_refusal(line, switch.unauthorized.format(line=line) or switch.invalid(self, line))
        fault = switch.fault_for(line) if refusal is None else None
        if refusal is not None:
            self.write(refusal)
        elif fault is None:
            self.perform(line)
        else:
            self._apply_fault(line, fault)

    def _apply_fault(self, line: str, fault: InjectedFault) -> None:
        actions: dict[str, Callable[[], object]] = {
            "ignore": lambda: self._ignore(line),
            "disconnect": lambda: self._disconnect(line, fault),
            "hang": self._hang,
            "log": lambda: (self.terminal.write(f"{fault.text}\n"), self.perform(line)),
            "rename": lambda: (self.perform(line), setattr(self.switch, "hostname", fault.text)),
            "drip": lambda: self._drip(fault.seconds),
        }
        actions.get(fault.kind, lambda: self.print_pages(fault.text or self.switch.invalid(self, line)))()

    def _ignore(self, line: str) -> None:
        """Print the usual answer to the line, but undo the line's effect."""
        switch = self.switch
        with switch.lock:
            before = deepcopy(switch.running), switch.startup, switch.saves
            self.perform(line)
            switch.running, switch.startup, switch.saves = before

    def _disconnect(self, line: str, fault: InjectedFault) -> None:
        if fault.done:
            self.perform(line)
        self.switch.hang_up()
        raise Hangup

    def _hang(self) -> None:
        self.switch.closing.wait()
        raise Hangup

    def _drip(self, seconds: float) -> None:
        while self.terminal.alive and not self.switch.closing.wait(seconds):
            self.terminal.write(".")
        raise Hangup

    def perform(self, line: str) -> None:
        """Execute a line, record the VLANs that the switch then carries, unlock the switch, and print the answer."""
        switch = self.switch
        self._deferred = []
        try:
            with switch.lock:
                self._change(line)
        finally:
            answers, self._deferred = self._deferred, None
            for answer in answers:
                answer()

    def _change(self, line: str) -> None:
        switch = self.switch
        try:
            self._execute(line)
        except CommandRejected as rejection:
            self.print_pages(str(rejection) or switch.invalid(self, line))
        now = switch.carrying()
        if not switch.timeline or switch.timeline[-1][1] != now:
            switch.timeline.append((line, now))
        switch.untagged_timeline.append(switch.untagged())
        for recorder in switch.recorders:
            recorder.compare(line, self.mode, self.context)

    def _execute(self, line: str) -> None:
        mode: str | None = self.mode
        while mode is not None:
            for pattern, name in self.switch.grammar.get(mode, ()):
                values = match(pattern, line)
                if values is not None:
                    self._call(mode, name, values)
                    return
            mode = self.switch.falls_through.get(mode)
        if not self._filtered(line):
            raise CommandRejected("")

    def _filtered(self, line: str) -> bool:
        """Execute a line with an output filter, such as ``| include PATTERN``. Return False if there is no filter."""
        command, bar, rest = line.partition(" | ")
        kind, _, pattern = rest.strip().partition(" ")
        filters = self.switch.filters.items()
        apply_filter = next((function for name, function in filters if kind and name.startswith(kind)), None)
        if not bar or apply_filter is None:
            return False
        output: list[str] = []

        def keep(text: str) -> None:
            output.append(text)

        self.print_pages = keep
        try:
            self._execute(command)
        finally:
            del self.print_pages
        self.print_pages(apply_filter("\n".join(output), pattern))
        return True

    def _call(self, mode: str, name: str, values: tuple[str, ...]) -> None:
        """Enter ``mode`` and call the switch's method ``name``. If the method rejects the command, restore the mode."""
        before = self.mode, self.context
        if mode != self.mode:
            self.enter(mode)
        try:
            getattr(self.switch, name)(self, *values)
        except CommandRejected:
            self.mode, self.context = before
            raise

    def print_pages(self, text: str) -> None:
        self.later(lambda: paged(self.terminal, text, self.page, self.switch.more, self.terminal.key))

    def write(self, text: str) -> None:
        if text:
            self.terminal.write(text if text.endswith("\n") else f"{text}\n")

    def later(self, action: Callable[[], None]) -> None:
        """Run an action after the present command has released the lock of the switch."""
        if self._deferred is None:
            action()
        else:
            self._deferred.append(action)

    def ask(self, question: str, echo: bool = True) -> str:
        waiting, self._deferred = self._deferred, None
        for answer in waiting or ():
            answer()
        self._deferred = None if waiting is None else []
        return self.terminal.line(question, echo)

    def enter(self, mode: str, *context: str) -> None:
        self.switch.leave_mode(self)
        self.mode, self.context = mode, context

    @property
    def ports(self) -> list["EmulatedPort"]:
        return [self.switch.running.ports[name] for name in self.context]


def including(text: str, pattern: str) -> str:
    return "\n".join(line for line in text.splitlines() if re.search(pattern, line))


def excluding(text: str, pattern: str) -> str:
    return "\n".join(line for line in text.splitlines() if not re.search(pattern, line))


def beginning(text: str, pattern: str) -> str:
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if re.search(pattern, line)), len(lines))
    return "\n".join(lines[first:])


def section(text: str, pattern: str) -> str:
    """Return the blocks with a matching line. A block is a line with the indented lines below it."""
    blocks = re.split(r"\n(?=\S)", text)
    return "\n".join(block for block in blocks if re.search(pattern, block, re.MULTILINE))


FILTERS: dict[str, Callable[[str, str], str]] = {
    "include": including,
    "exclude": excluding,
    "begin": beginning,
    "section": section,
}
