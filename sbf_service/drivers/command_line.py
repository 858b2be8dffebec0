"""The driver for every switch with a command line; what it says is in the dialect."""

import re
from collections.abc import Iterator, Sequence

from sbf_service.drivers.dialects.dialect import Dialect, Seen
from sbf_service.drivers.dialects.lines import lines, port_seen
from sbf_service.drivers.driver import Managed
from sbf_service.drivers.line import CommandLine
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchCarried, SwitchDifference

SAVING_PATIENCE = 6
"""A switch that writes its flash may be silent for so many times as long as otherwise."""
ERROR_LINES = 3
"""An answer that is a refusal says so at once; further down the words of an error may be somebody's description."""
QUOTED_CHARACTERS = 300
QUOTED_FAULTS = 5


class CommandLineSwitch:
    """One switch that is driven by its command line."""

    def __init__(self, name: Name, dialect: Dialect, line: CommandLine) -> None:
        """Drive the switch called ``name`` over ``line``."""
        self._name = name
        self._dialect = dialect
        self._line = line
        self._seen: Seen | None = None

    def read(self, managed: Managed) -> SwitchCarried:
        """Read what managed ports carry of managed numbers; a few questions, however many VLANs there are."""
        self._seen = self._look()
        return carried_from(self._name, self._dialect, self._seen, managed)

    def apply(self, difference: SwitchDifference) -> None:
        """Make the change and save once.

        A line that is refused keeps none of the others from being done: they may be another cluster's. What was done
        is saved, then the refusal is raised.
        """
        seen, self._seen = self._seen or self._look(), None
        taken = difference.create & seen.reserved
        if taken:
            use = "which the switch uses itself: take it out of the site's pool"
            raise Refused(f"switch {self._name}: wanted VLAN {taken}, {use}")
        faults = list(self._tell(self._told(difference, seen)))
        faults += self._tell(self._dialect.save, SAVING_PATIENCE)
        if faults:
            raise Refused(f"switch {self._name}: {'; '.join(faults[:QUOTED_FAULTS])}")

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give the lines of this change, saving included; nothing for no change."""
        return (*self._told(difference, self._seen or self._look()), *self._dialect.save) if difference else ()

    def close(self) -> None:
        """End the session."""
        self._line.close()

    def _told(self, difference: SwitchDifference, seen: Seen) -> list[str]:
        return [*self._dialect.configure, *lines(self._dialect, difference, seen), *self._dialect.leave]

    def _look(self) -> Seen:
        answers = [self._show(command) for command in self._dialect.show]
        try:
            return self._dialect.see(answers)
        except ValueError as error:
            asked = ", ".join(repr(command) for command in self._dialect.show)
            words = f"the answers to {asked} are not understood: {_quoted(str(error))}; it was left alone"
            raise Unsafe(f"switch {self._name}: {words}") from error

    def _show(self, command: str) -> str:
        (answer,) = self._exchange([command], rf"(?:{self._line.prompt})\Z")
        head = [line for line in answer.splitlines() if line.strip()][:ERROR_LINES]
        if not self._dialect.errors.search("\n".join(head)):
            return answer
        if command in self._dialect.may_fail:
            return ""
        raise Refused(f"switch {self._name}: asked {command!r}, it said {_quoted(answer)!r}")

    def _tell(self, told: Sequence[str], patience: float = 1) -> Iterator[str]:
        """Say lines; give what was refused, in the switch's words."""
        for some in batched_lines(told, self._dialect.at_once):
            answers = self._exchange(some, self._line.prompt, patience)
            for line, answer in zip(some, answers, strict=False):
                fault = self._dialect.errors.search(answer)
                if fault and not self._may_fail(line):
                    yield f"told {line!r}, it said {_quoted(answer)!r}"

    def _exchange(self, told: Sequence[str], prompt: str, patience: float = 1) -> list[str]:
        """Say lines and give the answer to each; questions in between are answered as the dialect says."""
        until = "|".join([prompt, *(rf"{question}\Z" for question in self._dialect.answers)])
        said = self._line.ask("\n".join(told), until, len(told), patience)
        while (reply := self._reply(said)) is not None:
            said += self._line.ask(reply, until, 1, patience)
        answers = re.split(prompt, said, flags=re.MULTILINE)[: len(told)]
        return [answer.partition("\n")[2] for answer in answers]

    def _reply(self, said: str) -> str | None:
        found = (reply for question, reply in self._dialect.answers.items() if re.search(rf"{question}\Z", said))
        return next(found, None)

    def _may_fail(self, line: str) -> bool:
        patterns = (re.escape(template).replace(r"\{port\}", ".*") for template in self._dialect.may_fail)
        return any(re.fullmatch(pattern, line) for pattern in patterns)


def carried_from(name: Name, dialect: Dialect, seen: Seen, managed: Managed) -> SwitchCarried:
    """Keep of what was seen what we manage; raises Unsafe for what may not be touched."""
    ports, opened = {}, []
    for port in managed.ports:
        found = port_seen(dialect, seen, port)
        if found is None:
            there = ", ".join(seen.ports) or "none"
            raise Unsafe(f"switch {name}: expected a port {port}, found {_quoted(there)}: correct the topology")
        if misused := found.untagged & managed.vlans:
            cure = "move what uses it off the pool's numbers, or take them out of the pool"
            wanted = f"expected VLAN {misused} tagged or absent, found it untagged"
            raise Unsafe(f"switch {name}, port {port}: {wanted}: {cure}")
        ports[port] = VlanSet() if found.open else found.tagged & managed.vlans
        opened += [port] if found.open else []
    return SwitchCarried(vlans=seen.vlans & managed.vlans, ports=ports, open=tuple(opened))


def batched_lines(told: Sequence[str], size: int) -> Iterator[list[str]]:
    """Split lines into those that are sent together."""
    yield from (list(told[start : start + size]) for start in range(0, len(told), size))


def _quoted(said: str) -> str:
    return " ".join(said.split())[:QUOTED_CHARACTERS]
