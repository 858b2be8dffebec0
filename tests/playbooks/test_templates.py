"""Tests of files that the playbooks write.

Ansible runs on the machine that runs the tests, and writes only to the test's folder.
"""

import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from support.installation.ansible_machines import PLAYBOOK, ROOT, ansible_environment

ROLES = ROOT / "ansible/roles"
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
AUTHORITY = {"ca_file": "/etc/prometheus/virtcloud-authority.crt"}
ONE = {"sbf1": ["sbf.example.org"]}


def write_files(
    replicas: Mapping[str, list[str]], certificate: str, folder: Path, balancers: Sequence[str] = ()
) -> None:
    """Write the files of replicas with these ``sbf_names``. Without a certificate, virtcloud's authority issues one.

    ``balancers`` are the lines of getent(1) for the balancers.
    """
    found = [{"stdout_lines": list(balancers)}] if balancers else []
    sbf = {**read_defaults("sbf"), "sbf_certificate": certificate, "sbf_proxies": {"results": found}}
    hosts = {name: {"sbf_names": names} for name, names in replicas.items()}
    inventory = {
        "all": {"vars": {**LOCAL, "folder": str(folder)}},
        "sbf": {"hosts": hosts, "vars": sbf},
        "monitoring": {"hosts": {"monitor": {}}, "vars": read_defaults("monitoring")},
    }
    plays = [
        play("sbf", "sbf.toml.j2", "{{ folder }}/{{ inventory_hostname }}.toml"),
        play("sbf", str(write_subjects(folder)), "{{ folder }}/{{ inventory_hostname }}.subjects"),
        play("monitoring", "scrape.yml.j2", "{{ folder }}/scrape.yml"),
    ]
    run_plays(inventory, plays, folder)


def run_plays(inventory: Mapping[str, object], plays: list[dict[str, object]], folder: Path) -> None:
    (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
    (folder / "play.yml").write_text(yaml.safe_dump(plays))
    command = (PLAYBOOK, "-i", str(folder / "inventory.yml"), str(folder / "play.yml"))
    done = subprocess.run(command, capture_output=True, text=True, env=ansible_environment(), check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr


def write_agent(settings: str, folder: Path) -> dict[str, object]:
    """Write and return the settings of the agent on OpenPBS's machine.

    ``settings`` is the value of the inventory's variable ``agent_settings``.
    """
    agent = {**read_defaults("agent"), "agent_settings": settings, "agent_sbf": "https://sbf.example.org:8800"}
    inventory = {
        "agent": {"hosts": {"pbs1": {}}, "vars": {**LOCAL, **agent}},
        "pbs_server": {"hosts": {"pbs1": {}}},
    }
    run_plays(inventory, [play("agent", "agent.toml.j2", str(folder / "agent.toml"))], folder)
    return tomllib.loads((folder / "agent.toml").read_text())


def read_defaults(role: str) -> dict[str, object]:
    defaults: dict[str, object] = yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())
    return defaults


def write_subjects(folder: Path) -> Path:
    """Write a template with the names that the role ``sbf`` requests for SBF's certificate."""
    tasks = yaml.safe_load((ROLES / "sbf/tasks/main.yml").read_text())
    (variables,) = [task["vars"] for task in tasks if task["name"] == "Provide the certificate"]
    template = folder / "subjects.j2"
    template.write_text(variables["certificate_subjects"].replace("}}", "| join(' ') }}"))
    return template


def play(group: str, template: str, file: str) -> dict[str, object]:
    written = {"src": str(ROLES / group / "templates" / template), "dest": file, "mode": "0644"}
    task = {"name": "Write the file", "ansible.builtin.template": written}
    return {"name": "Write files", "hosts": group, "gather_facts": False, "tasks": [task]}


def read_jobs(folder: Path) -> list[dict[str, object]]:
    jobs: list[dict[str, object]] = yaml.safe_load((folder / "scrape.yml").read_text())
    return [{key: job[key] for key in ("job_name", "tls_config", "static_configs")} for job in jobs]


def test_prometheus_calls_sbf_by_a_name_of_its_certificate(tmp_path: Path) -> None:
    write_files(ONE, "", tmp_path)
    targets = [{"targets": ["sbf1:8800"]}]
    assert read_jobs(tmp_path) == [{"job_name": "virtcloud", "tls_config": AUTHORITY, "static_configs": targets}]
    assert (tmp_path / "sbf1.subjects").read_text().split() == ["sbf.example.org", "sbf1"]


def test_prometheus_expects_the_names_of_the_sites_own_certificates(tmp_path: Path) -> None:
    write_files({"sbf1": ["one.example.org"], "sbf2": ["two.example.org"]}, "own.crt", tmp_path)
    label = {"job": "virtcloud"}  # the alert rules expect this label
    expected: list[dict[str, object]] = [
        {
            "job_name": f"virtcloud-{replica}",
            "tls_config": {**AUTHORITY, "server_name": name},
            "static_configs": [{"targets": [f"{replica}:8800"], "labels": label}],
        }
        for replica, name in (("sbf1", "one.example.org"), ("sbf2", "two.example.org"))
    ]
    assert read_jobs(tmp_path) == expected


@pytest.mark.parametrize(
    ("certificate", "names", "address"),
    [
        ("", {"sbf1": ["one.example.org"], "sbf2": ["two.example.org"]}, "sbf1"),
        ("own.crt", {"sbf1": ["one.example.org"], "sbf2": ["two.example.org"]}, "one.example.org"),
        ("own.crt", {"sbf1": ["sbf.example.org", "sbf1"], "sbf2": ["sbf.example.org", "sbf2"]}, "sbf1"),
        ("own.crt", {"sbf1": ["sbf.example.org"], "sbf2": ["sbf.example.org"]}, "sbf1"),
    ],
    ids=["authority of virtcloud", "own names", "inventory names", "common name"],
)
def test_agents_call_a_replica_by_a_name_unique_to_it(
    certificate: str, names: dict[str, list[str]], address: str, tmp_path: Path
) -> None:
    write_files(names, certificate, tmp_path)
    settings = tomllib.loads((tmp_path / "sbf1.toml").read_text())
    assert settings["relay"]["address"] == f"https://{address}:8800"


REQUIRED = {"kind": "openpbs", "token_file": "/etc/virtcloud/pbs.token"}


@pytest.mark.parametrize(
    ("settings", "tables"),
    [
        ("", {"scheduler": REQUIRED}),
        ("[timing]\ncheck = 45\n", {"timing": {"check": 45}, "scheduler": REQUIRED}),
        ("[scheduler.hosts]\nn1 = 'h1'\n", {"scheduler": {**REQUIRED, "hosts": {"n1": "h1"}}}),
        (
            "[scheduler] # jobs\napart = ['login*']\n[scheduler.hosts]\nn1 = 'h1'\n[timing]\ncheck = 45\n",
            {"scheduler": {**REQUIRED, "apart": ["login*"], "hosts": {"n1": "h1"}}, "timing": {"check": 45}},
        ),
        (
            "[log]\nkind = 'x'\n[scheduler]\ntoken_file = '/etc/own.token'\ninterval = 60",
            {"log": {"kind": "x"}, "scheduler": {"kind": "openpbs", "token_file": "/etc/own.token", "interval": 60}},
        ),
    ],
    ids=["none", "another table", "hosts only", "scheduler", "own token"],
)
def test_the_inventory_may_contain_settings_of_the_scheduler(
    settings: str, tables: dict[str, object], tmp_path: Path
) -> None:
    written = write_agent(settings, tmp_path)
    assert {key: value for key, value in written.items() if isinstance(value, dict)} == tables


@pytest.mark.parametrize(
    ("lines", "proxies"),
    [
        (["192.0.2.7 STREAM lb", "192.0.2.7 DGRAM", "2001:db8::7 STREAM"], ["192.0.2.7", "2001:db8::7"]),
        (["127.0.1.1 STREAM lb", "127.0.1.1 DGRAM"], ["127.0.0.1", "127.0.1.1"]),
    ],
    ids=["another machine", "this machine"],
)
def test_sbf_trusts_the_source_addresses_of_its_balancers(lines: list[str], proxies: list[str], tmp_path: Path) -> None:
    """Debian's /etc/hosts can contain 127.0.1.1 as the address of a balancer on SBF's own machine.

    The kernel opens connections to 127.0.1.1 from 127.0.0.1.
    """
    write_files(ONE, "", tmp_path, lines)
    assert tomllib.loads((tmp_path / "sbf1.toml").read_text())["trusted_proxies"] == proxies


def test_the_program_gets_the_extras_of_its_services_and_settings(tmp_path: Path) -> None:
    traced = '[telemetry]\nendpoint = "http://collector.example.org:4318"\n'
    other = 'replica = "telemetry"\n# see [telemetry] in the documentation\n'
    inventory = {
        "all": {"vars": {**LOCAL, "folder": str(tmp_path), **read_defaults("program")}},
        "sbf": {"hosts": {"sbf1": {"sbf_settings": f'replica = "a"\n{traced}'}, "sbf2": {"sbf_settings": other}}},
        "guest_hosts": {"hosts": {"host1": {"agent_settings": traced}, "host2": {}}},
    }
    (tmp_path / "extras.j2").write_text("{{ program_extras | sort | join(',') }}")
    run_plays(inventory, [play("all", str(tmp_path / "extras.j2"), "{{ folder }}/{{ inventory_hostname }}")], tmp_path)
    extras = {name: (tmp_path / name).read_text() for name in ("sbf1", "sbf2", "host1", "host2")}
    assert extras == {"sbf1": "sbf,telemetry", "sbf2": "sbf", "host1": "agent,telemetry", "host2": "agent"}
