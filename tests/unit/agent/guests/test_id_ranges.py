from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from virtcloud.agent.guests.id_ranges import END, IDS_PER_GUEST, IdRanges
from virtcloud.model.errors import Refused

FIRST = 0x10000000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_freed_range_is_allocated_again(folder: Path) -> None:
    ranges = IdRanges(folder)
    assert [ranges.ensure(name) for name in ("a", "b", "a")] == [FIRST, FIRST + 65536, FIRST]
    (folder / "a/ids").unlink()
    assert ranges.ensure("c") == FIRST


def test_a_changed_setting_keeps_recorded_ranges(folder: Path) -> None:
    IdRanges(folder).ensure("a")
    ranges = IdRanges(folder, FIRST + 4096)
    assert (ranges.ensure("a"), ranges.ensure("b")) == (FIRST, FIRST + 4096 + 65536)


def test_a_host_without_free_ranges_refuses_a_guest(folder: Path) -> None:
    ranges = IdRanges(folder, END - 2 * IDS_PER_GUEST)
    ranges.ensure("a")
    with pytest.raises(
        Refused, match=r"no user IDs are free for guest b: .* ranges in use \(guests: 1\); set a lower first_id"
    ):
        ranges.ensure("b")


def test_a_broken_record_is_replaced(folder: Path) -> None:
    (folder / "a/ids").write_text("half")
    assert IdRanges(folder).ensure("a") == FIRST


def test_guests_that_start_together_get_separate_ranges(folder: Path) -> None:
    ranges, names = IdRanges(folder), [f"g{number}" for number in range(20)]
    for name in names:
        (folder / name).mkdir()
    with ThreadPoolExecutor(20) as pool:
        assert sorted(pool.map(ranges.ensure, names)) == [FIRST + number * IDS_PER_GUEST for number in range(20)]
