import os
import platform
import tarfile
import threading
import time
from pathlib import Path

import pytest

from virtcloud.lab import LabEvent, LabImpossible, apt_sources, boot_disk, debian_image
from virtcloud.model.errors import BadInput

MMDEBSTRAP = """#!/bin/sh
# Stands for mmdebstrap: records the call, waits while the file "wait" exists, and creates the root folder.
echo "$@" >> {folder}/calls; cat > {folder}/sources
sleep {seconds}
while [ -e {folder}/wait ]; do sleep 0.02; done
for target; do case "$target" in *rootfs) mkdir -p "$target/etc"; touch "$target/etc/hosts" ;; esac; done
exit {code}
"""
TARGETS = """\
http://mirror.example/debian|bookworm|Debian|main|$(SIGNED_BY)
http://mirror.example/debian|bookworm-updates|Debian|main|/etc/apt/keyrings/site.gpg
http://mirror.example/debian|bookworm-backports|Debian|main|$(SIGNED_BY)
http://mirror.example/debian|trixie|Debian|main|$(SIGNED_BY)
https://packages.example|bookworm|Example|stable|$(SIGNED_BY)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(debian_image, "CACHE", str(folder))
    monkeypatch.setattr(debian_image, "BUILD_LOG", folder / "log")
    monkeypatch.setattr(debian_image, "LOCK", folder / "lock")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(apt_sources, "release", lambda: "bookworm")
    monkeypatch.setattr(apt_sources, "debian_sources", lambda: "deb http://mirror.example/debian bookworm main\n")
    monkeypatch.setattr(apt_sources, "transfer_options", lambda: ['Acquire::http::Proxy "http://proxy.example"'])
    return folder


def install_mmdebstrap(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0, seconds: float = 0) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin/mmdebstrap"
    program.write_text(MMDEBSTRAP.format(folder=folder, code=code, seconds=seconds))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_an_image_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mmdebstrap(tmp_path, monkeypatch)
    events: list[LabEvent] = []
    roots = {debian_image.ensure_debian_root(debian_image.LIGHT, events.append) for _ in range(2)}
    assert [(root / "etc/hosts").exists() for root in roots] == [True]
    assert (tmp_path / "calls").read_text().count("--variant=minbase") == 1
    assert [event.state for event in events] == ["begin", "note", "done"]


def test_builders_of_an_image_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mmdebstrap(tmp_path, monkeypatch, seconds=0.3)
    builders = [
        threading.Thread(target=debian_image.ensure_debian_root, args=(debian_image.LIGHT, lambda _: None))
        for _ in range(3)
    ]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert (tmp_path / "calls").read_text().count("--variant=minbase") == 1


def test_an_image_is_built_from_apts_sources_and_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mmdebstrap(tmp_path, monkeypatch)
    debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)
    assert (tmp_path / "sources").read_text() == "deb http://mirror.example/debian bookworm main\n"
    assert '--aptopt=Acquire::http::Proxy "http://proxy.example"' in (tmp_path / "calls").read_text()


def test_a_failed_build_leaves_no_image(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mmdebstrap(tmp_path, monkeypatch, code=25)
    with pytest.raises(LabImpossible, match="mmdebstrap ended with exit code 25; check that apt-get update succeeds"):
        debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)
    assert sorted(path.name for path in cache.iterdir()) == ["lock", "log"]


def test_a_full_disk_is_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device", "tree")

    install_mmdebstrap(tmp_path, monkeypatch)
    monkeypatch.setattr(debian_image, "install_packages", fill)
    with pytest.raises(LabImpossible, match=r"could not be built in .*No space left on device"):
        debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)


def test_the_next_build_removes_a_killed_build(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "debian-light-0.1.new/rootfs").mkdir(parents=True)
    install_mmdebstrap(tmp_path, monkeypatch)
    debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)
    assert not list(cache.glob("*.new"))


def test_a_build_waits_for_mmdebstrap_of_a_killed_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mmdebstrap(tmp_path, monkeypatch)
    (tmp_path / "wait").touch()
    builder = os.fork()
    if builder == 0:
        debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)
        os._exit(0)
    while not (tmp_path / "sources").exists():
        time.sleep(0.01)
    os.kill(builder, 9)
    os.waitpid(builder, 0)
    events: list[LabEvent] = []

    def end_wait(event: LabEvent) -> None:
        events.append(event)
        (tmp_path / "wait").unlink(missing_ok=True)

    debian_image.ensure_debian_root(debian_image.LIGHT, end_wait)
    assert "another process builds a Debian image" in events[0].text


def test_each_recipe_and_release_has_its_own_folder() -> None:
    recipe = debian_image.DebianRecipe("debian-light", (*debian_image.PACKAGES, "gcc"), debian_image.CUSTOMIZE, 0o700)
    assert recipe.folder("bookworm") != debian_image.LIGHT.folder("bookworm")
    assert debian_image.LIGHT.folder("trixie") != debian_image.LIGHT.folder("bookworm")


def test_other_users_cannot_enter_a_root_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mmdebstrap(tmp_path, monkeypatch)
    assert debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None).parent.stat().st_mode & 0o777 == 0o700


def test_sources_are_those_of_one_debian_release() -> None:
    assert apt_sources.format_sources(TARGETS, "bookworm", Path("/usr/share/keyrings/debian.gpg")) == (
        "deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/debian bookworm main\n"
        "deb [signed-by=/etc/apt/keyrings/site.gpg] http://mirror.example/debian bookworm-updates main\n"
    )


def test_a_boot_disk_begins_with_grub_and_one_active_partition() -> None:
    sectors = boot_disk.join_boot_sectors(b"B" * 512, b"core", 2, b"disk")
    partition = sectors[446:462]
    assert (sectors[:440], sectors[440:444], sectors[510:512]) == (b"B" * 440, b"disk", b"\x55\xaa")
    assert (partition[0], partition[4]) == (0x80, 0x83)
    assert [int.from_bytes(partition[at : at + 4], "little") for at in (8, 12)] == [2048, 2048]
    assert sectors[512:] == b"core"


def test_a_core_image_never_overwrites_the_partition() -> None:
    with pytest.raises(ValueError, match=r"expected at most 1048064 bytes, got 1048065"):
        boot_disk.join_boot_sectors(b"", bytes(1048065), 2, b"disk")


def test_an_existing_file_is_never_replaced_by_an_image(tmp_path: Path) -> None:
    (tmp_path / "mine.tar").write_text("mine")
    with pytest.raises(BadInput, match=r"mine.tar: expected a new file, but the file exists"):
        debian_image.write_image(tmp_path / "mine.tar", lambda _: None)
    assert (tmp_path / "mine.tar").read_text() == "mine"


def test_a_missing_folder_is_found_before_the_image_is_built(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none/mine.tar: expected a folder that you can write, got .*/none"):
        debian_image.write_image(tmp_path / "none/mine.tar", _refuse_events)


def _refuse_events(event: LabEvent) -> None:
    raise AssertionError(event)


def test_the_suffix_selects_the_kind_of_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mmdebstrap(tmp_path, monkeypatch)
    debian_image.write_image(tmp_path / "debian.tar", lambda _: None)
    with tarfile.open(tmp_path / "debian.tar") as archive:
        assert "./etc/hosts" in archive.getnames()
    with pytest.raises(BadInput, match=r"debian.iso: expected a file name that ends with .tar or .qcow2"):
        debian_image.write_image(tmp_path / "debian.iso", lambda _: None)
