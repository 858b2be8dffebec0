"""Tests of the seed disks of QEMU guests. Independent programs (blkid, libarchive) read the disks."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from virtcloud.agent.guests.seed_images import write_seed_image
from virtcloud.model.errors import Refused

DATA = {
    "meta-data": "instance-id: c1-n1\n",
    "user-data": "#cloud-config\n# ž\n" * 1000,
    "network-config": "version: 2\n",
}


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout  # noqa: S603 - the test's commands


def test_cloud_init_can_find_the_seed_by_its_label(tmp_path: Path) -> None:
    write_seed_image(tmp_path, DATA)
    assert run("blkid", "-p", "-o", "value", "-s", "LABEL", "-s", "TYPE", str(tmp_path / "seed.iso")).split() == [
        "cidata",
        "iso9660",
    ]


@pytest.mark.parametrize("options", ["joliet,!rockridge", "!joliet,rockridge"])
def test_each_file_has_its_name_and_content(tmp_path: Path, options: str) -> None:
    if not shutil.which("bsdtar"):
        pytest.skip("NOT TESTED: bsdtar is not installed (libarchive-tools)")
    write_seed_image(tmp_path, DATA)
    image = str(tmp_path / "seed.iso")
    assert sorted(run("bsdtar", "-t", "--options", options, "-f", image).split()) == [".", *sorted(DATA)]
    assert {name: run("bsdtar", "-xO", "--options", options, "-f", image, name) for name in DATA} == DATA


def test_only_root_can_read_the_seed(tmp_path: Path) -> None:
    (tmp_path / "seed.iso").write_text("a former seed with another mode")
    write_seed_image(tmp_path, DATA)
    assert stat.S_IMODE((tmp_path / "seed.iso").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["seed.iso"]


def test_a_missing_library_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycdlib", None)
    with pytest.raises(Refused, match=r"need the Python package pycdlib: pip install"):
        write_seed_image(tmp_path, DATA)
