"""Conversations with a command line: show commands, configuration commands and saves.

The patterns of a dialect interpret the answers.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from sbf_service.drivers.device_errors import build_save_error, describe_refusal, quote_start
from sbf_service.drivers.transport.device_session import CommandLine, close_lost_session, is_session_lost
from virtcloud.model.errors import Refused

SAVING_PATIENCE = 3
"""The timeout of a save, as a multiple of the usual timeout: a device can be silent while it writes flash memory.

SBF repeats a save that exceeds the timeout.
"""
ERROR_LINES = 3
"""The number of lines of an answer in which SBF searches for a refusal.

A later "error" can be a part of a port's description.
"""
LOG_LINE = re.compile(r"^[^\n%]*(?:%[\w:-]+ )?%[A-Z][A-Z0-9_-]*-[0-7]-[A-Z0-9_]+: .*\n?", re.MULTILINE)
"""A log line that a device prints into the session (``%FACILITY-SEVERITY-MNEMONIC:``); not a part of the answer."""


class AnswerPatterns(Protocol):
    """The properties of a dialect that concern answers."""

    @property
    def errors(self) -> re.Pattern[str]:
        """The pattern of refusals."""

    @property
    def may_fail(self) -> frozenset[str]:
        """The command templates that some models do not support."""

    @property
    def answers(self) -> Mapping[str, str]:
        """The patterns of questions that a device asks, each with the reply."""

    @property
    def at_once(self) -> int:
        """The maximum number of lines that SBF sends together, without waiting for an answer after each line."""


class RefusedCommand(NamedTuple):
    """A command that a device refused, with the device's message."""

    line: str
    answer: str

    def __str__(self) -> str:
        """Return the command and the device's message, for an error message."""
        return describe_refusal(self.line, self.answer)


class DeviceConversation:
    """A conversation with one device. ``device`` is the device's kind and name, for error messages."""

    def __init__(self, device: str, patterns: AnswerPatterns, line: CommandLine) -> None:
        """Store ``line``, the terminal session with the device, which connects on first use."""
        self._device = device
        self._patterns = patterns
        self._line = line
        self._answered: dict[Sequence[str], str] = {}

    def is_lost(self) -> bool:
        """Return whether the device ended the session; False if the session cannot detect its end."""
        return is_session_lost(self._line)

    def close_if_lost(self) -> None:
        """Close the session if the device has ended it. Drivers call this method before they read the device."""
        close_lost_session(self._line)

    def show(self, command: str) -> str:
        """Return the answer to a show command.

        Raise Refused for an error message. Exception: after an error message for a command in ``may_fail``, return an
        empty answer.
        """
        (answer,) = self._exchange([command], rf"(?:{self._line.prompt})\Z")
        head = [line for line in answer.splitlines() if line.strip()][:ERROR_LINES]
        if not self._patterns.errors.search("\n".join(head)):
            return answer
        if command in self._patterns.may_fail:
            return ""
        raise Refused(f"{self._device}: {describe_refusal(command, quote_start(answer))}")

    def show_any(self, commands: Sequence[str]) -> str:
        """Return the answer to the first of ``commands`` that the device supports.

        With several commands, an empty answer counts as a refusal. A later call with the same ``commands`` begins with
        the supported command. Raise Refused if the device refuses all commands.
        """
        first = self._answered.pop(tuple(commands), commands[0])
        refusals = list[Refused]()
        for command in dict.fromkeys((first, *commands)):
            try:
                answer = self.show(command)
            except Refused as refusal:
                refusals.append(refusal)
                continue
            if answer.strip() or len(commands) == 1:
                self._answered[tuple(commands)] = command
                return answer
        sent = ", ".join(map(repr, commands))
        raise next(iter(refusals), Refused(f"{self._device}: sent {sent}, got only empty answers"))

    def send(self, lines: Sequence[str], patience: float = 1) -> Iterator[RefusedCommand]:
        """Send configuration lines, and yield the lines that the device refused."""
        for batch in batch_lines(lines, self._patterns.at_once):
            answers = self._exchange(batch, self._line.prompt, patience)
            for line, answer in zip(batch, answers, strict=False):
                refusal = self._patterns.errors.search(answer)
                if refusal and not self._may_fail(line):
                    yield RefusedCommand(line, quote_start(answer))

    def save(self, lines: Sequence[str], saved: re.Pattern[str]) -> None:
        """Write the startup configuration.

        Raise Refused if the device refuses a line, or does not answer the last line with ``saved``.
        """
        answer = ""
        for line in lines:
            (answer,) = self._exchange([line], self._line.prompt, SAVING_PATIENCE)
            if self._patterns.errors.search(answer):
                raise build_save_error(self._device, line, answer)
        if lines and not saved.search(answer):
            raise build_save_error(self._device, lines[-1], answer)

    def close(self) -> None:
        """End the session."""
        self._line.close()

    def _exchange(self, lines: Sequence[str], prompt: str, patience: float = 1) -> list[str]:
        until = "|".join([prompt, *(rf"{question}\Z" for question in self._patterns.answers)])
        output = self._line.exchange("\n".join(lines), until, len(lines), patience)
        while (reply := self._find_reply(output)) is not None:
            output += self._line.exchange(reply, until, 1, patience)
        answers = re.split(prompt, output, flags=re.MULTILINE)[: len(lines)]
        return [LOG_LINE.sub("", answer.partition("\n")[2]) for answer in answers]

    def _find_reply(self, output: str) -> str | None:
        replies = (reply for question, reply in self._patterns.answers.items() if re.search(rf"{question}\Z", output))
        return next(replies, None)

    def _may_fail(self, line: str) -> bool:
        patterns = (re.escape(template).replace(r"\{port\}", ".*") for template in self._patterns.may_fail)
        return any(re.fullmatch(pattern, line) for pattern in patterns)


def batch_lines(lines: Sequence[str], size: int) -> Iterator[list[str]]:
    """Yield batches of at most ``size`` lines."""
    yield from (list(lines[start : start + size]) for start in range(0, len(lines), size))
