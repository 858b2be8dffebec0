"""Talking with a command line: showing, telling, and telling a refusal from an answer by the dialect's words.

Single faults of one change, and the error that lists them: whole for administrators, by VLAN ID for owners. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from sbf_service.drivers.transport.device_session import CommandLine, DetectsSessionLoss, close_lost_session
from virtcloud.model.errors import Refused
from virtcloud.model.vlans import VlanSet

SAVING_PATIENCE = 3
"""A device that writes its flash may be silent for so many times as long as otherwise; then it is saved again later."""
ERROR_LINES = 3
"""An answer that is a refusal says so at once; further down the words of an error may be somebody's description."""
QUOTED_CHARACTERS = 300
LOG_LINE = re.compile(r"^[^\n%]*(?:%[\w:-]+ )?%[A-Z][A-Z0-9_-]*-[0-7]-[A-Z0-9_]+: .*\n?", re.MULTILINE)
"""A log line that a device prints into the session: it has ``%FACILITY-SEVERITY-MNEMONIC:`` and answers no command."""


class AnswerPatterns(Protocol):
    """What a dialect says of every answer: which are errors, which lines may fail, which questions are asked."""

    @property
    def errors(self) -> re.Pattern[str]:
        """Give the pattern of refusals."""

    @property
    def may_fail(self) -> frozenset[str]:
        """Give the templates that some models do not know."""

    @property
    def answers(self) -> Mapping[str, str]:
        """Give the questions that are asked in between, with their answers."""

    @property
    def at_once(self) -> int:
        """Say how many lines may be sent before the first is answered."""


class RefusedCommand(NamedTuple):
    """A line that a device refused, and its words."""

    line: str
    words: str

    def __str__(self) -> str:
        """Say both."""
        return f"told {self.line!r}, it said {self.words!r}"


class DeviceConversation:
    """A conversation with one device; ``whom`` is what messages call it."""

    def __init__(self, whom: str, words: AnswerPatterns, line: CommandLine) -> None:
        """Talk over ``line``; nothing is connected yet."""
        self._whom = whom
        self._words = words
        self._line = line
        self._known: dict[Sequence[str], str] = {}

    def is_lost(self) -> bool:
        """Say whether the device ended the session by itself, as far as the line notices that."""
        return isinstance(self._line, DetectsSessionLoss) and self._line.is_lost()

    def renew(self) -> None:
        """Replace a session that the device ended; for the start of a reading."""
        close_lost_session(self._line)

    def show(self, command: str) -> str:
        """Ask, and give the answer; raises Refused unless the dialect says that the command may fail."""
        (answer,) = self._exchange([command], rf"(?:{self._line.prompt})\Z")
        head = [line for line in answer.splitlines() if line.strip()][:ERROR_LINES]
        if not self._words.errors.search("\n".join(head)):
            return answer
        if command in self._words.may_fail:
            return ""
        raise Refused(f"{self._whom}: asked {command!r}, it said {quote_start(answer)!r}")

    def show_any(self, commands: Sequence[str]) -> str:
        """Ask the first of these commands that the device answers; raise its refusal of the first where there is none.

        An account may lack a right, and a release a filter. The command that was answered is asked first from then on.
        """
        known = self._known.pop(tuple(commands), commands[0])
        refusals = list[Refused]()
        for command in dict.fromkeys((known, *commands)):
            try:
                answer = self.show(command)
            except Refused as refusal:
                refusals.append(refusal)
                continue
            if answer.strip() or len(commands) == 1:
                self._known[tuple(commands)] = command
                return answer
        raise next(iter(refusals), Refused(f"{self._whom}: asked {', '.join(map(repr, commands))}, it said nothing"))

    def tell(self, told: Sequence[str], patience: float = 1) -> Iterator[RefusedCommand]:
        """Say lines; give what was refused, in the device's words."""
        for some in batch_lines(told, self._words.at_once):
            answers = self._exchange(some, self._line.prompt, patience)
            for line, answer in zip(some, answers, strict=False):
                fault = self._words.errors.search(answer)
                if fault and not self._may_fail(line):
                    yield RefusedCommand(line, quote_start(answer))

    def save(self, told: Sequence[str], saved: re.Pattern[str]) -> None:
        """Send the lines that save. Raise Refused unless the last one prints what ``saved`` describes."""
        answer = ""
        for line in told:
            (answer,) = self._exchange([line], self._line.prompt, SAVING_PATIENCE)
            if self._words.errors.search(answer):
                raise build_save_error(self._whom, line, answer)
        if told and not saved.search(answer):
            raise build_save_error(self._whom, told[-1], answer)

    def close(self) -> None:
        """End the session."""
        self._line.close()

    def _exchange(self, told: Sequence[str], prompt: str, patience: float = 1) -> list[str]:
        """Say lines and give the answer to each; questions in between are answered as the dialect says."""
        until = "|".join([prompt, *(rf"{question}\Z" for question in self._words.answers)])
        said = self._line.ask("\n".join(told), until, len(told), patience)
        while (reply := self._reply(said)) is not None:
            said += self._line.ask(reply, until, 1, patience)
        answers = re.split(prompt, said, flags=re.MULTILINE)[: len(told)]
        return [LOG_LINE.sub("", answer.partition("\n")[2]) for answer in answers]

    def _reply(self, said: str) -> str | None:
        found = (reply for question, reply in self._words.answers.items() if re.search(rf"{question}\Z", said))
        return next(found, None)

    def _may_fail(self, line: str) -> bool:
        patterns = (re.escape(template).replace(r"\{port\}", ".*") for template in self._words.may_fail)
        return any(re.fullmatch(pattern, line) for pattern in patterns)


def batch_lines(told: Sequence[str], size: int) -> Iterator[list[str]]:
    """Split lines into those that are sent together."""
    yield from (list(told[start : start + size]) for start in range(0, len(told), size))


def build_save_error(whom: str, line: str, answer: str) -> Refused:
    """Return the error for a device that did not print that it saved."""
    told = f"told {line!r}, it said {quote_start(answer) or 'nothing'!r}, which does not mean that it saved"
    return Refused(f"{whom}: {told}: a restart would bring back its old configuration; it is saved again later")


def quote_start(said: str) -> str:
    """Give the beginning of what a device said, on one line, for a message."""
    return " ".join(said.split())[:QUOTED_CHARACTERS]


MAX_FAULT_CHARACTERS = 1500
"""Of a list of faults; the store keeps 2000 characters of an element's trouble."""


class ChangeFault(NamedTuple):
    """Something that was refused or is missing, and the VLAN IDs that it is about; none: it is about all of them."""

    text: str
    vlans: VlanSet = VlanSet()

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def build_refusal(whom: str, faults: Sequence[ChangeFault], cure: str = "") -> Refused:
    """Return the error for faults of a device; each VLAN ID's part of it, where every fault is about some."""
    about: dict[int, str] = {}
    if all(fault.vlans for fault in faults):
        for number in sorted({number for fault in faults for number in fault.vlans}):
            about[number] = f"{whom}{join_texts(one.text for one in faults if number in one.vlans)}{cure}"
    return Refused(f"{whom}{join_texts(one.text for one in faults)}{cure}", about)


def join_texts(texts: Iterable[str]) -> str:
    """Join texts; where that is too long, say how many are left out."""
    every = list(dict.fromkeys(texts))
    shown = list(_take_fitting(every))
    left = len(every) - len(shown)
    return "; ".join([*shown, f"and {left} more"] if left else shown)


def _take_fitting(texts: Sequence[str]) -> Iterator[str]:
    length = 0
    for number, text in enumerate(texts):
        length += len(text) + 2
        if number and length > MAX_FAULT_CHARACTERS:
            return
        yield text
