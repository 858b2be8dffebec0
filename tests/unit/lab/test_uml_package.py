"""The download of User-mode Linux from a newer release of Debian, with a fake apt-get."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from virtcloud.lab import apt_sources, lab_kernel, uml_kernel, uml_package

APT_GET = """#!/bin/sh
echo "$@" >> {folder}/calls
for word; do
  case "$word" in -oDir::Etc::SourceList=*) cp "${{word#*=}}" {folder}/sources ;; esac
done
case "$*" in
  *update) [ -e {folder}/network ] || {{ echo 'E: no network' >&2; exit 100; }} ;;
  *"download {wanted}") [ -e {folder}/network ] && cp {folder}/package.deb user-mode-linux_{version}_amd64.deb ;;
  *) exit 100 ;;
esac
"""
TARGETS = """\
http://mirror.example/debian|bookworm|Debian|main|$(SIGNED_BY)
http://mirror.example/debian|bookworm|Debian|contrib|$(SIGNED_BY)
http://mirror.example/debian|bookworm-updates|Debian|main|$(SIGNED_BY)
http://security.example/debian-security|bookworm-security|Debian|main|$(SIGNED_BY)
https://packages.example|bookworm|Example|main|$(SIGNED_BY)
"""
SOURCE = "deb [signed-by=/usr/share/keys.gpg lang=none target=Packages] http://mirror.example/debian forky main\n"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(uml_kernel, "INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(uml_kernel, "UNPACKED", tmp_path / "unpacked")
    monkeypatch.setattr(lab_kernel, "missing_features", lambda: list(lab_kernel.FEATURES))
    monkeypatch.setattr(apt_sources, "newer_source", lambda _: SOURCE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    add_kernel(tmp_path / "installed", "6.1.176")
    (tmp_path / "network").touch()
    return tmp_path


def add_kernel(root: Path, release: str, code: int = 0) -> None:
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/lib/uml/modules" / release).mkdir(parents=True)
    (root / "usr/bin/linux.uml").write_text(f"#!/bin/sh\necho {release}\nexit {code}\n")
    (root / "usr/bin/linux.uml").chmod(0o755)


def offer_package(folder: Path, version: str, wanted: str, code: int = 0) -> None:
    tree = folder / "tree"
    add_kernel(tree, "7.2.7", code)
    (tree / "DEBIAN").mkdir(mode=0o755)
    (tree / "DEBIAN/control").write_text("Package: u\nVersion: 1\nArchitecture: all\nMaintainer: n\nDescription: u\n")
    (tree / "usr/share/doc").mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-b", tree, folder / "package.deb"], check=True, capture_output=True)  # noqa: S603, S607
    (folder / "bin").mkdir()
    (folder / "bin/apt-get").write_text(APT_GET.format(folder=folder, wanted=wanted, version=version))
    (folder / "bin/apt-get").chmod(0o755)


def test_labs_use_the_downloaded_kernel(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer_package(machine, "7.2um1", "user-mode-linux=7.2um1")
    assert uml_package.main() == 0
    kernel = uml_kernel.find_uml_kernel()
    assert kernel == uml_kernel.UmlKernel(machine / "unpacked/7.2um1", "7.2.7")
    assert "setup: labs use User-mode Linux 7.2.7" in capsys.readouterr().out
    assert sorted(path.name for path in (machine / "unpacked/7.2um1/usr").iterdir()) == ["bin", "lib"]


def test_apt_uses_only_the_signed_source_and_its_own_lists(machine: Path) -> None:
    offer_package(machine, "7.2um1", "user-mode-linux=7.2um1")
    uml_package.main()
    assert (machine / "sources").read_text() == SOURCE
    calls = (machine / "calls").read_text().splitlines()
    assert all(" -oDir::State::Lists=/" in call and "/none " in call for call in calls)


def test_another_version_is_used_if_the_preferred_version_is_gone(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer_package(machine, "7.3um1", "user-mode-linux")
    uml_package.main()
    assert uml_kernel.find_uml_kernel() == uml_kernel.UmlKernel(machine / "unpacked/7.3um1", "7.2.7")
    assert "setup: Debian forky has 7.3um1 instead of 7.2um1" in capsys.readouterr().out


def test_a_present_kernel_needs_no_network(machine: Path) -> None:
    offer_package(machine, "7.2um1", "user-mode-linux=7.2um1")
    uml_package.main()
    (machine / "calls").unlink()
    assert uml_package.main() == 0
    assert not (machine / "calls").exists()


def test_the_remains_of_killed_downloads_are_removed(machine: Path) -> None:
    offer_package(machine, "7.2um1", "user-mode-linux=7.2um1")
    add_kernel(machine / "unpacked/.7.2um1.killed", "7.2.7")
    assert uml_package.main() == 0
    assert [path.name for path in (machine / "unpacked").iterdir()] == ["7.2um1"]


def test_a_failed_download_is_a_warning(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer_package(machine, "7.2um1", "user-mode-linux=7.2um1")
    (machine / "network").unlink()
    assert uml_package.main() == 0
    message = capsys.readouterr().err
    assert message.startswith(
        "setup: warning: user-mode-linux could not be downloaded from Debian forky: E: no network; "
    )
    assert message.endswith("; labs use User-mode Linux 6.1.176, which takes twice as much processor time\n")
    assert list((machine / "unpacked").iterdir()) == []


def test_without_any_kernel_the_warning_names_the_package(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(machine / "installed")
    offer_package(machine, "7.2um1", "user-mode-linux=7.2um1")
    (machine / "network").unlink()
    assert uml_package.main() == 0
    assert capsys.readouterr().err.endswith("; User-mode Linux is missing: apt-get install user-mode-linux\n")


def test_a_kernel_that_does_not_run_here_is_not_stored(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offer_package(machine, "7.2um1", "user-mode-linux=7.2um1", code=1)
    assert uml_package.main() == 0
    assert "linux.uml does not run on this machine" in capsys.readouterr().err
    assert list((machine / "unpacked").iterdir()) == []


def test_a_lab_on_the_machines_own_kernel_downloads_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_kernel, "missing_features", list)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    shutil.rmtree(machine / "installed")
    assert uml_package.main() == 0
    assert not (machine / "unpacked").exists()


def test_the_newer_release_comes_from_the_same_mirror() -> None:
    assert apt_sources.format_newer_source(TARGETS, "bookworm", "forky", Path("/usr/share/keys.gpg")) == SOURCE
