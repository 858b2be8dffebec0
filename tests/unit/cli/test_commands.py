import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, TOPOLOGY, FakeSbf

from sbf_command import main as sbf
from virtcloud import __version__
from virtcloud.cli import COMMANDS, main
from virtcloud.cli.options import NumberType, WholeNumberType


def test_sites_are_listed_with_the_state_of_their_pools(run: RunCommand) -> None:
    assert [line.split() for line in run("site", "list").stdout.splitlines()] == [
        ["site", "pool", "claimed", "quarantined", "free", "hosts"],
        ["brno", "100-199", "100", "101-199", "h1,", "h2"],
    ]


def test_a_site_is_shown_as_json(run: RunCommand) -> None:
    assert json.loads(run("site", "show", "brno", "--json").stdout)["claimed"] == "100"


def test_a_pool_is_shown_as_ranges(run: RunCommand) -> None:
    assert run("pool", "show", "brno").stdout == "100-199\n"


def test_a_pool_is_set(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("pool", "set", "brno", "100-199, 300")
    assert (result.stdout, sbf.put) == (
        "the pool of site brno is 100-199,300\n",
        [("/v1/sites/brno/pool", {"vlans": "100-199,300"})],
    )
    assert sbf.matched == ['"abc"']


@pytest.mark.parametrize("vlans", ["0", "5000", "200-100", "x"])
def test_a_malformed_pool_is_not_sent(run: RunCommand, sbf: FakeSbf, vlans: str) -> None:
    result = run("pool", "set", "brno", vlans)
    assert (result.exit_code, result.stderr.startswith("virtcloud: expected "), sbf.put) == (2, True, [])


def test_elements_are_listed_with_their_revisions(run: RunCommand) -> None:
    assert run("element", "list").stdout.splitlines()[1].split() == ["brno-sw", "switch", "brno", "4", "3", "never"]


def test_a_switch_is_shown_with_the_vlans_of_its_ports(run: RunCommand) -> None:
    lines = run("element", "show", "brno-sw").stdout.splitlines()
    assert [line.split() for line in lines[-2:]] == [["p1", "100,102"], ["p2", "none"]]


def test_an_unreachable_switch_is_shown_with_the_time_of_reading(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    path = "/v1/elements/brno-sw"
    unreachable = {**DOCUMENTS[path], "reachable": False, "read_at": "2026-01-01T08:00:00Z"}
    monkeypatch.setitem(DOCUMENTS, path, unreachable)
    monkeypatch.setitem(DOCUMENTS, "/v1/elements", [unreachable])
    output = run("element", "show", "brno-sw").stdout
    assert "\nread at 2026-01-01 08:00:00; the device is unreachable and may have restarted\n" in output
    assert "VLAN 100,102 as of 2026-01-01 08:00:00, unreachable" in run("element", "list").stdout


def test_a_topology_is_set_from_a_file(run: RunCommand, sbf: FakeSbf, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(json.dumps(TOPOLOGY))
    result = run("topology", "set", str(tmp_path / "t.yaml"))
    assert (result.stdout, sbf.put[0][0]) == ("topology small: 1 site, 1 element, 0 links\n", "/v1/topology")


def test_a_topology_is_set_with_the_version_of_its_file(run: RunCommand, sbf: FakeSbf) -> None:
    run("topology", "set", "-", stdin=json.dumps(TOPOLOGY | {"version": 7}))
    assert (sbf.matched, "version" in sbf.put[0][1]) == (['"7"'], False)


def test_force_sets_a_topology_of_any_version(run: RunCommand, sbf: FakeSbf) -> None:
    run("topology", "set", "-", "--force", stdin=json.dumps(TOPOLOGY | {"version": 7}))
    assert sbf.matched == ["*"]


def test_a_topology_is_shown_with_its_version(run: RunCommand) -> None:
    assert run("topology", "show").stdout.splitlines()[0] == "version: 7"


def test_a_malformed_topology_is_reported_with_its_line(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "set", "-", stdin="name: small\nsites:\n- name: Brno\n")
    assert (result.exit_code, sbf.put) == (2, [])
    assert "virtcloud: <stdin>:3: sites.0.name: expected a name" in result.stderr


def test_a_topology_that_is_shown_can_be_set_again(run: RunCommand, sbf: FakeSbf) -> None:
    output = run("topology", "show").stdout
    assert run("topology", "set", "-", stdin=output).exit_code == 0
    assert sbf.put[0][1]["sites"][0]["name"] == "brno"


def _commands(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    yield names
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            subcommand = command.get_command(click.Context(command), name)
            assert subcommand is not None
            yield from _commands(subcommand, *names, name)


def _parameter_types() -> dict[str, Any]:
    types = {}
    for names in _commands(main):
        command: click.Command = main
        for name in names:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name) or command
        types |= {f"{' '.join(names)}: {param.name}": param.type for param in command.params}
    return types


def test_input_files_are_utf8_in_every_locale() -> None:
    """If a command read a UTF-8 file in the locale's encoding (ISO 8859-1), SBF would store wrong characters."""
    encodings = {name: kind.encoding for name, kind in _parameter_types().items() if isinstance(kind, click.File)}
    assert len(encodings) > 5
    assert set(encodings.values()) == {"utf-8-sig"}, encodings


def test_a_byte_order_mark_is_no_part_of_a_file(run: RunCommand, sbf: FakeSbf, tmp_path: Path) -> None:
    (tmp_path / "user-data").write_bytes(b"\xef\xbb\xbf#cloud-config\r\nruncmd: [date]\r\n")
    arguments = ("--host", "h1", "--image", "busybox", "--user-data", str(tmp_path / "user-data"))
    done = run("cluster", "create", "demo", "--no-wait", *arguments)
    assert done.exit_code == 0, done.output
    assert [guest.user_data for guest in sbf.requests[0].spec.guests] == ["#cloud-config\nruncmd: [date]\n"]


SESSIONS = {("cluster", "ssh"), ("guest", "connect"), ("guest", "console"), ("guest", "log")}
"""Commands that copy bytes between the terminal and a guest, so they have no result in JSON."""
COMMANDS_OF_SBF = [names for names in _commands(main) if names[:1] not in {("lab",), ("doctor",)}]


@pytest.mark.parametrize("names", COMMANDS_OF_SBF, ids=" ".join)
def test_every_command_has_help_with_an_example(names: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*names, "--help"])
    assert (result.exit_code, "Example: virtcloud" in " ".join(result.output.split())) == (0, True)


def test_lists_of_commands_have_complete_sentences() -> None:
    helps = [CliRunner().invoke(main, [*names, "--help"]).stdout for names in _commands(main)]
    assert [line for text in helps for line in text.splitlines()[1:] if line.endswith("...")] == []


@pytest.mark.parametrize(
    "names", [names for names in COMMANDS_OF_SBF if len(names) == 2 and names not in SESSIONS], ids=" ".join
)
def test_every_command_that_calls_sbf_can_print_json(names: tuple[str, ...]) -> None:
    assert "--json" in CliRunner().invoke(main, [*names, "--help"]).output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("cluster", "list", "--limit", "all"), "'--limit': expected a whole number, at least 1, got 'all'"),
        (("cluster", "list", "--limit", "0"), "'--limit': expected a whole number, at least 1, got '0'"),
        (("pool", "clean", "brno", "5000"), "'VLAN': expected a whole number from 1 to 4094, got '5000'"),
        (("quota", "set", "eva", "--sites", "1.5"), "'--sites': expected a whole number from 1 to 1000000, got '1.5'"),
        (("element", "try", "--vlan", "x"), "'--vlan': expected a whole number from 1 to 4094, got 'x'"),
        (("element", "try", "--timeout", "x"), "'--timeout': expected a number from 0.1 to 600, got 'x'"),
    ],
)
def test_a_malformed_number_is_reported_with_its_limits(
    run: RunCommand, arguments: tuple[str, ...], expected: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_every_number_option_names_its_limits() -> None:
    numbers = {name: kind for name, kind in _parameter_types().items() if kind.name.startswith(("integer", "float"))}
    assert len(numbers) > 20
    assert [name for name, kind in numbers.items() if not isinstance(kind, WholeNumberType | NumberType)] == []


def test_the_version_option_prints_the_version_of_the_distribution() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"virtcloud, version {__version__}\n"


def test_help_imports_no_command() -> None:
    code = "import sys, virtcloud.cli as cli; cli.main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout  # noqa: S603
    heavy = [
        "httpx",
        "pydantic",
        "libvirt",
        "pyroute2",
        "rich.console",
        *(home.partition(":")[0] for home, _ in COMMANDS.values()),
    ]
    assert [name for name in heavy if f"'{name}'" in output] == []


INSTALL_LAB = "pip install 'virtcloud[lab]'; or, in a clone of virtcloud: make setup"


def test_a_command_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "virtcloud.cli.lab", None)
    result = CliRunner().invoke(main, ["lab", "up"])
    assert (result.exit_code, f"{INSTALL_LAB}\n" in result.stderr) == (2, True)


def test_a_command_without_a_base_library_names_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "virtcloud.cli.audit", None)
    result = CliRunner().invoke(main, ["audit"])
    assert (result.exit_code, result.stderr.endswith("; install it with: pip install virtcloud\n")) == (2, True)


def test_doctor_without_the_lab_names_both_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "virtcloud.lab.prerequisites", None)
    result = CliRunner().invoke(main, ["doctor"])
    assert (result.exit_code, f"{INSTALL_LAB}\n" in result.stderr) == (2, True)
    assert "virtcloud doctor --host" in result.stderr


def test_the_service_names_its_own_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sbf_service.__main__", None)
    result = CliRunner().invoke(sbf, ["serve"])
    assert (result.exit_code, "pip install 'virtcloud[sbf]'" in result.stderr) == (2, True)


def test_an_unknown_command_exits_with_2() -> None:
    assert CliRunner().invoke(main, ["clutser"]).exit_code == 2


@pytest.mark.parametrize("arguments", [("exec", "station", "true"), ("shell", "station")])
def test_an_unknown_user_of_the_lab_is_refused(run: RunCommand, arguments: tuple[str, ...]) -> None:
    command, *others = arguments
    result = run("lab", command, "--user", "alic", *others)
    assert (result.exit_code, "'alic' is not one of 'alice', 'bob'" in result.stderr) == (2, True)


def test_the_package_exports_the_python_api_without_importing_httpx() -> None:
    code = "import virtcloud, sys; assert 'httpx' not in sys.modules; print(virtcloud.Client, virtcloud.ClusterSpec)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0  # noqa: S603


def test_the_shell_completes_commands_with_their_help() -> None:
    environment = {"_VIRTCLOUD_COMPLETE": "bash_complete", "COMP_WORDS": "virtcloud cl", "COMP_CWORD": "1"}
    result = CliRunner(env=environment).invoke(main, prog_name="virtcloud")
    assert result.output == "plain,cluster\n"


def test_ctrl_c_in_generated_code_exits_with_130(tmp_path: Path) -> None:
    """Ctrl-C interrupts a call of exec() in a program that was started with ``python -m``.

    Without ``exit_interrupted``, Python would end the program by SIGINT, although the program handles the exception.
    """
    program = """
import click
from virtcloud.cli.groups import exit_interrupted

@click.command()
@click.pass_context
def main(context):
    click.echo("started", err=True)  # loads all modules that a message needs
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        exit_interrupted(context)

main()
"""
    (tmp_path / "interrupted.py").write_text(program)
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (130, "started\n\nvirtcloud: interrupted\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cluster", "create", "demo", "--spec", "{binary}"),
        ("topology", "set", "{binary}"),
        ("image", "add", "mine", "{binary}"),
        ("image", "add", "mine", "https://[bad/x"),
        ("key", "add", "{binary}"),
        ("cluster", "create", "demo", "--host", "h1", "--image", "busybox", "--user-data", "{binary}"),
    ],
)
def test_a_malformed_file_or_address_exits_with_code_2(
    run: RunCommand, sbf: FakeSbf, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(255, 0, -1)))
    done = run(*(word.format(binary=binary) for word in arguments))
    assert (done.exit_code, sbf.put) == (2, [])
    assert done.stderr.splitlines()[-1].startswith("virtcloud: ")


@pytest.mark.parametrize(
    ("redirection", "exit_code", "message"),
    [
        (">/dev/full", 1, "virtcloud: cannot write the output: No space left on device\n"),
        (">&-", 0, ""),
        ("2>&- <&-", 0, ""),
        ("| true", 0, ""),
    ],
)
def test_an_output_that_cannot_be_written_is_no_traceback(redirection: str, exit_code: int, message: str) -> None:
    """The help text contains characters that the encoding of the output lacks."""
    command = ["sh", "-c", f"{sys.executable} -m virtcloud.cli image add --help {redirection}"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    assert (done.returncode, done.stderr) == (exit_code, message)
