"""Tests of the search for the client's token, and of the rejection of unsafe token files."""

import errno
import io
import os
import pwd
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import SecretStr
from support.fake_machine.script import Script

from virtcloud.cli import main
from virtcloud.client import api
from virtcloud.client.api import Client
from virtcloud.client.credentials import read_token, token_source, write_token
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.errors import BadInput, Forbidden, Unauthenticated

URL = "http://sbf"
ME = '{"name": "alice", "role": "user", "sites": [], "token": "aaaaaaaa"}'


class Interrupted(io.RawIOBase):
    """A standard input at which the user presses Ctrl-C."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: object) -> int:
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("VIRTCLOUD_TOKEN_FILE", raising=False)
    return tmp_path


def secret_of(token: SecretStr | None) -> str | None:
    return None if token is None else token.get_secret_value()


def write(path: Path, token: str) -> Path:
    write_token(path, token)
    return path


def test_token_sources_have_a_fixed_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert token_source(URL)() is None
    write(home / "virtcloud" / "token", "vc_stored")
    assert secret_of(token_source(URL)()) == "vc_stored"
    monkeypatch.setenv("VIRTCLOUD_TOKEN_FILE", str(write(home / "named", "vc_environment")))
    assert secret_of(token_source(URL)()) == "vc_environment"
    assert secret_of(token_source(URL, file=write(home / "other", "vc_file"))()) == "vc_file"
    assert secret_of(token_source(URL, "given", home / "other")()) == "given"


def test_a_local_socket_uses_only_a_named_token_file(home: Path) -> None:
    write(home / "virtcloud" / "token", "vc_stored")
    assert token_source("unix:///run/sbf.sock")() is None
    assert secret_of(token_source("unix:///run/sbf.sock", file=home / "virtcloud" / "token")()) == "vc_stored"


def test_a_replaced_token_file_applies_to_the_next_call(home: Path) -> None:
    source = token_source(URL, file=write(home / "t", "vc_first"))
    assert secret_of(source()) == "vc_first"
    write(home / "t", "vc_second")
    assert secret_of(source()) == "vc_second"


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o610])
def test_a_file_that_others_could_read_is_refused(home: Path, mode: int) -> None:
    path = write(home / "t", "x")
    path.chmod(mode)
    message = f"token file {path}: expected mode 0600, got {mode:04o}: other local users could read the token. "
    with pytest.raises(BadInput, match=re.escape(message)):
        read_token(path)


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the path of the home folder unknown, as in a container whose user ID has no account."""
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def find_account(_uid: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", find_account)


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("arguments", [["whoami"], ["login", "--from", "{token}"], ["cluster", "ssh", "demo"]])
def test_the_error_without_a_home_folder_names_a_variable(script: Script, tmp_path: Path, arguments: list[str]) -> None:
    script.answer(200, ME)
    path = write(tmp_path / "t", "vc_secret")
    done = CliRunner().invoke(main, ["--url", script.url, *(word.format(token=path) for word in arguments)])
    assert (done.exit_code, "found neither: set HOME or XDG_C" in done.stderr) == (2, True), done.output


def test_the_home_folder_of_another_user_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(Unauthenticated, match="virtcloud/token: cannot be read: Permission denied; set HOME to your"):
        token_source(URL)()


def test_a_missing_token_file_is_named(home: Path) -> None:
    with pytest.raises(Unauthenticated, match="none: cannot be read: No such file or directory"):
        read_token(home / "none")


def test_an_invalid_token_is_reported_with_its_file(home: Path) -> None:
    with pytest.raises(BadInput, match="t: expected a token such as vc_…, got something else"):
        read_token(write(home / "t", "-----BEGIN CERTIFICATE-----"))


def test_a_token_that_sbf_refuses_is_reported_with_its_file(home: Path, script: Script) -> None:
    stored, named = write(home / "virtcloud" / "token", "vc_short"), write(home / "named", "vc_short")
    for arguments, file in (([], stored), (["--token-file", str(named)], named)):
        script.problem(401, "unauthenticated", "expected a complete token, got something else")
        done = CliRunner().invoke(main, ["--url", script.url, *arguments, "whoami"])
        expected = f"virtcloud: token file {file}: expected a complete token, got something else\n"
        assert (done.exit_code, done.stderr) == (2, expected)


def test_without_a_token_file_the_error_names_none(script: Script) -> None:
    script.problem(401, "unauthenticated", "this SBF requires a token")
    done = CliRunner().invoke(main, ["--url", script.url, "whoami"])
    assert done.stderr == "virtcloud: this SBF requires a token\n"


@pytest.mark.parametrize("token", [b"vc_a\nvc_b\n", b"vc_\xff\n", "vc_é\n".encode(), b"vc_a b\n", b"password\n"])
def test_text_that_is_no_token_is_neither_sent_nor_shown(home: Path, script: Script, token: bytes) -> None:
    (home / "t").write_bytes(token)
    (home / "t").chmod(0o600)
    for arguments in (["login", "--from", str(home / "t")], ["--token-file", str(home / "t"), "whoami"]):
        done = CliRunner().invoke(main, ["--url", script.url, *arguments])
        assert (done.exit_code, done.stderr.partition(": expected ")[2]) == (
            2,
            "a token such as vc_…, got something else\n",
        )
    assert script.headers == []


def test_a_token_is_written_for_its_owner_only(home: Path) -> None:
    assert write(home / "new" / "t", "x").stat().st_mode & 0o777 == 0o600


def test_simultaneous_commands_write_the_same_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for written in [threads.submit(write, tmp_path / "t", f"vc_{number}") for number in range(200)]:
            written.result()
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_token_is_sent_as_a_bearer_token(script: Script) -> None:
    script.answer(200, ME)
    with Client(script.url, token="vc_x") as client:  # noqa: S106 - no password
        assert client.sbf.whoami().name == "alice"
    assert script.headers[0]["authorization"] == "Bearer vc_x"


@pytest.mark.parametrize(("slug", "kind"), [("unauthenticated", Unauthenticated), ("forbidden", Forbidden)])
def test_an_authorization_error_raises_the_exception_of_its_type(
    client: SbfClient, script: Script, slug: str, kind: type[Exception]
) -> None:
    script.problem(403, slug, "no")
    with pytest.raises(kind, match="no"):
        client.whoami()


def test_login_stores_a_valid_token(script: Script, home: Path) -> None:
    script.answer(200, ME)
    done = CliRunner().invoke(main, ["--url", script.url, "login"], input="vc_x\n")
    assert (done.exit_code, script.headers[0]["authorization"]) == (0, "Bearer vc_x")
    assert done.stdout == f"you are alice, user; the token is stored in {home}/virtcloud/token\n"
    assert (home / "virtcloud" / "token").read_text() == "vc_x\n"


def test_login_at_a_socket_says_how_to_send_the_token(sbf: str, home: Path) -> None:
    with SbfClient(sbf) as client:
        token = client.create_token("alice", Role.USER).token
    done = CliRunner().invoke(main, ["--url", sbf, "login"], input=f"{token}\n")
    assert done.exit_code == 0
    assert done.stderr == (
        f"virtcloud: commands at {sbf} do not send the stored token, because SBF identifies you by your user ID there. "
        f"To send the token: --token-file {home}/virtcloud/token\n"
    )


def test_login_at_the_default_socket_names_the_socket(sbf: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTCLOUD_URL", raising=False)
    monkeypatch.setattr(api, "DEFAULT_URL", sbf)
    with SbfClient(sbf) as client:
        token = client.create_token("alice", Role.USER).token
    done = CliRunner().invoke(main, ["login"], input=f"{token}\n")
    assert done.stderr.startswith(f"virtcloud: commands at {sbf} do not send the stored token")


def test_login_is_silent_if_a_variable_names_the_token(sbf: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTCLOUD_TOKEN_FILE", f"{home}/virtcloud/token")
    with SbfClient(sbf) as client:
        token = client.create_token("alice", Role.USER).token
    assert CliRunner().invoke(main, ["--url", sbf, "login"], input=f"{token}\n").stderr == ""


def test_a_read_only_home_is_refused_by_ssh_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even root cannot create a folder in /proc."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    done = CliRunner().invoke(main, ["--url", "http://127.0.0.1:1", "cluster", "ssh", "demo"])
    assert (done.exit_code, "; set XDG_CACHE_HOME to a folder that you can write" in done.stderr) == (2, True)


def test_login_without_a_terminal_shows_no_warning(script: Script, home: Path) -> None:
    """In a separate process session (setsid(2)), login has no terminal. Python's getpass would print a warning."""
    script.answer(200, ME)
    arguments = [sys.executable, "-m", "virtcloud.cli", "--url", script.url, "login"]
    done = subprocess.run(  # noqa: S603 - our own program
        arguments, input="vc_x\n", capture_output=True, text=True, check=False, start_new_session=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (home / "virtcloud" / "token").read_text() == "vc_x\n"


def test_ctrl_c_at_the_token_prompt_is_exit_code_130(script: Script) -> None:
    done = CliRunner().invoke(main, ["--url", script.url, "login"], input=io.BufferedReader(Interrupted()))
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (130, "virtcloud: interrupted")


def test_login_without_input_names_the_option_for_a_file(script: Script) -> None:
    done = CliRunner().invoke(main, ["--url", script.url, "login"], input="")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        2,
        (
            "virtcloud: token: expected a token as input, got the end of the input: pass the token's file (virtcloud "
            "login --from FILE)"
        ),
    )


def test_login_stores_no_rejected_token(script: Script, home: Path) -> None:
    script.problem(401, "unauthenticated", "the token is not known here")
    done = CliRunner().invoke(main, ["--url", script.url, "login", "--from", "-"], input="vc_x\n")
    assert (done.exit_code, done.stderr) == (2, "virtcloud: the token is not known here\n")
    assert not (home / "virtcloud").exists()


def test_a_token_does_not_replace_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="pipe: expected a file, got a folder, a device, a pipe or a socket"):
        write_token(tmp_path / "pipe", "vc_1")
    assert (tmp_path / "pipe").is_fifo()
