"""Tests of consoles with real pseudo terminals. The test acts as the guest at the other end."""

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from virtcloud.agent.guests import consoles as module
from virtcloud.agent.guests.consoles import GuestConsoles, list_log_files
from virtcloud.model.errors import Refused


def is_logged(text: bytes, log_file: Path) -> bool:
    return text in read_log(log_file)


@pytest.fixture
def consoles() -> Iterator[GuestConsoles]:
    made = GuestConsoles()
    yield made
    made.close()


@pytest.fixture
def terminal() -> Iterator[tuple[int, str]]:
    guest, host = os.openpty()
    name = os.ttyname(host)
    yield guest, name
    os.close(host)
    os.close(guest)


def await_true(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def read_log(log_file: Path) -> bytes:
    """Return the content of a log's files. The content of a file that is renamed meanwhile may be missing."""
    found = b""
    for path in list_log_files(log_file):
        with suppress(FileNotFoundError):
            found += path.read_bytes()
    return found


def test_the_output_of_a_console_is_appended_to_its_log(
    consoles: GuestConsoles, terminal: tuple[int, str], tmp_path: Path
) -> None:
    log_file = tmp_path / "console.log"
    log_file.write_bytes(b"first start\n")
    consoles.add("vc-a-g1", terminal[1], log_file)
    os.write(terminal[0], b"g1: up\n")
    await_true(lambda: log_file.read_bytes().endswith(b"up\n"))
    assert log_file.read_bytes() == b"first start\ng1: up\n"


def test_output_before_the_console_was_added_is_logged(
    consoles: GuestConsoles, terminal: tuple[int, str], tmp_path: Path
) -> None:
    guest, name = terminal
    os.write(guest, b"up\nrunning")
    consoles.add("d", name, log_file := tmp_path / "log")
    await_true(lambda: b"running" in read_log(log_file))
    assert read_log(log_file).startswith(b"up")


def test_output_is_not_echoed_to_the_guest(consoles: GuestConsoles, terminal: tuple[int, str], tmp_path: Path) -> None:
    consoles.add("vc-a-g1", terminal[1], tmp_path / "console.log")
    os.write(terminal[0], b"g1: up\n")
    await_true((tmp_path / "console.log").exists)
    os.set_blocking(terminal[0], False)
    with pytest.raises(BlockingIOError):
        os.read(terminal[0], 100)


def test_a_full_log_keeps_one_former_file(
    consoles: GuestConsoles, terminal: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 10)
    log_file = tmp_path / "console.log"
    consoles.add("vc-a-g1", terminal[1], log_file)
    for text in (b"0123456789", b"abcdefghij", b"end"):
        os.write(terminal[0], text)
        await_true(partial(is_logged, text, log_file))
    assert [path.read_bytes() for path in list_log_files(log_file)] == [b"abcdefghij", b"end"]


def test_a_symbolic_link_as_the_log_is_not_followed(
    consoles: GuestConsoles, terminal: tuple[int, str], tmp_path: Path
) -> None:
    (tmp_path / "console.log").symlink_to(tmp_path / "other")
    seen = threading.Event()
    consoles.add("vc-a-g1", terminal[1], tmp_path / "console.log")
    with consoles.connect("vc-a-g1", lambda _data: seen.set()):
        os.write(terminal[0], b"g1: up\n")
        assert seen.wait(10)
    assert not (tmp_path / "other").exists()


def test_two_users_share_a_console(consoles: GuestConsoles, terminal: tuple[int, str]) -> None:
    consoles.add("vc-a-g1", terminal[1], None)
    first, second = bytearray(), bytearray()
    with consoles.connect("vc-a-g1", first.extend) as write, consoles.connect("vc-a-g1", second.extend):
        write(b"ls\n")
        assert os.read(terminal[0], 100) == b"ls\n"
        os.write(terminal[0], b"bin\n")
        await_true(lambda: first == second == b"bin\n")


def test_input_that_exceeds_the_terminals_buffer_is_complete(
    consoles: GuestConsoles, terminal: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_S", 60.0)
    consoles.add("vc-a-g1", terminal[1], None)
    text, received = os.urandom(1 << 17), bytearray()

    def read() -> None:
        while len(received) < len(text):
            received.extend(os.read(terminal[0], 1000))

    guest = threading.Thread(target=read, daemon=True)
    guest.start()
    with consoles.connect("vc-a-g1", lambda _data: None) as write:
        write(text)
    guest.join(60)
    assert received == text


def test_a_pause_of_the_agent_discards_no_input(
    consoles: GuestConsoles, terminal: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit has passed before the first attempt to write."""
    monkeypatch.setattr(module, "STALL_S", 0.0)
    consoles.add("vc-a-g1", terminal[1], None)
    with consoles.connect("vc-a-g1", lambda _data: None) as write:
        write(b"ls\n")
    assert select.select([terminal[0]], [], [], 10)[0]


@pytest.mark.parametrize(("limit", "other"), [("STALL_S", "WRITE_S"), ("WRITE_S", "STALL_S")])
def test_a_guest_that_does_not_read_delays_no_user(
    consoles: GuestConsoles, terminal: tuple[int, str], monkeypatch: pytest.MonkeyPatch, limit: str, other: str
) -> None:
    monkeypatch.setattr(module, other, 60.0)
    monkeypatch.setattr(module, limit, 0.1)
    consoles.add("vc-a-g1", terminal[1], None)
    with consoles.connect("vc-a-g1", lambda _data: None) as write:
        write(bytes(1 << 17))
    assert 0 < len(os.read(terminal[0], 1 << 17)) < 1 << 17


def test_the_end_of_a_guest_ends_its_console(consoles: GuestConsoles, tmp_path: Path) -> None:
    guest, host = os.openpty()
    consoles.add("vc-a-g1", os.ttyname(host), tmp_path / "console.log")
    os.close(host)
    ended = threading.Event()
    with consoles.connect("vc-a-g1", lambda data: None if data else ended.set()):
        os.close(guest)
        assert ended.wait(10)
    assert not consoles.knows("vc-a-g1")


def test_input_after_the_end_of_a_guest_is_refused(consoles: GuestConsoles) -> None:
    guest, host = os.openpty()
    consoles.add("vc-a-g1", os.ttyname(host), None)
    os.close(host)
    with consoles.connect("vc-a-g1", lambda _data: None) as write, consoles._lock:  # the reader must wait
        os.close(guest)
        with pytest.raises(Refused, match="the guest has ended"):
            write(b"ls\n")


def test_an_unknown_console_is_refused(consoles: GuestConsoles) -> None:
    with pytest.raises(Refused, match="the guest does not run"), consoles.connect("vc-a-g1", lambda _data: None):
        pass


def test_a_console_is_logged_after_its_thread_failed_to_start(
    consoles: GuestConsoles, terminal: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raise_no_thread)
        consoles.add("vc-a-g1", terminal[1], tmp_path / "console.log")
        assert not consoles.knows("vc-a-g1")
        with pytest.raises(Refused, match="the agent cannot start a thread: can't start new thread; try again"):
            consoles.connect("vc-a-g1", lambda _data: None).__enter__()
    consoles.add("vc-a-g1", terminal[1], tmp_path / "console.log")
    os.write(terminal[0], b"g1: up\n")
    await_true(partial(is_logged, b"up\n", tmp_path / "console.log"))
    assert consoles.knows("vc-a-g1")


def raise_no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
