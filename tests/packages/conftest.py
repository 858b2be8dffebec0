import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installation.ansible_machines import Site, running_machines
from support.installation.package_builds import HOST, PACKAGES, Built, ensure_wheels, start_build


@pytest.fixture(scope="session")
def archive() -> Path:
    return ensure_wheels()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Two builds of the Debian packages. The second build runs in another folder, with separately built wheels."""
    folder = tmp_path_factory.mktemp("built")
    with start_build(folder / "second", {}) as second:
        with start_build(folder / "first", {"WHEELS": str(ensure_wheels())}) as first:
            assert first.wait() == 0
        assert second.wait() == 0
    return Built(folder / "first", folder / "second")


@pytest.fixture(scope="session")
def machine(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    assert shutil.which("systemd-nspawn"), "these tests need systemd-nspawn: apt-get install systemd-container"
    folder = tmp_path_factory.mktemp("machine")
    with running_machines(folder, {HOST: "10.99.0.12"}) as site:
        for name in PACKAGES:
            shutil.copy(built.package(name), folder / HOST / "root/root" / f"{name}.deb")
        site.read(HOST, "dpkg --install /root/*.deb")
        yield site
