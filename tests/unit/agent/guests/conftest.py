from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_machine import FakeGroups, FakeHypervisor, FakeRoots
from support.hosts.container_images import write_container_image
from support.hosts.image_host import FileServer, Host, serve_file

from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.model.element import Hypervisor


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_container_image(tmp_path)
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud/vmlinuz").touch()
    (tmp_path / "cloud/image.yaml").write_text("kind: qemu\nkernel: vmlinuz\n")
    return tmp_path


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def guests(images: Path, hypervisor: FakeHypervisor, pauses: list[float]) -> LocalGuests:
    settings = GuestSettings(images, images / "logs", "x86_64", stop_grace_s=0.3)
    return LocalGuests(
        {Hypervisor.LXC: hypervisor}, settings, pauses.append, FakeRoots(images / "logs"), groups=FakeGroups()
    )


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_file() as served:
        yield served


@pytest.fixture
def host(tmp_path: Path, server: FileServer) -> Iterator[Host]:
    host = Host(tmp_path, server)
    yield host
    host.end_fetches()
