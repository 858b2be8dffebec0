import logging

import pytest

from virtcloud.agent import log


def test_an_exception_cannot_forge_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("virtcloud.agent")
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    log.to_stderr()
    try:
        raise ValueError("\x1b[2J\nWARNING forged")  # noqa: TRY301 - the message of a library
    except ValueError:
        log.exception("guest_fault")
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "ERROR guest_fault"
    assert lines[-2:] == ["  ValueError: \\x1b[2J", "  WARNING forged"]
    assert all(line.startswith("  ") for line in lines)
