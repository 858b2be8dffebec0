"""Tests of copies to and from guests over real ssh connections, as in the script of a job."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.programs.real_sshd import RealSshd, make_real_sshd

from virtcloud.cli import main
from virtcloud.client.guest_copies import PUT_SCRIPT

STOPPED = "sh -c 'echo virtcloud: guest off is stopped >&2'"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> RealSshd:
    return make_real_sshd(tmp_path_factory.mktemp("sshd"))


@pytest.fixture
def remote(sshd: RealSshd, tmp_path: Path) -> Path:
    folder = sshd.home / tmp_path.name
    folder.mkdir()
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a program, a hidden file, a link, and a file with an unusual name."""
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "sub/program").write_bytes(b"\0\xff" * 50_000)
    (root / "sub/program").chmod(0o751)
    (root / ".hidden").write_text("hidden")
    (root / "-a 'b'\n$c").write_text("unusual")
    (root / "link").symlink_to("sub/program")
    return root


def copy(sshd: RealSshd, *arguments: object, **proxies: str) -> Result:
    job = sshd.job("g1", **proxies)
    return CliRunner(env=job).invoke(main, ["cluster", "cp", "demo", *map(str, arguments)])


def describe(root: Path) -> dict[str, tuple[int, object]]:
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes(),
        )
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become another user")
def test_a_folder_that_the_user_may_not_enter_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "locked").mkdir(mode=0o700)
    command = ["sh", "-c", PUT_SCRIPT, "mark", "locked", "0", "file"]
    done = subprocess.run(  # noqa: S603 - a script of virtcloud
        command, cwd=tmp_path, user=65534, input="", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "mark\nyou may not enter folder locked\n")


def test_a_folder_is_copied_with_modes_and_back(sshd: RealSshd, remote: Path, tree: Path, tmp_path: Path) -> None:
    done = copy(sshd, tree, f":{remote}")
    assert (done.exit_code, done.stderr) == (0, "copied to 1 guest\n")
    assert describe(remote / "tree") == describe(tree)
    back = copy(sshd, f":{remote}/tree", tmp_path / "back")
    assert (back.exit_code, back.stderr) == (0, "copied from 1 guest\n")
    assert describe(tmp_path / "back/g1/tree") == describe(tree)


def test_a_single_source_may_get_a_new_name(sshd: RealSshd, remote: Path, tree: Path, tmp_path: Path) -> None:
    assert copy(sshd, tree / ".hidden", f"g1:{remote}/new").exit_code == 0
    assert copy(sshd, f"g1:{remote}/new", tmp_path / "other").exit_code == 0
    assert (tmp_path / "other").read_text() == "hidden"


def test_a_folder_is_merged_and_files_are_replaced(sshd: RealSshd, remote: Path, tree: Path, tmp_path: Path) -> None:
    for place in (remote / "tree", tmp_path / "back/g1/tree"):
        (place / "sub").mkdir(parents=True)
        (place / "sub/program").write_text("old")
        (place / "sub/other").write_text("stays")
    copy(sshd, tree, f":{remote}")
    copy(sshd, f":{remote}/tree", tmp_path / "back")
    for place in (remote / "tree", tmp_path / "back/g1/tree"):
        assert (place / "sub/program").read_bytes() == (tree / "sub/program").read_bytes()
        assert (place / "sub/other").read_text() == "stays"


def test_patterns_match_files_of_the_guest(sshd: RealSshd, remote: Path, tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "c.txt"):
        (remote / name).write_text(name)
    assert copy(sshd, f":{remote}/*.log", tmp_path / "logs").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "logs/g1").iterdir()) == ["a.log", "b.log"]


def test_a_failed_guest_is_named_and_others_are_copied(sshd: RealSshd, remote: Path, tmp_path: Path) -> None:
    (remote / "file").touch()
    done = copy(sshd, f":{remote}/file", tmp_path / "all", off=STOPPED)
    reason = "virtcloud: the copy failed on 1 of 2 guests:\nvirtcloud: off: guest off is stopped\n"
    assert (done.exit_code, done.stderr) == (1, reason)
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["g1"]
    printed = copy(sshd, "--json", f":{remote}/file", tmp_path / "all", off=STOPPED)
    assert (printed.exit_code, json.loads(printed.stdout)) == (1, {"g1": None, "off": "guest off is stopped"})


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("file", ":{remote}/none/", "none/ is no folder: create it first with mkdir"),
        ("file", ":{remote}/none/file", "/none is no folder: create it first with mkdir"),
        ("file", ":{remote}/taken", "taken/file is a folder"),
        ("folder", ":{remote}/taken2", "folder exists and is no folder"),
        (":{remote}/none", "target", "none: no such file or folder"),
    ],
)
def test_a_wrong_destination_is_explained(  # noqa: PLR0913, PLR0917 - two fixtures and a case
    sshd: RealSshd, remote: Path, tmp_path: Path, source: str, target: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (remote / "taken/file").mkdir(parents=True)
    (remote / "taken2").mkdir()
    (remote / "taken2/folder").touch()
    arguments = [text if ":" in text else tmp_path / text for text in (source, target)]
    done = copy(sshd, *(str(one).format(remote=remote) for one in arguments))
    assert done.exit_code == 1
    assert reason in done.stderr
    assert not list(remote.rglob(".virtcloud*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can mount a small file system")
def test_a_full_disk_of_a_guest_is_named(sshd: RealSshd, tree: Path) -> None:
    done = copy(sshd, tree, f":{sshd.home}/small")
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("none", ":"), (":a", ":b"), ("a", "b"), ("-g", "g1", "g2:a", "."), (":a", "none/"), ("g9:a", ".")]
)
def test_wrong_arguments_change_nothing(sshd: RealSshd, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = copy(sshd, *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("virtcloud: ")


@pytest.mark.parametrize("direction", ["to", "from"])
def test_an_interrupted_copy_leaves_no_file(sshd: RealSshd, remote: Path, tmp_path: Path, direction: str) -> None:
    """The copied sparse file has 64 GiB, so the copy takes longer than the test."""
    near, far = tmp_path / "near", remote / "far"
    with (near if direction == "to" else far).open("wb") as file:
        file.truncate(1 << 36)
    arguments = (str(near), f":{far}") if direction == "to" else (f"g1:{far}", str(near))
    begun = remote if direction == "to" else tmp_path
    command = [sys.executable, "-m", "virtcloud.cli", "cluster", "cp", "demo", *arguments]
    with subprocess.Popen(command, env=os.environ | sshd.job("g1"), stderr=subprocess.PIPE) as program:  # noqa: S603
        await_state(begun, has_started=True)
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 130
    await_state(begun, has_started=False)
    assert not (far if direction == "to" else near).exists()


def await_state(folder: Path, *, has_started: bool) -> None:
    """Wait until the copy's temporary folders in ``folder`` contain a file if ``has_started``, otherwise no file."""
    deadline = time.monotonic() + 20
    while any(path.is_file() for path in folder.glob(".virtcloud-*/*")) != has_started:
        assert time.monotonic() < deadline
        time.sleep(0.05)
