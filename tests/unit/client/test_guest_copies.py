"""Tests of copies of files and folders to and from many guests. A copy is a tar stream over ssh."""

import io
import os
import platform
import subprocess
import tarfile
from pathlib import Path

import pytest

from virtcloud.client.guest_copies import (
    GET_SCRIPT,
    LAST_MEMBER,
    PUT_SCRIPT,
    RemotePath,
    _send_files,
    get_files,
    list_sources,
    parse_copy_path,
)
from virtcloud.client.received_files import receive_files
from virtcloud.model.errors import BadInput, GuestsFailed


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("g1:/tmp/a", RemotePath("g1", "/tmp/a")),  # noqa: S108 - a path in a guest
        (":a:b", RemotePath(None, "a:b")),
        (":", RemotePath(None, "")),
        ("file", Path("file")),
        ("./a:b", Path("a:b")),
        ("/x/a:b", Path("/x/a:b")),
    ],
)
def test_a_colon_before_any_slash_names_guests(text: str, place: object) -> None:
    assert parse_copy_path(text) == place


def test_a_missing_source_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="none: expected a file or a folder to copy, found none"):
        list_sources([tmp_path / "none"])


def test_two_sources_with_one_name_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a/x").mkdir(parents=True)
    (tmp_path / "b/x").mkdir(parents=True)
    with pytest.raises(BadInput, match="have the same name"):
        list_sources([tmp_path / "a/x", tmp_path / "b/x"])


def test_a_source_may_be_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list_sources(["."]) == {tmp_path.name: tmp_path}


def test_a_stream_that_ends_between_two_files_changes_nothing(tmp_path: Path) -> None:
    """Some versions of tar accept such a stream without an error."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("first"))
    command = ["sh", "-c", PUT_SCRIPT, "mark", str(tmp_path), "1", "first", "second"]
    done = subprocess.run(command, input=stream.getvalue(), capture_output=True, check=False)  # noqa: S603 - our own
    assert (done.returncode, done.stderr) == (1, b"mark\nthe copy was interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", [["sh"], ["busybox", "sh"]])
def test_a_copy_removes_only_folders_of_killed_copies(tmp_path: Path, shell: list[str]) -> None:
    """A copy's folder has the copy's process ID in its name. If no process has this ID, the copy was killed.

    Process 1 always runs. Process 2^23 cannot exist, because no process ID exceeds 2^22 (proc(5)).
    """
    here = f".virtcloud-{platform.node()}"
    kept = {f"{here}-1-running", f".virtcloud-other-{1 << 23}-x", ".virtcloud-mine", f"{here}-x", f"{here}-1x-y"}
    kept.add(f"{here}-{1 << 23}-1-x")  # from process 1 of another guest; the guest's name ends with a number
    for name in (*kept, f"{here}-{1 << 23}-killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"))
        archive.addfile(tarfile.TarInfo(LAST_MEMBER))
    command = [*shell, "-c", PUT_SCRIPT, "mark", str(tmp_path), "0", "file"]
    done = subprocess.run(command, input=stream.getvalue(), capture_output=True, check=False)  # noqa: S603 - our own
    assert (done.returncode, done.stderr) == (0, b"mark\n")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "file"}


def get(folder: Path, path: str, shell: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run the script that copies ``path`` from a guest. ``folder`` is the user's home."""
    return subprocess.run([*shell, "-c", GET_SCRIPT, "mark", path], cwd=folder, capture_output=True, check=False)  # noqa: S603 - our own


@pytest.mark.parametrize("shell", [["sh"], ["busybox", "sh"]])
@pytest.mark.parametrize(
    ("path", "name"), [("", "eva"), (".", "eva"), ("~", "eva"), ("sub/..", "eva"), ("sub/.", "sub"), ("~/sub/.", "sub")]
)
def test_a_copied_folder_has_its_name_for_any_path(tmp_path: Path, shell: list[str], path: str, name: str) -> None:
    """The paths of this test do not contain the folder's name, or do not end with the folder's name."""
    home, into = tmp_path / "eva", tmp_path / "into"
    for folder in (home / "sub", into):
        folder.mkdir(parents=True)
    (home / "sub/file").write_text("data", encoding="utf-8")
    done = get(home, path, shell)
    assert (done.returncode, done.stderr) == (0, b"mark\n")
    with receive_files(into) as unpack:
        unpack(io.BytesIO(done.stdout))
    assert [file.relative_to(into) for file in into.rglob("file")] == [
        Path(name) / ("sub/file" if name == "eva" else "file")
    ]


@pytest.mark.parametrize("shell", [["sh"], ["busybox", "sh"]])
def test_a_pattern_of_hidden_files_does_not_match_the_parent(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / ".hidden").touch()
    done = get(tmp_path, ".*", shell)
    with tarfile.open(fileobj=io.BytesIO(done.stdout), mode="r|", ignore_zeros=True) as archive:
        assert archive.getnames() == ["./.hidden"]


@pytest.mark.parametrize("path", ["/", "//", "/usr/.."])
def test_the_root_folder_is_refused(tmp_path: Path, path: str) -> None:
    done = get(tmp_path, path, ["sh"])
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.endswith(b": cannot copy the root folder; name its files and folders\n")


def test_a_stream_whose_reader_has_ended_is_closed_without_error(tmp_path: Path) -> None:
    """An open stream would later raise BrokenPipeError for its buffered bytes, which would hide the guest's error."""
    (tmp_path / "file").write_bytes(bytes(100))
    reader, writer = os.pipe()
    os.close(reader)
    errors: list[str] = []
    stream = os.fdopen(writer, "wb")
    _send_files({"file": tmp_path / "file"}, errors, stream)
    assert (stream.closed, errors) == (True, [])


def test_the_errors_of_a_guest_without_tar_are_readable(tmp_path: Path) -> None:
    """The shell's messages begin with the shell's name, which is a random number."""
    programs, ssh = tmp_path / "bin", tmp_path / "ssh"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    ssh.write_text(f'#!/bin/sh\nfor command; do :; done\nPATH={programs}\neval "$command"\n')
    ssh.chmod(0o755)
    with pytest.raises(GuestsFailed) as raised:
        get_files({"g1": [str(ssh), "guest"]}, {"g1": [str(tmp_path)]}, tmp_path / "out")
    assert raised.value.failures == {"g1": "dirname: not found; basename: not found; tar: not found"}


@pytest.mark.parametrize("name", ["$3[1]", "$3", "$3: line 0"], ids=["mksh", "without a line", "BusyBox"])
def test_the_messages_of_each_shell_lack_its_name(tmp_path: Path, name: str) -> None:
    programs, ssh = tmp_path / "bin", tmp_path / "ssh"
    programs.mkdir()
    (programs / "sh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$3" "{name}: tar: not found" >&2\nexit 1\n')
    ssh.write_text(f'#!/bin/sh\nfor command; do :; done\nPATH={programs}\neval "$command"\n')
    for program in (programs / "sh", ssh):
        program.chmod(0o755)
    with pytest.raises(GuestsFailed) as raised:
        get_files({"g1": [str(ssh), "guest"]}, {"g1": [str(tmp_path)]}, tmp_path / "out")
    assert raised.value.failures == {"g1": "tar: not found"}
