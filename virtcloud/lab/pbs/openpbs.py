"""Starts OpenPBS in a running lab, installs virtcloud's hooks in OpenPBS, and runs commands as the lab's users.

The PBS server runs on the station, the node on which SBF runs.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pbs_hooks.openpbs.qmgr import PbsInstallation, find_installation
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import addressing, node_services
from virtcloud.lab.errors import LabFailed, LabImpossible
from virtcloud.lab.fabric.events import LabEvent, Watcher
from virtcloud.lab.lab import Lab
from virtcloud.lab.pbs import scripts
from virtcloud.model.access import Role
from virtcloud.model.errors import NotFound

START_S = 120.0
POLL_S = 0.2
NO_WATCHER: Watcher = lambda _: None  # noqa: E731 - a function that does nothing


@dataclass(frozen=True, slots=True)
class LabPbs:
    """The OpenPBS of a lab."""

    lab: Lab
    installation: PbsInstallation

    @classmethod
    def of(cls, lab: Lab) -> "LabPbs":
        """Return the OpenPBS of a lab, even if OpenPBS is not running.

        Raise LabImpossible if OpenPBS is not installed on this machine.
        """
        try:
            return cls(lab, find_installation())
        except NotFound as error:
            raise LabImpossible(
                f"OpenPBS is not installed here ({error}); docs/how-to/get-openpbs.md describes the installation"
            ) from error

    def start(self, hosts: Sequence[str], watch: Watcher = NO_WATCHER) -> None:
        """Start the server, and a MoM (PBS's daemon) on each of ``hosts``. Wait until PBS reports all hosts as free.

        Raise LabImpossible if ``hosts`` is empty, if a host is unknown, or if OpenPBS already runs in this lab. Raise
        LabFailed if OpenPBS cannot be started, or if the hosts are not free after `START_S` seconds.
        """
        if not hosts:
            raise LabImpossible("OpenPBS needs at least one host, got none: start a lab whose file has hosts")
        known_hosts = [host.name for site in self.lab.topology.sites for host in site.hosts]
        for host in (host for host in hosts if host not in known_hosts):
            raise LabImpossible(f"the lab has no host {host}; its hosts are: {', '.join(known_hosts)}")
        if self.lab.run(addressing.STATION, ["test", "-e", scripts.IMAGES]).returncode == 0:
            raise LabImpossible(
                "OpenPBS already runs in this lab. To use OpenPBS: virtcloud lab shell --user alice station. To start "
                "again: virtcloud lab down, then virtcloud lab up"
            )
        programs, version = str(self.installation.exec), self.version()
        with _step(watch, "PBS server"):
            images = f"{self.lab.state.folder}/images"
            hosts_file, key = self._names(hosts[0]), self._key("user.pub")
            self._shell(addressing.STATION, scripts.set_up_station(programs, hosts_file, key, images))
            self.start_server(version)
            self._shell(addressing.STATION, scripts.configure_server(programs, hosts))
        keys = self._keys()
        for host in hosts:
            with _step(watch, f"{host} MoM"):
                self._shell(host, scripts.set_up_host(programs, version, keys))
                self._shell(host, node_services.RUN_BOOT_SCRIPT)
        with _step(watch, "hosts in PBS"):
            self.await_free(hosts)

    def install_hooks(self, settings: Mapping[str, Mapping[str, object]] | None = None) -> str:
        """Create a scheduler's token and run ``virtcloud pbs install`` on the station. Return the command's output."""
        with SbfClient(f"unix://{self.lab.sbf_socket}") as client:
            token = client.create_token("pbs", Role.SCHEDULER).token
        requested = settings or {}
        content = json.dumps({**requested, "server": {"images": scripts.IMAGES, **requested.get("server", {})}})
        write_settings = f"cat > {scripts.SETTINGS} <<'END'\n{content}\nEND\n"
        write_token = f"umask 077; cat > {scripts.TOKEN} <<'END'\n{token}\nEND\n"
        self._shell(addressing.STATION, write_settings + write_token)
        options = ["--sbf", f"http://{addressing.STATION_ADDRESS}:{addressing.SBF_PORT}", "--token-file", scripts.TOKEN]
        options += ["--settings", scripts.SETTINGS]
        return self.virtcloud("pbs", "install", *options).stdout

    def reconcile(self, settings: Mapping[str, float] | None = None) -> None:
        """Start the batch server's agent with ``settings``. The agent ends clusters without a job."""
        self._shell(addressing.STATION, scripts.start_scheduler_agent(sys.executable, settings or {}))

    def virtcloud(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the ``virtcloud`` command on the station. Raise LabFailed if the command fails."""
        completed = self.try_virtcloud(*arguments)
        if completed.returncode:
            raise LabFailed(
                f"virtcloud {' '.join(arguments)} ended with exit code {completed.returncode}: "
                f"{completed.stderr.strip()}"
            )
        return completed

    def try_virtcloud(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the ``virtcloud`` command on the station as root.

        Return the command's result even if the command fails.
        """
        variables = [f"{key}={value}" for key, value in (environment or {}).items()]
        argv = ["env", *variables, sys.executable, "-m", "virtcloud.cli", *arguments]
        return self.lab.run(addressing.STATION, argv)

    def user(
        self, name: str, command: Sequence[str], node: str = addressing.STATION
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a user's login shell on ``node``. Return the command's result even if the command fails."""
        return self.lab.run(node, as_user(name, command))

    def root(self, *command: str) -> str:
        """Run a PBS command as root and return its output. Raise LabFailed if the command fails."""
        argv = [str(self.installation.program(command[0])), *command[1:]]
        return self.lab.run(addressing.STATION, argv, check=True).stdout

    def version(self) -> str:
        """Return OpenPBS's version."""
        completed = subprocess.run(  # noqa: S603 - a program of PBS
            [str(self.installation.program("qstat")), "--version"], capture_output=True, text=True, check=False
        )
        return completed.stdout.rpartition("=")[2].strip()

    def start_server(self, version: str) -> None:
        """Start the server's processes unless they are running."""
        self._shell(addressing.STATION, scripts.start_server(str(self.installation.exec), version))

    def start_mom(self, host: str) -> None:
        """Start a host's MoM."""
        self._shell(host, scripts.start_mom(str(self.installation.exec)))

    def await_free(self, hosts: Sequence[str]) -> None:
        """Wait until PBS reports ``hosts`` as free. Raise LabFailed after `START_S` seconds."""
        deadline = time.monotonic() + START_S
        while (output := self.root("pbsnodes", *hosts)).count("state = free") != len(hosts):
            if time.monotonic() > deadline:
                raise LabFailed(f"PBS: expected {', '.join(hosts)} to be free after {START_S:.0f} s, got: {output}")
            time.sleep(POLL_S)

    def _names(self, host: str) -> str:
        return self.lab.run(host, ["cat", "/etc/hosts"], check=True).stdout

    def _keys(self) -> list[tuple[str, str]]:
        host_key = self.lab.run(addressing.STATION, ["cat", "/var/spool/ssh/host_key.pub"], check=True).stdout
        known = f"{addressing.STATION},{addressing.STATION_ADDRESS} {host_key}"
        return [("id_ed25519", self._key("user")), ("known_hosts", known)]

    def _key(self, name: str) -> str:
        return (self.lab.state.folder / "keys" / name).read_text()

    def _shell(self, node: str, script: str) -> None:
        completed = self.lab.run(node, ["sh", "-s"], stdin=script, timeout_s=START_S)
        if completed.returncode:
            raise LabFailed(f"{node}: PBS could not be started: {(completed.stderr or completed.stdout).strip()}")


@contextmanager
def _step(watch: Watcher, step: str) -> Iterator[None]:
    watch(LabEvent(step, "begin"))
    yield
    watch(LabEvent(step, "done"))


def as_user(name: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` in a user's login shell; only the shell if ``command`` is empty."""
    return ["su", "-", name, *(["-c", shlex.join(command)] if command else [])]
