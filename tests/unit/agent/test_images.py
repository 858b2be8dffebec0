from pathlib import Path

import pytest

from virtcloud.agent.images import LxcImage, read_image
from virtcloud.model.errors import BadDocument, Refused


def write(folder: Path, text: str) -> Path:
    (folder / "busybox/rootfs").mkdir(parents=True)
    (folder / "busybox/image.yaml").write_text(text)
    return folder


def test_files_of_an_image_are_in_its_folder(tmp_path: Path) -> None:
    image = read_image(write(tmp_path, "kind: lxc\nrootfs: rootfs\ninit: /bin/init\n"), "busybox")
    assert image == LxcImage(kind="lxc", rootfs=tmp_path / "busybox/rootfs", init="/bin/init")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"its rootfs .*/busybox/root does not exist"):
        read_image(write(tmp_path, "kind: lxc\nrootfs: root\n"), "busybox")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: docker\n", r"image\.yaml:1: kind: expected 'lxc', got 'docker'"),
        ("kind: qemu\n", r"image\.yaml:1: kernel: expected this key"),
        ("kind: lxc\nroot: x\n", r"image\.yaml:2: root: expected no such key"),
        ("[", r"image\.yaml:1: not YAML"),
    ],
)
def test_a_malformed_description_is_told_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(BadDocument, match=fault):
        read_image(write(tmp_path, text), "busybox")
