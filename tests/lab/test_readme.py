"""Tests of the code in README.md, ``docs/how-to/use-python.md`` and ``docs/how-to/use-all-guests.md``."""

import ast
import asyncio
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.lab.clusters import active, create, ended, remove, until

from virtcloud import Client, SshOptions
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.model.cluster import ClusterSpec

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
HOSTS = "brno-h1", "praha-h1"
USER_FILES = "mkdir -p results; echo 1 | tee result.csv >results/one.csv"
LOG_FILE = "mkdir -p /var/log/app; echo 1 >/var/log/app/app.log"
"""In guests, ``USER_FILES`` and ``LOG_FILE`` create the files that ``docs/how-to/use-all-guests.md`` copies."""


def read_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


async def execute(code: str, names: dict[str, object]) -> None:
    done = eval(compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # noqa: S307 - our own page
    if inspect.isawaitable(done):
        await done


@pytest.fixture(autouse=True)
def address(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTCLOUD_URL", f"unix://{lab.sbf_socket}")


def test_the_python_example_of_the_readme_works(client: SbfClient, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(execute(read_blocks("README.md")[0], {}))
    assert re.fullmatch(r"\{'brno': (\d+), 'praha': \1\}\n", capsys.readouterr().out)
    assert until(client, "demo", ended).state == "released"


def test_the_code_of_the_page_on_python_works(lab: Lab, client: SbfClient, capsys: pytest.CaptureFixture[str]) -> None:
    first, *inspections, asynchronous = read_blocks("docs/how-to/use-python.md")
    asyncio.run(execute(first, {}))
    assert re.fullmatch(r"(g\d [a-z]+-h\d 10\.0\.0\.\d/24 \S+\n){3}", capsys.readouterr().out)
    until(client, "demo", ended)

    create(client, "demo", ClusterSpec.model_validate({"owner": "alice", "hosts": ["brno-h1", "praha-h1"]}))
    with Client(f"unix://{lab.sbf_socket}") as opened:
        for code in inspections:
            names: dict[str, object] = {"client": opened}
            asyncio.run(execute(code, names))
            assert not getattr(names.get("found"), "failed", ())
    remove(client, "demo")
    capsys.readouterr()

    def delete() -> None:
        until(client, "demo", active)
        client.delete_cluster("demo")

    with ThreadPoolExecutor() as pool:
        deletion = pool.submit(delete)
        asyncio.run(execute(asynchronous, {}))
        deletion.result()
    states = re.findall(r"^demo: (active|draining|released)\b", capsys.readouterr().out, re.MULTILINE)
    assert states == ["active", "draining", "released"]


@contextmanager
def ssh_agent(socket: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE) as process:  # noqa: S603, S607
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the agent listens
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            subprocess.run(["ssh-add", "-q", key], check=True)  # noqa: S603, S607
            yield
        finally:
            process.terminate()


def test_the_code_of_the_page_on_all_guests_works(
    lab: Lab, client: SbfClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = "docs/how-to/use-all-guests.md"
    commands = re.findall(r"^    virtcloud (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    (tmp_path / "data").mkdir()
    (tmp_path / "prepare.sh").write_text("#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    guests = [{"name": f"g{n}", "host": host, "image": "busybox-ssh"} for n, host in enumerate(HOSTS, start=1)]
    create(client, "demo", ClusterSpec.model_validate({"owner": "alice", "guests": guests}))
    with ssh_agent(tmp_path / "agent", lab.state.folder / "keys/user", monkeypatch):
        with Client() as opened:
            cluster = opened.get("demo")
            cluster.run(USER_FILES, wait=120, check=True)
            cluster.run(LOG_FILE, check=True, options=SshOptions(user="root"))
        for command in commands:
            program = [str(Path(sys.executable).with_name("virtcloud")), *shlex.split(command)]
            subprocess.run(program, check=True)  # noqa: S603 - commands of our own page
        (block,) = read_blocks(page)
        asyncio.run(execute(block, {}))
    remove(client, "demo")
    copied = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    logs, results = (
        {f"{folder}/g{n}/{name}" for n in (1, 2)} for folder, name in (("logs", "app.log"), ("results", "one.csv"))
    )
    assert copied == {"prepare.sh", "result.csv", "first.csv", *logs, *results}
    output = capfd.readouterr().out
    (release,) = set(re.findall(r"^g[12] 0 (\S+)$", output, re.MULTILINE))
    assert sorted(line for line in output.splitlines() if line.endswith(f": {release}")) == [
        f"g1: {release}",
        f"g2: {release}",
    ]
