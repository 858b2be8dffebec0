"""Reading of a job user's public keys with the user's rights and a time limit."""

import importlib
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.kernel.mount_namespace import dead_file_server, run_with_own_mounts

from pbs_hooks.kit import user_keys
from pbs_hooks.kit.deadline import ChildError

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home folder of the user nobody, with a folder .ssh.

    The home folder is outside of tmp_path, because only root can enter tmp_path.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / ".ssh").mkdir(mode=0o755)
        account = pwd.struct_passwd(("nobody", "x", NOBODY, NOBODY, "", name, "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwnam", {"nobody": account}.__getitem__)
        monkeypatch.setenv("VIRTCLOUD_SLOW_HOMES", "")
        yield folder


@needs_root
def test_the_keys_of_all_public_files_are_read(home: Path) -> None:
    (home / ".ssh/id_ed25519.pub").write_text(f"{KEY} me\n")
    (home / ".ssh/id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert user_keys.read_user_keys("nobody") == [KEY]


@needs_root
def test_a_dangling_link_and_a_folder_are_skipped(home: Path) -> None:
    (home / ".ssh/gone.pub").symlink_to("/nonexistent.pub")
    (home / ".ssh/old.pub").mkdir()
    (home / ".ssh/work.pub").write_text(KEY)
    assert user_keys.read_user_keys("nobody") == [KEY]


@needs_root
def test_files_are_read_with_the_users_rights(home: Path) -> None:
    """A link to a file of root is not readable, and a pipe without a writer does not block."""
    secret = home / "secret"
    secret.write_text(KEY)
    secret.chmod(0o600)
    os.mkfifo(home / ".ssh/pipe.pub")
    (home / ".ssh/pipe.pub").chmod(0o644)
    assert user_keys.read_user_keys("nobody") == []
    (home / ".ssh/id.pub").symlink_to(secret)
    with pytest.raises(ChildError, match="Permission denied"):
        user_keys.read_user_keys("nobody")


@needs_root
def test_a_home_that_only_its_owner_can_enter_is_read(home: Path) -> None:
    """A file server gives root no rights (root_squash), so the keys must be read with the user's rights."""
    (home / ".ssh/id.pub").write_text(f"{KEY}\n")
    for folder in (home, home / ".ssh"):
        folder.chmod(0o700)
        os.chown(folder, NOBODY, NOBODY)
    assert user_keys.read_user_keys("nobody") == [KEY]
    os.chown(home, 0, 0)
    with pytest.raises(ChildError, match="Permission denied"):
        user_keys.read_user_keys("nobody")


@needs_root
def test_a_dead_file_server_delays_a_hook_once(home: Path) -> None:
    """The first reading ends at its time limit, although the reading process cannot be killed.

    The hook then omits the next reading, also in a new interpreter.
    """

    def work() -> list[float]:
        durations = []
        with dead_file_server(home):
            for message in ("no result within the time limit", "the home folder of nobody did not answer; .* in 60 s"):
                began = time.monotonic()
                with pytest.raises(ChildError, match=message):
                    user_keys.read_user_keys("nobody", seconds=0.3)
                durations.append(time.monotonic() - began)
                importlib.reload(user_keys)
        return durations

    first, second = run_with_own_mounts(work)
    assert 0.3 <= first < 10
    assert second < 0.3


@needs_root
def test_a_home_without_the_folder_ssh_has_no_keys(home: Path) -> None:
    (home / ".ssh").rmdir()
    assert user_keys.read_user_keys("nobody") == []


def test_no_keys_are_read_for_root_and_unknown_users() -> None:
    with pytest.raises(ChildError, match="the hook does not read files as root"):
        user_keys.read_user_keys("root")
    with pytest.raises(ChildError, match=f"user nobody-here is unknown on host {os.uname().nodename}"):
        user_keys.read_user_keys("nobody-here")
