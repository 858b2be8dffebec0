from pathlib import Path

import pytest

from virtcloud.client.guest_copies import GuestPlace, list_sources, parse_place
from virtcloud.model.errors import BadInput


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("g1:/tmp/a", GuestPlace("g1", "/tmp/a")),  # noqa: S108 - a path in a guest
        (":a:b", GuestPlace(None, "a:b")),
        (":", GuestPlace(None, "")),
        ("file", Path("file")),
        ("./a:b", Path("a:b")),
        ("/x/a:b", Path("/x/a:b")),
    ],
)
def test_a_colon_before_the_first_slash_is_a_place_in_guests(text: str, place: object) -> None:
    assert parse_place(text) == place


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
