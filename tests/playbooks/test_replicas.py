"""Two replicas of SBF behind HAProxy, with PostgreSQL and Prometheus, on three machines.

The machine "services" runs HAProxy, PostgreSQL and Prometheus. The tests run in order, from installation to removal.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.installation.ansible_machines import Site, count_changes, make_newer_archive

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]  # with VIRTCLOUD_REQUIRE_LAB, a skip is a failure
ADDRESSES = {"sbf1": "10.99.0.11", "sbf2": "10.99.0.12", "services": "10.99.0.13"}
REPLICAS = ("sbf1", "sbf2")
SERVERS = "echo 'show stat' | socat - /run/haproxy/admin.sock | awk -F, '$1 == \"sbf\" && $2 ~ /^sbf/ {print $2, $18}'"
CALL = "curl --silent --show-error --fail --max-time 20 --cacert /etc/virtcloud/authority.crt https://services:8800"
SETTINGS = "log_statement = 'all'"


@dataclass(frozen=True)
class DisturbedUpgrade:
    """An upgrade during which services are killed, and a second run of the playbook.

    ``before`` contains each replica's folder of the former version.
    """

    before: dict[str, str]
    first: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def installed(site: Site) -> Site:
    (rules := site.folder / "monitoring/prometheus").mkdir(parents=True)
    (rules / "rules.yml").write_text(
        "groups: [{name: test, rules: [{alert: ReplicaDown, expr: 'up{job=\"virtcloud\"} == 0'}]}]\n"
    )
    services = {"ansible_host": ADDRESSES["services"], "balancer_drain": 5, "monitoring_source": str(rules.parent)}
    site.inventory["sbf"] = {"hosts": {name: {"ansible_host": ADDRESSES[name]} for name in REPLICAS}}
    site.inventory.update(
        {group: {"hosts": {"services": services}} for group in ("database", "balancers", "monitoring")}
    )
    site.read("services", f'echo "{SETTINGS}" > /etc/postgresql/$(ls /etc/postgresql)/main/conf.d/log.conf')
    # Debian's package has already started Prometheus, without virtcloud's scrape jobs.
    site.kill_at("site.yml", "monitoring : Start Prometheus")
    play = site.play("site.yml")
    assert play.returncode == 0, play.stdout[-6000:] + play.stderr
    (site.folder / "replicas.log").write_text(play.stdout + play.stderr)
    return site


def test_the_balancer_calls_both_replicas(installed: Site) -> None:
    assert installed.read("services", SERVERS).split() == ["sbf1", "UP", "sbf2", "UP"]
    assert json.loads(installed.read("services", f"{CALL}/readyz"))["status"] == "ok"


def test_a_second_run_changes_nothing(installed: Site) -> None:
    assert count_changes(installed.play("site.yml")) == {"sbf1": 0, "sbf2": 0, "services": 0, "localhost": 0}


def test_the_password_is_never_shown(installed: Site) -> None:
    password = installed.read("services", "cat /etc/virtcloud/database.password").strip()
    assert len(password) == 48
    assert password not in (installed.folder / "replicas.log").read_text()
    logs = f"cat /var/log/postgresql/*.log | grep -c {password}; grep -c 'CREATE ROLE sbf' /var/log/postgresql/*.log"
    assert installed.run("services", logs).stdout.split() == ["0", "1"]


def test_postgresql_admits_only_sbf_with_tls(installed: Site) -> None:
    def log_in(machine: str, mode: str) -> subprocess.CompletedProcess[str]:
        installed.read(machine, "apt-get --version >/dev/null")
        password = installed.read("services", "cat /etc/virtcloud/database.password").strip()
        return installed.run(
            machine, f"PGPASSWORD={password} psql 'host=services user=sbf dbname=sbf sslmode={mode}' -c 'SELECT 1'"
        )

    assert log_in("sbf1", "require").returncode == 0
    assert "pg_hba.conf rejects" in log_in("sbf1", "disable").stderr
    assert "pg_hba.conf rejects" in log_in("services", "require").stderr


def test_sbf_sees_the_address_of_the_caller(installed: Site) -> None:
    token = "vc_" + "A" * 43
    installed.run("services", f"{CALL}/v1/clusters -H 'X-Forwarded-For: 192.0.2.1' -H 'Authorization: Bearer {token}'")
    denied = "journalctl -u virtcloud-sbf | grep denied"
    lines = [line for machine in REPLICAS for line in installed.run(machine, denied).stdout.splitlines()]
    assert {f"address={ADDRESSES['services']}" in line for line in lines} == {True}


def test_prometheus_scrapes_both_replicas(installed: Site) -> None:
    targets = "curl --silent --fail localhost:9090/api/v1/targets"
    count = f'{targets} | grep -o \'"health":"up"\' | wc -l'
    up = f"for i in $(seq 60); do [ $({count}) -ge 2 ] && break; sleep 1; done; {targets}"
    found = json.loads(installed.read("services", up))["data"]["activeTargets"]
    states = {
        target["labels"]["instance"]: target["health"] for target in found if target["labels"]["job"] == "virtcloud"
    }
    assert states == {"sbf1:8800": "up", "sbf2:8800": "up"}, found
    assert "ReplicaDown" in installed.read("services", "curl --silent localhost:9090/api/v1/rules")


def test_an_unreachable_database_is_explained(installed: Site) -> None:
    installed.read("services", "systemctl stop 'postgresql@*'")
    play = installed.play("site.yml", "--limit", "sbf2")
    installed.read("services", "systemctl restart postgresql")
    assert play.returncode != 0
    assert "sbf2 cannot use the database or the settings: " in play.stdout + play.stderr
    assert "Connection refused" in play.stdout + play.stderr


def test_callers_do_not_notice_an_upgrade(installed: Site) -> None:
    variables = installed.inventory["all"]["vars"]
    variables["program_archive"] = str(make_newer_archive(Path(variables["program_archive"]), installed.folder))
    before = read_running_versions(installed)
    call = f"{CALL}/readyz >/dev/null 2>>/tmp/errors; echo >>/tmp/calls; sleep 0.1"
    installed.read("services", f"nohup sh -c 'while [ ! -e /tmp/stop ]; do {call}; done' >/dev/null 2>&1 &")
    installed.kill_at("site.yml", "sbf : Restart the service")
    assert "sbf1 DRAIN" in installed.read("services", SERVERS)
    count_changes(installed.play("site.yml"))
    assert int(installed.read("services", "touch /tmp/stop; wc -l < /tmp/calls")) > 100
    assert installed.read("services", "cat /tmp/errors") == ""
    assert installed.read("services", SERVERS).split() == ["sbf1", "UP", "sbf2", "UP"]
    after = read_running_versions(installed)
    assert all(after[name] != before[name] for name in REPLICAS)


def read_running_versions(installed: Site) -> dict[str, str]:
    """Return each replica's folder of the installed version. Raise AssertionError if SBF runs another version."""
    folders = {name: installed.read(name, "readlink /opt/virtcloud").strip() for name in REPLICAS}
    for name, folder in folders.items():
        assert folder in installed.read(name, "tr '\\0' ' ' </proc/$(systemctl show -P MainPID virtcloud-sbf)/cmdline")
    return folders


@pytest.fixture(scope="module")
def disturbed_upgrade(installed: Site) -> DisturbedUpgrade:
    """HAProxy is killed during the upgrade of sbf1, and PostgreSQL during the upgrade of sbf2.

    Then the playbook runs again.
    """
    variables, before = installed.inventory["all"]["vars"], read_running_versions(installed)
    variables["program_archive"] = str(make_newer_archive(Path(variables["program_archive"]), installed.folder))

    def kill(name: str) -> Callable[[object], object]:
        return lambda _: installed.read("services", f"pkill -KILL -x {name}")

    first = installed.play_with("site.yml", {"sbf : Restart the service": [kill("haproxy"), kill("postgres")]})
    return DisturbedUpgrade(before, first, installed.play("site.yml"))


def test_an_upgrade_survives_a_killed_balancer(disturbed_upgrade: DisturbedUpgrade) -> None:
    recap = disturbed_upgrade.first.stdout.partition("PLAY RECAP")[2].splitlines()
    assert [row for row in recap if row.startswith("sbf1") and "failed=0" in row]


def test_an_upgrade_stopped_by_a_killed_database_names_the_database(disturbed_upgrade: DisturbedUpgrade) -> None:
    assert disturbed_upgrade.first.returncode != 0
    output = " ".join(disturbed_upgrade.first.stdout.split())
    assert "SBF on sbf2 is not ready 60 s after its start." in output
    assert "database" in output.partition("SBF on sbf2 is not ready")[2]


def test_a_second_run_completes_a_disturbed_upgrade(installed: Site, disturbed_upgrade: DisturbedUpgrade) -> None:
    """The first run may have completed sbf2's installation. The second run always starts PostgreSQL."""
    assert count_changes(disturbed_upgrade.second)["services"] > 0
    after = read_running_versions(installed)
    assert all(after[name] != disturbed_upgrade.before[name] for name in REPLICAS)
    assert installed.read("services", SERVERS).split() == ["sbf1", "UP", "sbf2", "UP"]
    assert json.loads(installed.read("services", f"{CALL}/readyz"))["status"] == "ok"


def test_uninstalling_leaves_nothing(installed: Site) -> None:
    count_changes(installed.play("uninstall.yml", "-e", "uninstall_data=true"))
    for machine in (*REPLICAS, "services"):
        files = "find / -xdev -iname '*virtcloud*'; getent passwd virtcloud; grep -ril virtcloud /etc --exclude='*-'"
        assert installed.read(machine, f"{files}; pgrep -a -x sbf; true") == ""
    assert installed.read("services", "pgrep -a -x haproxy; true") == ""
    roles = "runuser -u postgres -- psql -XAtc \"SELECT rolname FROM pg_roles WHERE rolname = 'sbf'\""
    assert installed.read("services", f"cd /; {roles}") == ""
