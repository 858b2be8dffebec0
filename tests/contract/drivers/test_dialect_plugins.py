"""Tests of dialects in another Python package, which pip installs."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints, distributions
from pathlib import Path

import pytest
from contract.service.test_server import write_settings

from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.switch.dialects import DIALECTS
from sbf_service.drivers.switch.plugins import GROUP, load_plugins

DIALECT = """from dataclasses import replace
from sbf_service.drivers.switch.dialects import DIALECTS
IOS = DIALECTS["cisco_ios"]
DIALECT = replace(IOS, title="AcmeOS")
NEVER_ENABLES = replace(IOS, netmiko="generic")
UNKNOWN_TO_NETMIKO = replace(IOS, netmiko="acme_os")
WRONG_PLACEHOLDER = replace(IOS, prepare=("interface {port}", "allow none {vlan}"))
RAISES_INDEX_ERROR = replace(IOS, see=lambda answers: answers[99])
"""
ENTRIES = f"""[{GROUP}]
acme_os = acme_sbf:DIALECT
acme_generic = acme_sbf:NEVER_ENABLES
acme_unknown = acme_sbf:UNKNOWN_TO_NETMIKO
acme_placeholder = acme_sbf:WRONG_PLACEHOLDER
acme_index_error = acme_sbf:RAISES_INDEX_ERROR
acme_text = acme_sbf:__doc__
acme_missing = acme_sbf.nowhere:DIALECT
cisco_ios = acme_sbf:DIALECT
Acme-OS = acme_sbf:DIALECT
"""
INFO = "acme_sbf-1.2.dist-info"
FILES = {
    "acme_sbf.py": DIALECT,
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: acme-sbf\nVersion: 1.2\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": ENTRIES,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    wheel = folder / "acme_sbf-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr(f"{INFO}/RECORD", "".join(f"{name},,\n" for name in [*FILES, f"{INFO}/RECORD"]))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(folder / "site")]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)  # noqa: S603 - command of this test
    return folder / "site"


@pytest.fixture(scope="module")
def entries(site: Path) -> Iterator[EntryPoints]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        (distribution,) = distributions(path=[str(site)])
        yield distribution.entry_points.select(group=GROUP)


def run(site: Path, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", *argv]
    return subprocess.run(  # noqa: S603 - command of this test
        command, input=stdin, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def fault(entries: EntryPoints, name: str) -> str:
    (plugin,) = (plugin for plugin in load_plugins(entries, frozenset(SWITCH_PLATFORMS)) if plugin.platform == name)
    assert plugin.dialect is None
    return str(plugin)


def test_an_installed_dialect_is_a_platform(entries: EntryPoints) -> None:
    usable = [plugin for plugin in load_plugins(entries, frozenset(SWITCH_PLATFORMS)) if plugin.dialect]
    assert [(plugin.platform, plugin.source, plugin.dialect and plugin.dialect.title) for plugin in usable] == [
        ("acme_os", "acme-sbf 1.2", "AcmeOS")
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("acme_generic", "field 'privileged' needs 'enable', which Netmiko's 'generic' never sends"),
        ("acme_unknown", "field 'netmiko' is 'acme_os': expected a device type from Netmiko's PLATFORMS.md"),
        ("acme_placeholder", "field 'prepare' contains 'allow none {vlan}': expected only the placeholders {port}"),
        ("acme_index_error", "field 'see' raises IndexError for the answers ''"),
        ("acme_text", "expected a Dialect, got NoneType"),
        ("acme_missing", "acme_sbf.nowhere:DIALECT does not load: ModuleNotFoundError"),
        ("cisco_ios", "SBF has a platform of this name"),
        ("Acme-OS", "expected a name of lower-case letters"),
    ],
)
def test_an_unusable_plugin_is_named_with_the_reason(entries: EntryPoints, name: str, reason: str) -> None:
    assert fault(entries, name).startswith(f"platform {name} of acme-sbf 1.2 cannot be used: ")
    assert reason in fault(entries, name)


def test_two_plugins_of_one_name_are_both_refused(entries: EntryPoints) -> None:
    twice = EntryPoints([*entries, EntryPoint("acme_os", "acme_sbf:DIALECT", GROUP)])
    plugins = [plugin for plugin in load_plugins(twice, frozenset(SWITCH_PLATFORMS)) if plugin.platform == "acme_os"]
    assert [plugin.fault for plugin in plugins] == ["several plug-ins have this name: uninstall all but one"] * 2


def test_sbf_platforms_lists_usable_and_unusable_plugins(site: Path) -> None:
    done = run(site, "sbf_command", "platforms")
    assert done.returncode == 1
    assert "acme_os  (acme-sbf 1.2)" in done.stdout.splitlines()
    assert "cisco_ios" in done.stdout.splitlines()
    assert "sbf: platform cisco_ios of acme-sbf 1.2 cannot be used: SBF has a platform of this name" in done.stderr
    assert not set(done.stdout.split()) & {"acme_generic", "acme_placeholder", "acme_missing"}


def test_an_unknown_platform_is_answered_with_the_plugins_faults(site: Path) -> None:
    trial = json.dumps({"platform": "acme_missing", "address": "192.0.2.1", "username": "viewer"})
    done = run(site, "sbf_service.trial", stdin=trial)
    assert done.returncode == 2
    assert "expected a known platform (acme_os, arista_eapi, " in done.stderr
    assert "platform acme_missing of acme-sbf 1.2 cannot be used: acme_sbf.nowhere:DIALECT does not load" in done.stderr


def test_sbf_serves_despite_unusable_plugins_and_logs_them(site: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sbf_service", "serve", "--config", str(write_settings(tmp_path))]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - command of this test
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " listening " in line:
                break
        process.terminate()
    text = "".join(lines)
    assert "platform_added platform=acme_os plugin='acme-sbf 1.2'" in text.replace('"', "'")
    assert text.count("platform_unusable") == 8
    assert "listening" in lines[-1]


def test_element_try_accepts_the_platform_of_a_plugin(site: Path) -> None:
    record = Path(__file__).parents[2] / "recordings/switches/cisco_ios.yaml"
    done = run(site, "virtcloud.cli", "element", "try", "--platform", "acme_os", "--replay", str(record))
    assert (done.returncode, done.stderr) == (0, "no neighbours\n")


def test_every_built_in_dialect_passes_the_checks_of_plugins() -> None:
    entries = EntryPoints(
        EntryPoint(f"x_{name}", f"sbf_service.drivers.switch.dialects.{name}:DIALECT", GROUP) for name in DIALECTS
    )
    assert [str(plugin) for plugin in load_plugins(entries, frozenset(SWITCH_PLATFORMS)) if plugin.fault] == []
