"""An SBF of one version with an emulated switch and two hosts. The agents of the hosts may be of another version."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compatibility.previous import Version
from support.emulators import emulate
from support.emulators.switch_device import EmulatedSwitch

AGENT = Path(__file__).with_name("agent_program.py")
SOCKET = Path(__file__).with_name("socket_program.py")
HOSTS = ("brno-h1", "brno-h2")
WAIT_S = 60.0


@dataclass(frozen=True)
class Installation:
    """An SBF at ``url`` with a ``topology`` file. ``peer`` is the version of the command line and the agents."""

    url: str
    folder: Path
    topology: Path
    peer: Version
    switch: EmulatedSwitch

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.peer.cli(self.url, *words)

    def json(self, *words: str) -> Any:
        """Return the JSON output of the peer's command line. Raise AssertionError if the command fails."""
        done = self.cli(*words, "--json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)


@contextmanager
def site() -> Iterator[tuple[Path, EmulatedSwitch]]:
    with tempfile.TemporaryDirectory(prefix="sbf") as name, emulate("cisco_ios", slowness=0) as switch:
        folder = Path(name)
        _write_settings(folder, switch)
        _write_topology(folder, switch)
        yield folder, switch


@contextmanager
def installation(sbf: Version, peer: Version) -> Iterator[Installation]:
    """Run an SBF with an empty database, and agents of ``peer``.

    The command line of the older version sets the topology and the pool, because it works with both versions of SBF.
    """
    with site() as (folder, switch), standing(sbf, peer, folder, switch) as made:
        for words in (("topology", "set", str(made.topology)), ("pool", "set", "brno", "100-199")):
            done = max(sbf, peer, key=lambda one: one.site is not None).cli(made.url, *words)
            assert done.returncode == 0, done
        yield made


@contextmanager
def standing(sbf: Version, peer: Version, folder: Path, switch: EmulatedSwitch) -> Iterator[Installation]:
    with ExitStack() as stack:
        url = stack.enter_context(running(sbf, folder))
        for host in HOSTS:
            stack.enter_context(agent(peer, url, host, folder))
        yield Installation(url, folder, folder / "topology.yaml", peer, switch)


@contextmanager
def running(sbf: Version, folder: Path) -> Iterator[str]:
    argv = [sys.executable, "-m", "sbf_service", "serve", "--config", str(folder / "sbf.toml")]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(argv, env=sbf.environment, cwd="/", stdout=log, stderr=log)  # noqa: S603
    try:
        url = f"unix://{folder}/sbf.sock"
        await_(lambda: process.poll() is not None or sbf.cli(url, "whoami").returncode == 0)
        assert process.poll() is None, (folder / "log").read_text()
        yield url
    finally:
        _stop(process)


@contextmanager
def agent(version: Version, url: str, host: str, folder: Path) -> Iterator[None]:
    with (folder / f"{host}.log").open("w") as log:
        argv = [sys.executable, str(AGENT), url, host]
        process = subprocess.Popen(argv, env=version.environment, cwd="/", stdout=log, stderr=log)  # noqa: S603
    try:
        yield
    finally:
        _stop(process)


@contextmanager
def agent_socket(version: Version, url: str, host: str, folder: Path) -> Iterator[Path]:
    argv = [sys.executable, str(SOCKET), url, host, str(folder)]
    with (
        (folder / "socket.log").open("w") as log,
        subprocess.Popen(  # noqa: S603 - our own program
            argv, env=version.environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n", (folder / "socket.log").read_text()
        yield folder / "a.sock"
        process.communicate(timeout=10)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process. If the process does not end in time, kill it and raise TimeoutExpired."""
    process.terminate()
    try:
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()


def await_(reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.05)


def _write_settings(folder: Path, switch: EmulatedSwitch) -> None:
    for name, secret in (("password", switch.password), ("enable", switch.secret)):
        (folder / name).write_text(secret)
        (folder / name).chmod(0o600)
    (folder / "sbf.toml").write_text(
        f'database = "sqlite:///{folder}/sbf.db"\nlisten = "127.0.0.1:0"\nsocket = "{folder}/sbf.sock"\n'
        f'[credentials.lab]\nusername = "{switch.username}"\n'
        f'password = {{file = "{folder}/password"}}\nenable = {{file = "{folder}/enable"}}\n'
    )


def _write_topology(folder: Path, switch: EmulatedSwitch) -> None:
    ports = [port.replace(" ", "") for port in switch.port_names[:2]]
    device = {"name": "brno-sw1", "platform": "cisco_ios", "ports": ports}
    hosts = [{"name": name, "ports": ["eth0"]} for name in HOSTS]
    site = {
        "name": "brno",
        "switches": [device | {"address": switch.address, "credential": "lab"}],
        "hosts": hosts,
    }
    links = [{"a": f"{host}:eth0", "b": f"brno-sw1:{port}"} for host, port in zip(HOSTS, ports, strict=True)]
    (folder / "topology.yaml").write_text(json.dumps({"name": "one", "sites": [site], "links": links}))
