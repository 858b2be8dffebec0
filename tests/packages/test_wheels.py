"""Tests of the wheels, installed into empty environments as on a machine without a network."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.installation.package_builds import ROOT

from virtcloud import __version__

pytestmark = pytest.mark.timeout(900)  # the first test may build all wheels
NEWER = "98.7.6"
START_S = 300.0  # the first start compiles all modules; on a busy machine this took more than a minute


@pytest.fixture(scope="module")
def wheels(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    run("tar", "-C", folder, "-xf", archive)
    build = (sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target", "wheel")
    subprocess.run(build, cwd=ROOT / "setup/lab_package", check=True, capture_output=True)  # noqa: S603 - our own
    return folder


def install(wheels: Path, environment: Path, requirement: str) -> Path:
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin/python")
    options = ("-q", "--disable-pip-version-check", "--no-index", "--no-compile")
    run(*pip, "install", *options, "--find-links", wheels, requirement)
    return environment / "bin"


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_sbf_installed_into_an_empty_environment_answers(wheels: Path, tmp_path: Path) -> None:
    programs = install(wheels, tmp_path / "env", "virtcloud[sbf]")
    assert run(programs / "virtcloud", "--version").split()[-1] == __version__
    assert run(programs / "sbf", "--version").split()[-1] == __version__
    with running_service(programs, tmp_path) as socket:
        assert "operator" in run(programs / "virtcloud", "--url", f"unix://{socket}", "whoami")


@contextmanager
def running_service(programs: Path, folder: Path) -> Iterator[Path]:
    socket = folder / "sbf.sock"
    config = folder / "sbf.toml"
    config.write_text(f'listen = "127.0.0.1:0"\nsocket = "{socket}"\ndatabase = "sqlite:///{folder}/sbf.db"\n')
    with (folder / "log").open("w") as log:
        service = subprocess.Popen([programs / "sbf", "serve", "--config", config], stdout=log, stderr=log)  # noqa: S603
    try:
        end = time.monotonic() + START_S
        while not socket.is_socket():
            assert service.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield socket
    finally:
        service.terminate()
        service.wait(30)


def test_an_agents_environment_has_no_library_of_sbf(wheels: Path, tmp_path: Path) -> None:
    programs = install(wheels, tmp_path / "env", "virtcloud[agent]")
    frozen = run(sys.executable, "-m", "pip", "--python", programs / "python", "freeze")
    installed = {line.partition("==")[0].lower() for line in frozen.splitlines()}
    assert installed > {"virtcloud", "libvirt-python", "pycdlib"}
    assert installed & {"virtcloud-lab", "fastapi", "sqlalchemy", "netmiko", "napalm", "psycopg", "uvicorn"} == set()
    settings = tmp_path / "agent.toml"
    settings.write_text('element = "h1"\nsbf = "http://127.0.0.1:1"\ntoken_file = "/nonexistent"\n')
    checked = subprocess.run(  # noqa: S603 - our own
        [programs / "virtcloud", "doctor", "--host", "--config", settings], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (1, "")


def test_the_pip_commands_of_the_upgrade_page_work(wheels: Path, tmp_path: Path) -> None:
    """The folder with the wheels of the former version still exists."""
    programs = install(wheels, tmp_path / "env", "virtcloud")
    (tmp_path / "wheels").symlink_to(wheels)
    run("tar", "-C", write_newer_wheels(wheels, tmp_path / "newer"), "-hcf", tmp_path / "virtcloud-wheels.tar", ".")
    page = (ROOT / "docs/how-to/upgrade.md").read_text().partition("### With pip")[2]
    lines = re.findall(r"^    (.*(?:tar -C wheels|pip install).*)$", page, re.MULTILINE)
    pip = f"{sys.executable} -m pip --python {programs}/python install --disable-pip-version-check"
    script = "\n".join(("set -e", *lines)).replace("/opt/virtcloud/bin/pip install", pip).replace("[sbf]", "")
    run("env", f"HOME={tmp_path}", "sh", "-c", script)
    assert len(lines) == 2
    assert run(programs / "virtcloud", "--version").split()[-1] == NEWER


def write_newer_wheels(wheels: Path, folder: Path) -> Path:
    """Write the wheels to a folder, with a higher version of virtcloud. Return the folder."""
    folder.mkdir()
    for wheel in wheels.glob("*.whl"):
        if not wheel.name.startswith("virtcloud"):
            (folder / wheel.name).symlink_to(wheel)
    (wheel,) = wheels.glob("virtcloud-*.whl")
    newer = folder / wheel.name.replace(__version__, NEWER)
    with ZipFile(wheel) as former, ZipFile(newer, "w") as written:
        for name in former.namelist():
            content = former.read(name)
            if ".dist-info/" in name or name == "virtcloud/__init__.py":
                content = content.replace(__version__.encode(), NEWER.encode())
            written.writestr(name.replace(__version__, NEWER), content)
    return folder


def test_the_extra_lab_installs_the_lab(wheels: Path, tmp_path: Path) -> None:
    programs = install(wheels, tmp_path / "env", "virtcloud[lab]")
    assert "virtcloud lab up" in run(programs / "virtcloud", "lab", "up", "--help")
    run(programs / "python", "-c", "import virtcloud.testing.fakepbs, virtcloud.lab.prerequisites")
