import email
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtcloud import __version__

ROOT = Path(__file__).parents[3]
WHEEL = f"virtcloud-{__version__}-py3-none-any.whl"
LAB_WHEEL = f"virtcloud_lab-{__version__}-py3-none-any.whl"
SDIST = f"virtcloud-{__version__}.tar.gz"
LAB = ("virtcloud/lab/", "virtcloud/testing/")


def build(source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target"]
    subprocess.run([*command, "sdist", "--target", "wheel"], cwd=source, check=True, capture_output=True)  # noqa: S603 - our own
    lab = source / "setup/lab_package"
    subprocess.run([*command, "wheel"], cwd=lab, check=True, capture_output=True)  # noqa: S603 - our own
    return folder


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("archives"))


def list_modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if ".dist-info/" not in name and ".data/" not in name}


def test_the_sdist_builds_the_same_archives_elsewhere(archives: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(archives / SDIST, tmp_path / "elsewhere")
    again = build(tmp_path / "elsewhere" / SDIST.removesuffix(".tar.gz"), tmp_path / "again")
    names = sorted(path.name for path in archives.iterdir())
    assert names == sorted([WHEEL, LAB_WHEEL, SDIST])
    assert [name for name in names if (archives / name).read_bytes() != (again / name).read_bytes()] == []


def test_a_host_gets_neither_lab_nor_test_doubles(archives: Path) -> None:
    assert [name for name in list_modules(archives / WHEEL) if name.startswith((*LAB, "tests/"))] == []


def test_the_wheels_contain_every_module_once(archives: Path) -> None:
    product, lab = list_modules(archives / WHEEL), list_modules(archives / LAB_WHEEL)
    source = set(modules("virtcloud", "pbs_hooks", "sbf_service", "sbf_command"))
    assert {name for name in lab if not name.startswith(LAB)} == set()
    assert (product & lab, source - product - lab) == (set(), set())


def modules(*packages: str) -> Iterator[str]:
    for package in packages:
        yield from (str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))


def test_the_extra_lab_requires_the_same_version(archives: Path) -> None:
    assert f"virtcloud-lab=={__version__}; extra == 'lab'" in read_requirements(archives / WHEEL)
    assert f"virtcloud[agent,sbf]=={__version__}" in read_requirements(archives / LAB_WHEEL)


def read_requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        metadata = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(file.read(metadata)).get_all("Requires-Dist", [])


def test_the_wheel_contains_man_pages_and_completion_scripts(archives: Path) -> None:
    with zipfile.ZipFile(archives / WHEEL) as file:
        data = {name.partition(".data/data/")[2] for name in file.namelist()}
    assert data > {"share/man/man1/virtcloud.1", "share/bash-completion/completions/sbf"}
