import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.hosts.container_images import write_container_image

from virtcloud.agent.guests.images import LxcImage, read_image
from virtcloud.model.errors import Refused


def write_image(folder: Path, text: str) -> Path:
    write_container_image(folder, text=text)
    return folder


def test_an_images_files_are_in_its_folder(tmp_path: Path) -> None:
    image = read_image(write_image(tmp_path, "kind: lxc\nrootfs: rootfs\ninit: sbin/init\n"), "busybox")
    assert image == LxcImage(kind="lxc", rootfs=tmp_path / "busybox/rootfs", init="sbin/init")


def test_a_description_is_utf8_in_every_locale(tmp_path: Path) -> None:
    text = "# kořen\nkind: lxc\nrootfs: rootfs\ninit: sbin/init\n"
    (write_container_image(tmp_path) / "image.yaml").write_bytes(text.encode("utf-8-sig"))
    program = f"from virtcloud.agent.guests.images import *; print(read_image(Path({str(tmp_path)!r}), 'busybox').init)"
    latin = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    found = subprocess.run([sys.executable, "-c", program], env=latin, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    assert found.stdout == "sbin/init\n"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"its rootfs .*/busybox/root does not exist"):
        read_image(write_image(tmp_path, "kind: lxc\nrootfs: root\n"), "busybox")


def test_a_missing_init_is_named(tmp_path: Path) -> None:
    image = write_container_image(tmp_path)
    (image / "rootfs/sbin/init").unlink()
    with pytest.raises(Refused) as refused:
        read_image(tmp_path, "busybox")
    assert str(refused.value) == (
        f"image busybox: expected the program /sbin/init in its rootfs {image}/rootfs, found none: install an init "
        f"there, or correct {image}/image.yaml"
    )


@pytest.mark.parametrize(("target", "found"), [("/lib/systemd/systemd", True), ("/etc/passwd", False)])
def test_a_link_to_an_init_is_resolved_in_the_image(tmp_path: Path, target: str, found: bool) -> None:
    root = write_container_image(tmp_path) / "rootfs"
    (root / "sbin/init").unlink()
    (root / "sbin/init").symlink_to(target)
    (root / "lib/systemd").mkdir(parents=True)
    (root / "lib/systemd/systemd").touch()
    with nullcontext() if found else pytest.raises(Refused, match="expected the program /sbin/init"):
        assert read_image(tmp_path, "busybox").kind == "lxc"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: docker\n", r"image\.yaml:1: kind: expected 'lxc' or 'qemu', got 'docker'"),
        ("rootfs: x\nkind: qcow2\n", r"image\.yaml:2: kind: expected 'lxc' or 'qemu', got 'qcow2'"),
        ("rootfs: x\n", r"image\.yaml:1: kind: expected a value"),
        ("kind: qemu\n", r"image\.yaml:1: kernel: expected a kernel, a disk, or both"),
        ("kind: lxc\nroot: x\n", r"image\.yaml:2: root: unknown key"),
        ("[", r"image\.yaml:1: not YAML"),
        ("- lxc\n", r"image\.yaml:1: expected a mapping with the keys kind"),
    ],
)
def test_a_malformed_description_is_refused_with_a_line_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refused, match=f"^image busybox: its description is malformed: .*{message}"):
        read_image(write_image(tmp_path, text), "busybox")


def test_a_deeply_nested_description_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"image busybox: .*image\.yaml: expected YAML with fewer nested levels"):
        read_image(write_image(tmp_path, "[" * 5000), "busybox")


def test_a_binary_description_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path, "")
    (tmp_path / "busybox/image.yaml").write_bytes(b"\xff\xfe\x00kind")
    with pytest.raises(Refused, match="image busybox: its description is malformed"):
        read_image(tmp_path, "busybox")
