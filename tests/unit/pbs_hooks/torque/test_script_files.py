"""The files of Torque's scripts have no dependencies and are owned by root. Foreign files stay unchanged."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from pbs_hooks.torque.script_files import build_program, plan_scripts, plan_submit_filter, write_files
from virtcloud.cli import main
from virtcloud.model.errors import BadInput

SETTINGS = Path("/nonexistent/torque.json")
OWNER = os.geteuid()


@pytest.fixture(scope="module")
def text() -> str:
    return build_program(SETTINGS)


@pytest.fixture
def written(tmp_path: Path, text: str) -> Path:
    write_files(plan_scripts(tmp_path, text, OWNER), text, OWNER)
    return tmp_path


def run(path: Path, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [str(path), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, env={}, cwd="/")  # noqa: S603 - our own


def test_all_five_scripts_have_the_file_modes_for_torque(written: Path) -> None:
    assert {file.name: f"{file.stat().st_mode & 0o777:o}" for file in written.iterdir()} == {
        "prologue": "500",
        "prologue.parallel": "500",
        "epilogue": "500",
        "epilogue.parallel": "500",
        "epilogue.precancel": "555",
    }


def test_writing_again_changes_nothing(written: Path, text: str) -> None:
    assert all(file.is_right for file in plan_scripts(written, text, OWNER))


def test_manual_changes_are_repaired(written: Path, text: str) -> None:
    (written / "prologue").chmod(0o777)
    wrong = [file.path.name for file in plan_scripts(written, text, OWNER) if not file.is_right]
    write_files(plan_scripts(written, text, OWNER), text, OWNER)
    assert (wrong, (written / "prologue").stat().st_mode & 0o777) == (["prologue"], 0o500)


def test_binary_content_is_repaired(written: Path, text: str) -> None:
    with (written / "prologue").open("ab") as file:
        file.write(b"\xff")
    assert [file.path.name for file in plan_scripts(written, text, OWNER) if not file.is_right] == ["prologue"]


def test_a_foreign_script_stops_the_installation(tmp_path: Path, text: str) -> None:
    foreign = tmp_path / "epilogue"
    foreign.write_text("#!/bin/sh\nlogger done\n")
    with pytest.raises(BadInput, match="epilogue: not written by this command; left unchanged"):
        plan_scripts(tmp_path, text, OWNER)
    assert list(tmp_path.iterdir()) == [foreign]


def test_the_same_sources_give_the_same_program(text: str) -> None:
    assert build_program(SETTINGS) == text


def test_a_script_without_packages_accepts_a_job_without_a_request(written: Path) -> None:
    done = run(written / "prologue", "1.torque", "alice", "users", "job", "nodes=1,walltime=01:00:00", "batch", "")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_script_without_packages_handles_a_request(written: Path) -> None:
    resources = "nodes=1,walltime=01:00:00,other=vcluster=image=a:guests=0"
    done = run(written / "prologue", "1.torque", "alice", "users", "job", resources, "batch", "")
    assert done.returncode == 1
    assert done.stderr == b"vcluster: guests: expected a number from 1 to 64, got '0' (character 9)\n"


def test_scripts_need_sbfs_address(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["torque", "scripts", "--to", str(tmp_path), "--settings", str(SETTINGS)])
    assert (ended.exit_code, ended.stderr) == (
        2,
        f"virtcloud: {SETTINGS}: expected the setting sbf (SBF's address for the scripts), got none\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_reported_as_missing(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match="cannot be written: No such file or directory; check its folder"):
        write_files(plan_submit_filter(tmp_path / "none" / "submit_filter", text, OWNER), text, OWNER)


def test_the_filter_runs_without_packages_and_is_idempotent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "torque_submitfilter"
    write_files(plan_submit_filter(path, text, OWNER), text, OWNER)
    once = run(path, "-l", "vcluster=image=a", stdin=b"#!/bin/sh\n#PBS -l nodes=2\ntrue\n")
    assert once.stdout == b"#!/bin/sh\n#PBS -l other=vcluster=image=a\n#PBS -l nodes=2\ntrue\n"
    assert run(path, "-l", "vcluster=image=a", stdin=once.stdout).stdout == once.stdout


def test_only_three_file_names_of_a_submit_filter_are_accepted(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        BadInput, match="expected a submit filter's file name: one of submit_filter, qsub_filter, torque_submitfilter"
    ):
        plan_submit_filter(tmp_path / "filter", text, OWNER)
