"""Tests of the receipt of files from an untrusted guest."""

import io
import platform
import tarfile
from pathlib import Path

import pytest

from virtcloud.client.received_files import receive_files
from virtcloud.model.errors import Refused


def make_stream(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """Return a tar stream. Each member has a name, a type, and the target of a link ("" for other types)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o6755
            archive.addfile(member)
    return io.BytesIO(stream.getvalue())


def receive(target: Path, *members: tuple[str, bytes, str]) -> None:
    with receive_files(target) as unpack:
        unpack(make_stream(*members))


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", tarfile.REGTYPE, "")],
        [("/etc/evil", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "{outside}"), ("link/evil", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "{outside}/evil"), ("link", tarfile.REGTYPE, "")],
        [("evil", tarfile.LNKTYPE, "../outside/secret")],
        [("evil", tarfile.CHRTYPE, "")],
        [("evil", tarfile.FIFOTYPE, "")],
    ],
)
def test_no_file_is_written_outside_the_target_folder(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "secret").touch()
    sent = [(name, kind, link.format(outside=outside)) for name, kind, link in members]
    with pytest.raises((Refused, OSError)):
        receive(target, *sent)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert list(target.iterdir()) == []


def test_a_link_of_an_earlier_copy_is_not_followed(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    receive(target, ("folder", tarfile.SYMTYPE, str(outside)))
    with pytest.raises(Refused, match="target/folder exists and is no folder"):
        receive(target, ("folder", tarfile.DIRTYPE, ""), ("folder/evil", tarfile.REGTYPE, ""))
    assert list(outside.iterdir()) == []


def test_hard_links_to_symbolic_links_have_the_same_target(tmp_path: Path) -> None:
    receive(tmp_path, ("a", tarfile.SYMTYPE, "to"), ("folder/b", tarfile.LNKTYPE, "a"))
    assert [(tmp_path / name).readlink() for name in ("a", "folder/b")] == [Path("to"), Path("to")]


def test_special_bits_of_modes_are_removed(tmp_path: Path) -> None:
    receive(tmp_path / "new", ("program", tarfile.REGTYPE, ""))
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o755


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="/evil"):
        receive(tmp_path / "new", ("file", tarfile.REGTYPE, ""), ("/evil", tarfile.REGTYPE, ""))
    assert list(tmp_path.iterdir()) == []


def test_several_sources_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="new is no folder"):
        receive(tmp_path / "new", ("a", tarfile.REGTYPE, ""), ("b", tarfile.REGTYPE, ""))


def test_a_copy_removes_only_folders_of_killed_copies(tmp_path: Path) -> None:
    """A copy's folder has the copy's process ID in its name. If no process has this ID, the copy was killed.

    Process 1 always runs. Process 2^23 cannot exist, because no process ID exceeds 2^22 (proc(5)).
    """
    here = f".virtcloud-{platform.node()}"
    kept = {f"{here}-1-running", f".virtcloud-other-{1 << 23}-x", ".virtcloud-mine", f"{here}-x", f"{here}-²-x"}
    kept.add(f"{here}-{1 << 23}-1-x")  # from process 1 of another computer; the computer's name ends with a number
    for name in (*kept, f"{here}-{1 << 23}-killed", f"{here}-{1 << 80}-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    receive(tmp_path, ("file", tarfile.REGTYPE, ""))
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "file"}


@pytest.mark.parametrize("fault", [{"mtime": "1e300"}, {"mtime": "nan"}, {"path": "a\0b"}])
def test_an_invalid_time_or_name_is_refused(tmp_path: Path, fault: dict[str, str]) -> None:
    """An unexpected error would also end the copies from all other guests."""
    stream, member = io.BytesIO(), tarfile.TarInfo("file")
    member.pax_headers = fault
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(Refused, match="invalid name or time"), receive_files(tmp_path) as unpack:
        unpack(io.BytesIO(stream.getvalue()))
    assert list(tmp_path.iterdir()) == []
