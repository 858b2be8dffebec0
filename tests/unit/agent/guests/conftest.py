"""Fixtures of the tests of guests: images, and a server and a cache of images."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from image_host import FileServer, Host, serve_file


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "busybox/rootfs").mkdir(parents=True)
    (tmp_path / "busybox/image.yaml").write_text("kind: lxc\n")
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud/vmlinuz").touch()
    (tmp_path / "cloud/image.yaml").write_text("kind: qemu\nkernel: vmlinuz\n")
    return tmp_path


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_file() as served:
        yield served


@pytest.fixture
def host(tmp_path: Path, server: FileServer) -> Host:
    return Host(tmp_path, server)
