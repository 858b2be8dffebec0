import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
DECISIONS = ROOT / "docs" / "decisions"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_decisions_are_numbered_without_gaps_and_all_are_listed() -> None:
    files = sorted(page.name for page in DECISIONS.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))
    listed = re.findall(r"^\d+\. \[.*\]\((.*)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert listed == files


def test_how_to_pages_call_no_sbf_without_tls() -> None:
    """The installation pages configure TLS. Local commands use SBF's socket."""
    pages = [*(ROOT / "docs" / "how-to").rglob("*.md")]
    plain = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\]|[a-z0-9.-]*example\.org):8800")
    assert [page.name for page in pages if plain.search(page.read_text())] == []


def test_pages_and_help_use_the_port_of_the_installation() -> None:
    installation = (ROOT / "docs" / "how-to" / "install-on-your-machines.md").read_text()
    ports = set(re.findall(r'^listen = ".*:([0-9]+)"$', installation, re.MULTILINE))
    pages = [*(ROOT / "docs" / "how-to").rglob("*.md"), ROOT / "docs" / "reference" / "commands.md"]
    called = {
        port for page in pages for port in re.findall(r"https://sbf\.example\.org(?::([0-9]+))?", page.read_text())
    }
    assert called == ports == {"8800"}


@pytest.mark.parametrize("name", ["install-the-hooks", "torque", "when-something-fails"])
def test_pages_of_batch_systems_name_the_certificate_of_sbf(name: str) -> None:
    """The installation page creates a certificate that no machine trusts by itself."""
    page = (ROOT / "docs" / "how-to" / f"{name}.md").read_text()
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+|^```.*?^```", page, re.MULTILINE | re.DOTALL)
    calls = [block for block in blocks if "https://sbf.example.org" in block]
    assert calls
    assert [block for block in calls if "/etc/virtcloud/authority.crt" not in block] == []


def test_the_postgresql_page_uses_the_ansible_roles_connection_options() -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-postgresql.md").read_text()
    settings, behind_balancer = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    defaults = yaml.safe_load((ROOT / "ansible" / "roles" / "sbf" / "defaults" / "main.yml").read_text())
    address, role = (text.partition("?")[2] for text in (settings["database"], defaults["sbf_database"]))
    assert re.findall(r"(\w+)=", address) == re.findall(r"(\w+)=", role.partition("'")[0])
    assert settings["relay"].keys() == {"address"}
    assert behind_balancer.keys() == {"trusted_proxies"}


def test_the_postgresql_page_configures_haproxy_as_ansible_does() -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-postgresql.md").read_text()
    template = (ROOT / "ansible" / "roles" / "balancer" / "templates" / "haproxy.cfg.j2").read_text()
    (block,) = re.findall(r"```haproxy\n(.*?)```", page, re.DOTALL)
    role, lines = ([line.strip() for line in text.splitlines()] for text in (template, block))
    assert [line.split()[0] for line in lines if line not in role] == ["bind", "server", "server"]
    assert ["v4v6 ssl" in line for line in (*role, *lines) if line.startswith("bind :")] == [True, True]
    needed = ("timeout client", "timeout server", "timeout tunnel", "http-request", "http-check", "default-server")
    assert [line for line in role if line.startswith(needed) and line not in lines] == []


def test_each_scrape_job_of_sbf_uses_tls_and_a_token() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-it.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    jobs = [job for block in blocks for job in block.get("scrape_configs", ())]
    assert [job["job_name"] for job in jobs] == ["virtcloud", "virtcloud-hosts"]
    assert jobs[0]["scheme"] == "https"
    assert jobs[0]["tls_config"].keys() == {"ca_file"}
    assert jobs[0]["authorization"].keys() == {"credentials_file"}


def test_the_monitoring_page_creates_the_folder_of_the_rules() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-it.md").read_text()
    folder = re.search(r"cp monitoring/prometheus/\*\.yml (\S+)/\n", page)
    assert folder
    assert f"mkdir -p {folder[1]}\n" in page[: folder.start()]


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = set(re.findall(r"\(([^)]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("decisions/0")} - {"README.md"} == listed - {
        "../CONTRIBUTING.md"
    }


def test_generated_pages_are_the_same_in_a_wide_terminal() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    ended = subprocess.run(  # noqa: S603 - a program of this repository
        command, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_printed_help_equals_the_page() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "virtcloud.cli", "cluster", "wait", "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    options = printed.partition("Options:")[2]
    assert options in (ROOT / "docs" / "reference" / "commands.md").read_text()
