from pathlib import Path

import pytest

from virtcloud.model.errors import SchedulerUnavailable
from virtcloud.scheduler.command import build_runner, find_command_folder


def script(folder: Path, text: str) -> Path:
    path = folder / "qstat"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return folder


def test_a_command_runs_from_its_folder_with_the_c_locale(tmp_path: Path) -> None:
    ended = build_runner(script(tmp_path, 'echo "$LC_ALL $*"; echo no >&2; exit 35'), 5)(["qstat", "-f", "7"])
    assert (ended.code, ended.out, ended.failure) == (35, "C -f 7\n", "qstat -f 7 ended with exit code 35: no")


def test_invalid_utf_8_is_replaced(tmp_path: Path) -> None:
    assert build_runner(script(tmp_path, r"printf 'a\377b'"), 5)(["qstat"]).out == "a\N{REPLACEMENT CHARACTER}b"


def test_a_command_has_a_time_limit(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnavailable, match=r"qstat -f did not end within 0\.1 s"):
        build_runner(script(tmp_path, "exec sleep 60"), 0.1)(["qstat", "-f"])


def test_a_missing_command_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnavailable, match="qstat cannot be run: No such file or directory; set 'commands'"):
        build_runner(tmp_path, 5)(["qstat"])


def test_commands_are_found_through_pbs_conf(tmp_path: Path) -> None:
    (tmp_path / "pbs.conf").write_text("PBS_SERVER=pbssrv\nPBS_EXEC=/opt/pbs\n")
    assert find_command_folder(tmp_path / "pbs.conf") == Path("/opt/pbs/bin")


@pytest.mark.parametrize("text", [None, "", "PBS_SERVER=pbssrv\n", "PBS_EXEC=\n"])
def test_without_pbs_conf_commands_are_on_path(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "pbs.conf").write_text(text)
    assert find_command_folder(tmp_path / "pbs.conf") is None
