"""Tests of the Debian packages.

The tests that use the fixture ``machine`` share one machine. They must run in the order of this file, from the first
start to the purge.
"""

import shutil
import subprocess

import pytest
from support.installation.ansible_machines import Site
from support.installation.package_builds import HOST, PACKAGES, Built

from virtcloud import __version__

pytestmark = pytest.mark.timeout(900)  # the first test builds all packages twice
SBF_SETTINGS = """
listen = "127.0.0.1:8800"
socket = "/run/virtcloud/sbf.sock"
database = "sqlite:////var/lib/virtcloud/sbf.db"

[credentials.brno]
username = "virtcloud"
password = {file = "/etc/virtcloud/brno.password"}
"""
AGENT_SETTINGS = f'element = "{HOST}"\nsbf = "unix:///run/virtcloud/sbf.sock"\n'
TOPOLOGY = f"""
name: one
sites:
  - name: brno
    switches:
      - {{name: brno-sw1, platform: linux_bridge, address: 10.99.0.20, credential: brno, ports: [p1]}}
    hosts:
      - {{name: {HOST}, ports: [host0]}}
links:
  - {{a: "{HOST}:host0", b: "brno-sw1:p1"}}
"""


def read_file_names(built: Built, name: str) -> str:
    command = ["dpkg-deb", "--contents", str(built.package(name))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own


def test_two_builds_in_different_folders_have_equal_bytes(built: Built) -> None:
    names = sorted(path.name for path in built.first.iterdir())
    assert len(names) == len(PACKAGES)
    assert [name for name in names if (built.first / name).read_bytes() != (built.second / name).read_bytes()] == []


def test_lintian_accepts_the_packages(built: Built) -> None:
    assert shutil.which("lintian"), "this test needs lintian: apt-get install lintian"
    files = sorted(map(str, built.first.iterdir()))
    command = ["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("unneeded", ["/sbf_service/", "/fastapi/", "/sqlalchemy/", "/netmiko/", "/virtcloud/lab/"])
def test_a_host_gets_only_what_the_agent_needs(built: Built, unneeded: str) -> None:
    assert "/pyroute2/" in read_file_names(built, "virtcloud-agent")
    assert unneeded not in read_file_names(built, "virtcloud") + read_file_names(built, "virtcloud-agent")


def test_the_commands_have_man_pages_and_completion_scripts(machine: Site) -> None:
    assert machine.read(HOST, "virtcloud --version; sbf --version").split() == [
        *("virtcloud,", "version", __version__),
        *("sbf,", "version", __version__),
    ]
    folder = "/usr/share"
    machine.read(HOST, f"cd {folder} && ls man/man1/virtcloud-cluster.1.gz man/man1/sbf.1.gz")
    machine.read(HOST, f"cd {folder} && ls bash-completion/completions/sbf zsh/vendor-completions/_virtcloud")


def test_services_without_settings_do_not_start(machine: Site) -> None:
    assert machine.run(HOST, "systemctl is-active virtcloud-sbf virtcloud-agent").stdout.split() == ["inactive"] * 2
    assert machine.run(HOST, "systemctl is-failed virtcloud-sbf virtcloud-agent").returncode == 1


def test_sbf_answers_after_its_settings_exist(machine: Site) -> None:
    write(machine, "/etc/virtcloud/brno.password", "secret of the switch\n")
    machine.read(HOST, "chown virtcloud /etc/virtcloud/brno.password && chmod 600 /etc/virtcloud/brno.password")
    write(machine, "/etc/virtcloud/sbf.toml", SBF_SETTINGS)
    machine.read(HOST, "systemctl start virtcloud-sbf")
    assert machine.read(HOST, "ps -o user= -p $(systemctl show -P MainPID virtcloud-sbf)").strip() == "virtcloud"
    machine.read(
        HOST,
        "for i in $(seq 300); do virtcloud whoami && exit; sleep 0.2; done; exit 1",
    )


def test_the_agent_calls_sbf(machine: Site) -> None:
    write(machine, "/root/one.yaml", TOPOLOGY)
    machine.read(HOST, "virtcloud topology set /root/one.yaml --yes")
    write(machine, "/etc/virtcloud/agent.toml", AGENT_SETTINGS)
    machine.read(HOST, "systemctl start virtcloud-agent")
    show = f"virtcloud element show {HOST} --json"
    seen = f"""{show} | grep -q '"last_seen": "2'"""
    shown = machine.read(HOST, f"for i in $(seq 300); do {seen} && break; sleep 0.2; done; {show}")
    assert '"last_seen": "2' in shown


def test_an_upgrade_restarts_both_services(machine: Site) -> None:
    pids = "systemctl show -P MainPID virtcloud-sbf virtcloud-agent"
    former = machine.read(HOST, pids).split()
    machine.read(HOST, "dpkg --install /root/*.deb")
    present = machine.read(HOST, pids).split()
    assert "0" not in former + present
    assert set(former).isdisjoint(present)


def test_a_purge_leaves_settings_and_data_of_the_site(machine: Site) -> None:
    machine.read(HOST, f"dpkg --remove {' '.join(PACKAGES)} && dpkg --purge {' '.join(PACKAGES)}")
    assert machine.run(HOST, "ls /usr/lib/virtcloud /usr/bin/virtcloud /lib/systemd/system/virtcloud-*").stdout == ""
    machine.read(HOST, "ls /var/lib/virtcloud/sbf.db /etc/virtcloud/sbf.toml")
    assert machine.run(HOST, "pgrep -f /usr/lib/virtcloud").stdout == ""


def write(machine: Site, path: str, text: str) -> None:
    machine.read(HOST, f"cat >{path} <<'END'\n{text}END")
