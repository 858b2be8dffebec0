import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.hosts.container_images import write_container_image

from virtcloud.agent.guests.images import describe_readers
from virtcloud.cli import host, main


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with three images.

    All users may use the first image. A file of the second is missing. Only the owner may read the third.
    """
    folder = Path(tempfile.mkdtemp())  # other users cannot read pytest's tmp_path
    yield _create_images(folder)
    shutil.rmtree(folder)


def _create_images(tmp_path: Path) -> Path:
    for name, text, mode in (
        ("debian12", "kind: qemu\nkernel: vmlinuz\n", 0o644),
        ("broken", "kind: qemu\nkernel: gone\n", 0o644),
        ("secret", "kind: lxc\n", 0o600),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "image.yaml").write_text(text)
        (tmp_path / name / "image.yaml").chmod(mode)
    (tmp_path / "debian12" / "vmlinuz").touch()
    (tmp_path / "secret" / "rootfs" / "sbin").mkdir(parents=True)
    (tmp_path / "secret" / "rootfs" / "sbin" / "init").touch()
    (tmp_path / "lost+found").mkdir()
    for path in (tmp_path, *tmp_path.iterdir()):
        path.chmod(0o755)
    return tmp_path


def list_images(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["image", "list", *arguments])


def test_an_image_without_an_init_is_listed_with_its_fault(tmp_path: Path) -> None:
    image = write_container_image(tmp_path)
    (image / "rootfs/sbin/init").unlink()
    (found,) = json.loads(list_images("--images", str(tmp_path), "--json").stdout)
    assert found["trouble"].startswith(f"image busybox: expected the program /sbin/init in its rootfs {image}/rootfs")


def test_images_are_listed_with_kind_and_permitted_users(folder: Path) -> None:
    rows = [line.split(maxsplit=3) for line in list_images("--images", str(folder)).stdout.splitlines()]
    owner = describe_readers(folder / "secret" / "image.yaml")
    assert [row[:3] for row in rows[2:]] == [["debian12", "qemu", "everybody"], ["secret", "lxc", owner]]


def test_a_faulty_image_is_listed_with_its_error(folder: Path) -> None:
    first = json.loads(list_images("--images", str(folder), "--json").stdout)[0]
    assert (first["name"], first["kind"], first["readable"]) == ("broken", None, True)
    assert first["trouble"].startswith(f"image broken: its kernel {folder}/broken/gone does not exist")


@pytest.mark.parametrize(
    ("mode", "folder_mode", "expected"),
    [(0o644, 0o755, "everybody"), (0o640, 0o755, "group"), (0o600, 0o755, "alone"), (0o644, 0o750, "group"),
     (0o644, 0o700, "alone"), (0o604, 0o750, "alone")],
)  # fmt: skip
def test_an_image_is_usable_by_readers_of_its_description(
    folder: Path, mode: int, folder_mode: int, expected: str
) -> None:
    path = folder / "secret" / "image.yaml"
    path.chmod(mode)
    path.parent.chmod(folder_mode)
    readers = describe_readers(path)
    assert readers.replace("everybody", "").startswith("group ") == (expected == "group")
    assert (readers == "everybody") == (expected == "everybody")


def list_images_as_nobody(folder: Path) -> dict[str, Any]:
    """Return the images in ``folder`` by name, as a user without rights sees them."""
    os.seteuid(65534)
    try:
        return {image["name"]: image for image in json.loads(list_images("--images", str(folder), "--json").stdout)}
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change its user id")
def test_a_closed_root_file_system_of_an_image_is_no_fault(folder: Path) -> None:
    """Only the agent must be able to read the root file system."""
    (folder / "secret/image.yaml").chmod(0o644)
    (folder / "secret/rootfs").chmod(0o700)
    images = list_images_as_nobody(folder)
    assert (images["secret"]["kind"], images["secret"]["trouble"]) == ("lxc", None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change its user id")
def test_an_image_that_the_caller_may_not_use_is_marked(folder: Path) -> None:
    (folder / "secret").chmod(0o700)
    images = list_images_as_nobody(folder)
    assert (images["secret"]["readable"], images["secret"]["kind"], images["debian12"]["readable"]) == (
        False,
        None,
        True,
    )


def test_the_default_folder_is_from_the_agents_settings(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "agent.toml"
    settings.write_text(f'element = "h1"\nsbf = "unix:///x"\nimages = "{folder}"\n')
    monkeypatch.setattr(host, "AGENT_SETTINGS_FILE", settings)
    assert [image["name"] for image in json.loads(list_images("--json").stdout)] == ["broken", "debian12", "secret"]


def test_a_missing_folder_is_bad_input(tmp_path: Path) -> None:
    result = list_images("--images", str(tmp_path / "none"))
    assert (result.exit_code, "No such file or directory; name the folder with --images" in result.stderr) == (2, True)


def test_a_folder_without_images_is_no_error(tmp_path: Path) -> None:
    assert list_images("--images", str(tmp_path)).exit_code == 0
