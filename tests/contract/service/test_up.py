import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from click.testing import CliRunner, Result
from support.programs import netbox_emulator
from support.programs.real_sbf import running_sbf

from virtcloud.cli import main
from virtcloud.client.credentials import FileToken
from virtcloud.client.sbf import SbfClient
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet
from virtcloud.simulation import installation
from virtcloud.simulation.folder import SimulationFolder
from virtcloud.simulation.sites import unreachable_switch


@dataclass
class RunningUp:
    """A running ``virtcloud up``, with its output and the variables that it printed."""

    process: "subprocess.Popen[str]"
    output: str

    @property
    def variables(self) -> dict[str, str]:
        return dict(re.findall(r"^export (\w+)=(.*)$", self.output, re.MULTILINE))

    @property
    def folder(self) -> Path:
        return Path(self.variables["VIRTCLOUD_SIMULATION"])

    @property
    def port(self) -> int:
        return int(self.variables["VIRTCLOUD_URL"].rpartition(":")[2])

    def run(self, *arguments: str) -> Result:
        return CliRunner(env={**self.variables, "COLUMNS": "200"}).invoke(main, arguments)

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output


WITHOUT_LINUX = """
import os, select, socket
for module, names in (
    (socket, "SO_PEERCRED TCP_KEEPIDLE AF_NETLINK AF_PACKET AF_VSOCK SOCK_CLOEXEC SOCK_NONBLOCK"),
    (os, "pidfd_open memfd_create sched_getaffinity sched_setaffinity setns unshare splice eventfd posix_fadvise"),
    (select, "epoll"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""
"""A ``sitecustomize`` that removes functions and constants of Linux from Python's modules."""


@contextmanager
def up(*options: str, home: Path, **environment_more: str) -> Iterator[RunningUp]:
    argv = [sys.executable, "-m", "virtcloud.cli", "up", "--port", "0", "--delay", "0", *options]
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "PYTHONUNBUFFERED": "1"} | environment_more
    with subprocess.Popen(  # noqa: S603 - our own command
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            lines = list[str]()
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Stop:"):
                    break
            yield RunningUp(process, "".join(lines))
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with up(home=tmp_path_factory.mktemp("home")) as running:
        yield running


def test_the_printed_lines_suffice_to_create_a_cluster(running: RunningUp) -> None:
    result = running.run("cluster", "create", "demo", "--host", "brno-h1", "--host", "plzen-h1", "--image", "busybox")
    assert result.exit_code == 0, result.output
    assert "cluster demo is active" in result.output


def test_no_token_is_stored_outside_of_the_folder(running: RunningUp) -> None:
    files = {path for path in running.folder.parent.rglob("*") if path.is_file()}
    assert all(path.is_relative_to(running.folder) for path in files)
    assert (running.folder / "operator.token").stat().st_mode & 0o777 == 0o600


def test_an_unreachable_switch_answers_after_it_is_switched_on(running: RunningUp) -> None:
    seen = running.run("element", "show", "plzen-sw2").output
    assert "virtcloud simulate plzen-sw2 on" in seen
    assert running.run("simulate", "plzen-sw2", "on").exit_code == 0
    assert running.run("element", "reconcile", "plzen-sw2").exit_code == 0


def test_a_simulated_host_refuses_connections_to_guests(running: RunningUp) -> None:
    assert running.run("cluster", "create", "guests", "--host", "praha-h2", "--image", "busybox").exit_code == 0
    result = running.run("cluster", "run", "guests", "hostname")
    assert (result.exit_code, "the host is simulated and runs no guest" in result.stderr) == (1, True)
    assert " ERROR " not in (running.folder / "sbf.log").read_text()


def test_a_drift_is_found_and_repaired(running: RunningUp) -> None:
    host = ("--host", "praha-h1", "--host", "praha-h2", "--image", "busybox")
    assert running.run("cluster", "create", "drifting", *host).exit_code == 0
    assert running.run("simulate", "praha-sw1", "drift").exit_code == 0
    assert re.search(r"\+ Gi1/0/1: VLAN \d+", running.run("element", "reconcile", "praha-sw1").output)


def test_simulated_switches_report_their_cables(running: RunningUp) -> None:
    assert running.run("site", "verify", "brno").output == "site brno: cables: 2 right, 0 wrong, 0 unknown\n"


def test_a_foreign_vlan_is_excluded_from_the_pool(running: RunningUp) -> None:
    with SbfClient(running.variables["VIRTCLOUD_URL"], token=_token(running)) as sbf:
        (use,) = sbf.site("brno").other_use
    assert (use.vlan, use.name) == (105, "printers")


def _token(running: RunningUp) -> FileToken:
    return FileToken(Path(running.variables["VIRTCLOUD_TOKEN_FILE"]))


@pytest.mark.parametrize("name", ["brno-sw9", "alice"])
def test_an_unknown_element_cannot_be_disturbed(running: RunningUp, name: str) -> None:
    result = running.run("simulate", name, "off")
    assert result.exit_code == 2
    assert f"element {name}: expected a simulated element, known: brno-sw1," in result.output


def remove_hosts(running: RunningUp, file: Path, prefix: str) -> None:
    document = yaml.safe_load(running.run("topology", "show").output)
    for site in document["sites"]:
        site["hosts"] = [host for host in site["hosts"] if not host["name"].startswith(prefix)]
    document["links"] = [link for link in document["links"] if not link["a"].startswith(prefix)]
    file.write_text(yaml.safe_dump(document))
    assert running.run("topology", "set", str(file), "--yes").exit_code == 0


def test_a_removed_host_cannot_be_disturbed(running: RunningUp, tmp_path: Path) -> None:
    """``virtcloud up`` reads the new topology only after a few seconds. Until then, ``virtcloud simulate`` succeeds."""
    remove_hosts(running, tmp_path / "topology.yaml", "plzen-h2")
    deadline = time.monotonic() + 60
    while (refused := running.run("simulate", "plzen-h2", "on")).exit_code == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "element plzen-h2: expected a simulated element" in refused.output


def test_a_second_start_names_the_port_and_another_port(running: RunningUp) -> None:
    result = CliRunner().invoke(main, ["up", "--port", str(running.port)])
    assert result.exit_code == 2
    assert f"port {running.port}: cannot listen on 127.0.0.1: Address already in use" in result.output
    assert f"virtcloud up --port {running.port + 1}" in result.output


def test_real_switches_are_refused_in_a_simulation(running: RunningUp, tmp_path: Path) -> None:
    document = running.run("topology", "show").output
    file = tmp_path / "topology.yaml"
    file.write_text(document.replace("platform: simulated", "platform: cisco_ios"))
    result = running.run("topology", "set", str(file), "--yes")
    assert result.exit_code == 2
    assert "expected platform simulated, the only platform of 'virtcloud up', got cisco_ios" in result.output


def test_an_import_from_netbox_changes_topology_and_pools(running: RunningUp, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(netbox_emulator.TOKEN, encoding="utf-8")
    with netbox_emulator.serve_netbox() as netbox:
        site = netbox.add_site("ostrava")
        switch = netbox.add_device(site, "ostrava-sw1", "switch", platform="simulated")
        host = netbox.add_device(site, "ostrava-h1", "server")
        netbox.connect(netbox.add_interface(switch, "Gi1/0/1"), netbox.add_interface(host, "eth0"))
        netbox.add_group(site, [100, 119])
        lists = {"sites": ["ostrava"], "switch_roles": ["switch"], "host_roles": ["server"]}
        file = tmp_path / "netbox.yaml"
        file.write_text(yaml.safe_dump({"url": netbox.url, "token_file": str(tmp_path / "token"), **lists}))
        before = running.run("netbox", "diff", str(file))
        assert (before.exit_code, "pool of ostrava: + 100-119" in before.output) == (1, True)
        # Without a terminal, the command cannot ask for a confirmation.
        assert running.run("netbox", "import", str(file)).exit_code == 2
        assert running.run("netbox", "import", str(file), "--yes").exit_code == 0
        assert running.run("netbox", "diff", str(file)).output == "NetBox and SBF agree\n"
    assert running.run("cluster", "create", "n", "--host", "ostrava-h1", "--image", "busybox").exit_code == 0


def test_an_import_names_the_pools_that_sbf_refuses(running: RunningUp, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(netbox_emulator.TOKEN, encoding="utf-8")
    # The command waits until the cluster is active. Until then, the switch has unsaved changes, and SBF would refuse
    # not only the new pool, but also the new topology.
    assert running.run("cluster", "create", "busy", "--host", "praha-h1", "--image", "busybox").exit_code == 0
    with netbox_emulator.serve_netbox() as netbox:
        site = netbox.add_site("praha")
        netbox.add_device(site, "praha-sw1", "switch", platform="simulated")
        netbox.add_group(site, [4000, 4001])
        file = tmp_path / "netbox.yaml"
        document = {"url": netbox.url, "token_file": str(tmp_path / "token"), "sites": ["praha"]}
        file.write_text(yaml.safe_dump(document | {"switch_roles": ["switch"]}))
        refused = running.run("netbox", "import", str(file), "--yes")
    assert refused.exit_code == 1
    assert "SBF's topology is that of NetBox, but 1 of 1 pools were not changed." in refused.output
    assert "pool of praha: the new pool lacks VLAN IDs in use" in refused.output


def test_the_draft_of_a_new_site_is_added(running: RunningUp, tmp_path: Path) -> None:
    switch = {"name": "liberec-sw1", "platform": "simulated", "ports": ["Gi1/0/1", "Te1/1/1"]}
    attachments = [{"transport": "core", "port": "liberec-sw1:Te1/1/1"}]
    hosts = [{"name": "liberec-h1", "ports": ["eth0"]}]
    site = {"name": "liberec", "switches": [switch], "hosts": hosts, "attachments": attachments}
    file = tmp_path / "liberec.yaml"
    file.write_text(yaml.safe_dump({"site": site, "links": [{"a": "liberec-h1:eth0", "b": "liberec-sw1:Gi1/0/1"}]}))
    assert running.run("topology", "check", str(file)).exit_code == 0
    assert running.run("topology", "set", str(file), "--yes").exit_code == 0
    assert running.run("site", "show", "liberec").exit_code == 0
    again = running.run("topology", "set", str(file), "--yes")
    assert (again.exit_code, "change it with --site liberec" in again.output) == (2, True)


def test_a_host_that_is_off_confirms_nothing(running: RunningUp) -> None:
    assert running.run("simulate", "brno-h2", "off").exit_code == 0
    assert (
        running.run("cluster", "create", "off", "--host", "brno-h2", "--image", "busybox", "--no-wait").exit_code == 0
    )
    assert running.run("element", "reconcile", "brno-sw1").exit_code == 0
    assert "is configuring" in running.run("cluster", "show", "off").output
    assert running.run("simulate", "brno-h2", "on").exit_code == 0
    assert running.run("cluster", "wait", "off").exit_code == 0


def test_no_function_of_linux_is_needed(tmp_path: Path) -> None:
    """A substitute for a test on macOS, where Python lacks functions of Linux."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LINUX)
    with up("--sites", "1", home=tmp_path, PYTHONPATH=str(tmp_path)) as running:
        result = running.run("cluster", "create", "demo", "--host", "brno-h1", "--image", "busybox")
        assert result.exit_code == 0, result.output


def test_an_interrupt_removes_everything(tmp_path: Path) -> None:
    with up("--sites", "1", home=tmp_path) as running:
        code, output = running.stop()
        assert (code, output.strip()) == (0, "stopped; everything was removed")
        assert not running.folder.exists()
        assert not _is_listening(running.port)


def test_a_closed_terminal_removes_everything(tmp_path: Path) -> None:
    with up("--sites", "1", home=tmp_path) as running:
        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(30) == 0
        assert not running.folder.exists()


def test_a_restart_with_a_kept_folder_restores_clusters_and_topology(tmp_path: Path) -> None:
    """The second ``virtcloud up`` prints an example command whose hosts all exist.

    The last site of the kept topology has no hosts, so the second host in the example command is at another site.
    """
    keep = ("--keep", str(tmp_path / "kept"))
    with up(*keep, home=tmp_path) as first:
        assert first.run("cluster", "create", "demo", "--host", "brno-h1", "--image", "busybox").exit_code == 0
        remove_hosts(first, tmp_path / "topology.yaml", "plzen-h")
        again = CliRunner().invoke(main, ["up", "--port", "0", *keep])
        assert "another 'virtcloud up' uses this folder" in again.output
        assert first.stop()[0] == 0
    with up(*keep, home=tmp_path) as second:
        assert "cluster demo of admin is active" in second.run("cluster", "show", "demo").output
        assert "create demo --host brno-h1 --host praha-h1 --image busybox\n" in second.output


def test_pools_are_set_after_an_interrupted_first_start(tmp_path: Path) -> None:
    with running_sbf() as address, SbfClient(address) as sbf:
        sbf.put_topology(Topology.model_validate({"name": "two", "sites": [{"name": "brno"}, {"name": "praha"}]}))
        sbf.put_pool("brno", Pool(vlans=VlanSet.parse("200-210")))
        installation.furnish(sbf, SimulationFolder(tmp_path), 3)
        pools = {site.name: str(site.pool) for site in sbf.sites()}
    assert pools == {"brno": "200-210", "praha": "100-139"}


def test_a_start_replaces_the_files_of_an_interrupted_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = list[Topology]()

    def interrupt(_: object, topology: Topology, _version: object) -> None:
        stored.append(topology)
        raise KeyboardInterrupt

    monkeypatch.setattr(SbfClient, "topology", Mock(side_effect=NotFound("there is no topology yet")))
    monkeypatch.setattr(SbfClient, "put_topology", interrupt)
    with SbfClient("http://127.0.0.1:1") as sbf:
        for sites in (1, 3):
            with pytest.raises(KeyboardInterrupt):
                installation.furnish(sbf, SimulationFolder(tmp_path), sites)
    assert Topology.model_validate_json((tmp_path / "cables.json").read_text()) == stored[-1]
    assert [file.name for file in (tmp_path / "events").iterdir()] == [f"{unreachable_switch(stored[-1])}.off"]


def test_sbf_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    with up("--sites", "1", home=tmp_path) as running:
        sbf = _find_child(running.process.pid)
        running.process.kill()
        running.process.wait()
        _wait_for_end(sbf)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    result = CliRunner().invoke(main, ["up", "--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert f"--keep {tmp_path}: expected an empty folder or the folder of an earlier 'virtcloud up'" in result.output


def test_a_missing_library_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(BadInput, match=r"needs uvicorn; install it with: pip install 'virtcloud\[sbf\]'"):
        installation.check_libraries()


def test_a_folder_in_place_of_the_elements_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elements.json").mkdir()
    with pytest.raises(BadInput, match=r"elements\.json: expected a file, got a folder"):
        SimulationFolder(tmp_path).write_elements({})


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _find_child(parent: int) -> int:
    (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


def _wait_for_end(process: int) -> None:
    """Wait at most 60 s for the end of a process, which need not be a child of the test's process."""
    descriptor = os.pidfd_open(process)
    try:
        assert select.select([descriptor], [], [], 60)[0]
    finally:
        os.close(descriptor)
