import io
import platform
import subprocess
import tarfile
from pathlib import Path

import pytest

from virtcloud.client.guest_copies import LAST_MEMBER, PUT_SCRIPT, RemotePath, list_sources, parse_copy_path
from virtcloud.model.errors import BadInput


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


def test_a_folder_may_be_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
