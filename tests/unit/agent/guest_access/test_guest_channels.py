import threading
from pathlib import Path

import pytest

from virtcloud.agent.guest_access.guest_channels import LogChannel
from virtcloud.model.errors import Refused


def read_all(channel: LogChannel) -> bytes:
    return b"".join(iter(channel.receive, b""))


def test_a_log_begins_with_its_former_files(tmp_path: Path) -> None:
    for name, text in (("console.log", "c"), ("console.log.0", "b"), ("console.log.1", "a")):
        (tmp_path / name).write_text(text)
    assert read_all(LogChannel(tmp_path / "console.log", follow=False)) == b"abc"


def test_a_followed_log_continues_in_the_next_file(tmp_path: Path) -> None:
    log_file = tmp_path / "console.log"
    log_file.write_text("first ")
    channel = LogChannel(log_file, follow=True)
    assert channel.receive() == b"first "
    with log_file.open("a") as file:
        file.write("second ")
    assert channel.receive() == b"second "
    log_file.rename(tmp_path / "console.log.0")
    log_file.write_text("third")
    assert channel.receive() == b"third"
    channel.close()
    assert channel.receive() == b""


def test_a_closed_log_wakes_its_reader(tmp_path: Path) -> None:
    channel = LogChannel(tmp_path / "console.log", follow=True)
    timer = threading.Timer(0.05, channel.close)
    timer.start()
    assert channel.receive() == b""
    timer.join()


def test_a_missing_log_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no console log yet: the guest has not written to its console"):
        LogChannel(tmp_path / "console.log", follow=False)


def test_a_symbolic_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "console.log").symlink_to(tmp_path / "secret")
    assert read_all(LogChannel(tmp_path / "console.log", follow=False)) == b""
