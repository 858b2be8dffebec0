"""Tests of ``virtcloud element try`` on emulated switches. The command changes no switch.

The command starts a program with the driver. Most tests run this program in the test's process, which is faster.
"""

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support.emulators import emulate
from support.emulators.switch_device import EmulatedSwitch

from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.cli import main
from virtcloud.cli.element_try import read_record
from virtcloud.model.errors import BadInput

ROOT = Path(__file__).parents[3]
Completed = subprocess.CompletedProcess[str]
ElementTry = Callable[..., Completed]


@pytest.fixture
def element_try_with_process(capfd: pytest.CaptureFixture[str]) -> ElementTry:
    """Return a function that runs ``virtcloud element try`` in this process. The driver runs in a subprocess."""

    def run(*arguments: object) -> Completed:
        with pytest.raises(SystemExit) as end:
            main(["element", "try", *map(str, arguments)])
        output = capfd.readouterr()
        return Completed([], int(end.value.code or 0), output.out, output.err)

    return run


@pytest.fixture
def element_try(element_try_with_process: ElementTry, monkeypatch: pytest.MonkeyPatch) -> ElementTry:
    programs = SimpleNamespace(run=run_program, PIPE=subprocess.PIPE)
    monkeypatch.setattr("virtcloud.cli.element_try.subprocess", programs)
    return element_try_with_process


def run_program(argv: list[str], **options: object) -> Completed:
    """Run a module of SBF in this process, with the text ``input`` as its standard input."""
    code, handler = 0, signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
        patch.setattr(sys, "stdin", StringIO(str(options["input"])))
        try:
            importlib.import_module(argv[-1]).main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            signal.signal(signal.SIGINT, handler)
    return Completed(argv, code, output.getvalue())


def try_switch(
    element_try: ElementTry, switch: EmulatedSwitch, folder: Path, *more: object, platform: str = ""
) -> Completed:
    (folder / "password").write_text(f"{switch.password}\n", encoding="utf-8")
    (folder / "enable").write_text(f"{switch.secret}\n", encoding="utf-8")
    login = ("--username", switch.username, "--password-file", folder / "password", "--enable-file", folder / "enable")
    return element_try("--platform", platform or switch.platform, "--address", switch.address, *login, *more)


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize("platform", DIALECTS)
def test_a_trial_sends_only_show_commands(element_try: ElementTry, platform: str, tmp_path: Path) -> None:
    with emulate(platform) as switch:
        port = switch.port_names[0].replace(" ", "")
        recorder, before, startup = switch.record_changes(), switch.running_config(), switch.config_of(switch.startup)
        ended = try_switch(element_try, switch, tmp_path, "--port", port, "--vlan", 100)
        assert "100" not in " ".join(switch.commands)
        assert recorder.changes == []
        assert (switch.running_config(), switch.config_of(switch.startup), switch.saves) == (before, startup, 0)
    assert ended.returncode == 0, ended.stderr
    assert f"lines that SBF would send for VLAN 100 on {port} (none was sent):" in ended.stdout
    assert "100" in ended.stdout.partition("(none was sent):")[2]


def test_vlans_and_ports_are_printed_as_understood(element_try_with_process: ElementTry, tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        a, b, c = switch.port_names[:3]
        switch.occupy(vlans={20: "offices"}, access={a: 20}, trunks={b: [20], c: "all"}, native={b: 7}, shut=[a])
        printed = rows(try_switch(element_try_with_process, switch, tmp_path).stdout)
    assert "20 offices" in printed
    assert "VLAN IDs that the switch reserves: 1006" in printed
    assert "GigabitEthernet1/0/1 access 20 yes" in printed
    assert "GigabitEthernet1/0/2 trunk 20 7" in printed
    assert "GigabitEthernet1/0/3 trunk all VLANs" in printed


def test_a_record_of_unknown_lines_is_private(element_try: ElementTry, tmp_path: Path) -> None:
    record = tmp_path / "record.yaml"
    with emulate("cisco_ios") as switch:
        switch.fail("print", "^show vlan brief", text="VLAN of all things\n", times=9)
        ended = try_switch(element_try, switch, tmp_path, "--record", record)
    assert ended.returncode == 1
    assert "cannot parse the answers to 'show vlan brief', " in ended.stderr
    assert ": no table of VLANs in 'VLAN of all things'" in ended.stderr
    recorded = yaml.safe_load(record.read_text(encoding="utf-8"))["asked"]
    assert recorded[0] == {"command": "show vlan brief", "answer": ["VLAN of all things"]}
    assert oct(record.stat().st_mode & 0o777) == "0o600"


def test_a_record_is_replayed_without_the_switch(element_try: ElementTry, tmp_path: Path) -> None:
    record = tmp_path / "record.yaml"
    with emulate("hp_comware") as switch:
        port = switch.port_names[0]
        first = try_switch(
            element_try, switch, tmp_path, "--port", port, "--vlan", 100, "--record", record, "--source", "an emulator"
        )
    argv = [sys.executable, "-m", "virtcloud.cli", "element", "try", "--replay", str(record)]
    again = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - our own program
    assert first.stdout.startswith(again.stdout)
    assert yaml.safe_load(record.read_text(encoding="utf-8"))["source"] == "an emulator"


def test_the_driver_imports_no_module_from_the_current_folder(element_try: ElementTry, tmp_path: Path) -> None:
    record, folder = tmp_path / "record.yaml", tmp_path / "current"
    with emulate("hp_comware") as switch:
        try_switch(element_try, switch, tmp_path, "--record", record)
    folder.mkdir()
    (folder / "sbf_service.py").write_text("import pathlib; pathlib.Path('imported').touch()", encoding="utf-8")
    argv = [sys.executable, "-P", "-m", "virtcloud.cli", "element", "try", "--replay", str(record)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(argv, cwd=folder, env=environment, capture_output=True, check=True, timeout=60)  # noqa: S603 - our own program
    assert not (folder / "imported").exists()


def test_a_replay_with_another_result_fails(element_try: ElementTry, tmp_path: Path) -> None:
    record = tmp_path / "record.yaml"
    with emulate("cisco_ios") as switch:
        try_switch(element_try, switch, tmp_path, "--record", record)
    text = record.read_text(encoding="utf-8")
    record.write_text(re.sub("mode: dynamic", "mode: access", text, count=1), encoding="utf-8")
    ended = element_try("--replay", record)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("virtcloud: port GigabitEthernet1/0/1: parsed ParsedPort(mode='dyn")


def test_a_record_with_an_invalid_value_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "record.yaml"
    record.write_text("platform: cisco_ios\nsource: 2026-02-30\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"record\.yaml:2: not YAML: expected a valid value of type timestamp"):
        read_record(record)


def test_the_output_names_a_port_in_other_use(element_try: ElementTry, tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        switch.occupy(vlans={20: "offices"}, access={switch.port_names[0]: 20})
        ended = try_switch(element_try, switch, tmp_path, "--port", "Gi1/0/1", "--vlan", 100)
    assert ended.returncode == 1
    assert "port Gi1/0/1 is an access port in VLAN 20: SBF changes the port only after its adoption" in ended.stderr
    assert "switchport trunk allowed vlan add 100" in ended.stdout


def test_a_switch_that_refuses_the_login_is_a_failure(element_try: ElementTry, tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        wrong = tmp_path / "wrong"
        wrong.write_text("guess\n", encoding="utf-8")
        ended = try_switch(element_try, switch, tmp_path, "--password-file", wrong)
    assert ended.returncode == 1
    assert "refuses the login of 'admin': check the credential" in ended.stderr


def test_a_trial_does_not_claim_to_retry_an_unreachable_switch(element_try: ElementTry, tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        switch.address = "127.0.0.1:1"
        ended = try_switch(element_try, switch, tmp_path)
    assert ended.returncode == 1
    assert "switch tried (127.0.0.1:1) does not answer: " in ended.stderr
    assert "tries again" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--platform", "cisco_iso", "--address", "192.0.2.1"), "expected a known platform (arista_eapi, "),
        (("--platform", "juniper_junos", "--address", "192.0.2.1"), "expected a platform with a command line"),
        (("--platform", "cisco_ios", "--address", "192.0.2.1:99999"), "expected an address"),
        (("--platform", "cisco_ios", "--address", "192.0.2.1", "--vlan", "100"), "expected a port for the example"),
        (("--platform", "cisco_ios", "--address", "192.0.2.1", "--vlan", "5000"), "5000"),
        (("--platform", "cisco_ios"), "expected --platform, --address and --username, or --replay FILE"),
        (("--platform", "cisco_ios", "--address", "192.0.2.1", "--username", "\udcf2"), "in UTF-8, got other bytes"),
        (("--replay", "/nowhere/record.yaml"), "/nowhere/record.yaml: expected a recorded conversation"),
    ],
)
def test_bad_input_of_a_trial_is_exit_code_2(element_try: ElementTry, arguments: tuple[str, ...], message: str) -> None:
    ended = element_try("--username", "viewer", "--key-file", "/nowhere/key", *arguments)
    assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr


def test_the_command_ends_with_its_drivers_exit_code(element_try_with_process: ElementTry) -> None:
    login = ("--username", "viewer", "--key-file", "/nowhere/key")
    assert element_try_with_process(*login, "--platform", "cisco_iso", "--address", "192.0.2.1").returncode == 2


def test_a_password_in_another_encoding_is_bad_input(element_try: ElementTry, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes("jičín".encode("iso8859-2"))
    target = ("--platform", "cisco_ios", "--address", "192.0.2.1", "--username", "viewer")
    ended = element_try(*target, "--password-file", tmp_path / "password")
    assert (ended.returncode, "expected a password in UTF-8" in ended.stderr) == (2, True), ended.stderr
