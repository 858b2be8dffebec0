import os
from pathlib import Path

import pytest
from support.hosts.seed_documents import CLUSTER_KEY, HOST_KEY, PUBLIC_KEY, SEED, seeded_guest, seeded_segment

from virtcloud.agent.guests.container_seeds import write_container_seed
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.model.errors import Refused

SHIFT = 0x10000000

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owner of a file")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("etc/ssh", "etc/sudoers.d", "bin", "usr/bin"):
        (root / folder).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    (root / "etc/shadow").write_text("root:*:::::::\n")
    (root / "etc/shadow").chmod(0o640)
    os.chown(root / "etc/shadow", SHIFT, SHIFT + 42)
    (root / "etc/hosts").write_text("127.0.0.1 image\n")
    (root / "etc/ssh/ssh_host_rsa_key").write_text("shared by all guests of the image")
    return root


def seed(root: Path, **changes: object) -> None:
    guest = seeded_guest(seed={**SEED, **changes})
    assert guest.seed
    write_container_seed(GuestRoot(root, SHIFT), seeded_segment(guest), guest, guest.seed)


def test_the_user_exists_with_keys_that_only_the_user_reads(root: Path) -> None:
    seed(root)
    assert (root / "etc/passwd").read_text().splitlines()[-1] == "alice:x:1001:1001::/home/alice:/bin/sh"
    assert (root / "etc/shadow").read_text().splitlines()[-1] == "alice:*:::::::"
    assert (root / "etc/sudoers.d/90-virtcloud-alice").read_text() == "alice ALL=(ALL) NOPASSWD:ALL\n"
    for name, text in (("authorized_keys", f"{PUBLIC_KEY} alice@home\n"), ("id_ed25519", CLUSTER_KEY)):
        path = root / "home/alice/.ssh" / name
        assert (path.read_text(), path.stat().st_mode & 0o777, path.stat().st_uid) == (text, 0o600, SHIFT + 1001)


def test_a_start_after_a_kill_uses_the_users_group(root: Path) -> None:
    """The former agent was killed after it had created the group, and before it had created the user."""
    group = root / "etc/group"
    group.write_text(expected := group.read_text() + "alice:x:1001:\n")
    seed(root)
    assert group.read_text() == expected
    assert (root / "etc/passwd").read_text().splitlines()[-1] == "alice:x:1001:1001::/home/alice:/bin/sh"


def test_account_files_keep_their_group_and_mode(root: Path) -> None:
    """Debian's programs read /etc/shadow with the rights of the group ``shadow``."""
    seed(root)
    statuses = [(root / "etc" / name).stat() for name in ("passwd", "group", "shadow", "sudoers.d/90-virtcloud-alice")]
    assert [status.st_mode & 0o777 for status in statuses] == [0o644, 0o644, 0o640, 0o440]
    assert (statuses[2].st_uid, statuses[2].st_gid) == (SHIFT, SHIFT + 42)


def test_a_user_of_the_image_keeps_its_id(root: Path) -> None:
    seed(root, user="user")
    assert (root / "etc/passwd").read_text().count("\n") == 2
    assert (root / "home/user/.ssh/id_ed25519").stat().st_uid == SHIFT + 1000


def test_the_seeds_host_key_is_the_only_host_key(root: Path) -> None:
    seed(root)
    assert [path.name for path in (root / "etc/ssh").glob("ssh_host*")] == ["ssh_host_ed25519_key"]
    assert (root / "etc/ssh/ssh_host_ed25519_key").read_text() == HOST_KEY


def test_etc_hosts_and_known_hosts_are_links(root: Path) -> None:
    seed(root)
    assert str((root / "etc/hosts").readlink()) == "/etc/virtcloud/hosts"
    assert str((root / "etc/ssh/ssh_known_hosts").readlink()) == "/etc/virtcloud/known_hosts"
    assert (root / "etc/hostname").read_text() == "n1\n"


def test_a_second_start_keeps_what_the_guest_wrote(root: Path) -> None:
    seed(root)
    (root / "home/alice/.ssh/authorized_keys").write_text("changed by the guest")
    passwd = (root / "etc/passwd").read_text()
    (root / "etc/hosts").unlink()
    seed(root)
    assert (root / "home/alice/.ssh/authorized_keys").read_text() == "changed by the guest"
    assert ((root / "etc/passwd").read_text(), (root / "etc/hosts").is_symlink()) == (passwd, True)


@pytest.mark.parametrize("program", ["usr/bin/cloud-init", "usr/bin/other"])
def test_a_second_start_writes_nothing_to_a_full_disk(root: Path, program: str) -> None:
    (root / program).touch()
    seed(root)
    before = {path: path.lstat().st_ino for path in root.rglob("*")}
    seed(root)
    assert {path: path.lstat().st_ino for path in root.rglob("*")} == before


def test_an_image_with_cloud_init_gets_nocloud_data(root: Path) -> None:
    (root / "usr/bin/cloud-init").touch()
    seed(root, user_data="#cloud-config\npackages: [htop]\n")
    folder = root / "var/lib/cloud/seed/nocloud"
    assert {path.name for path in folder.iterdir()} == {"meta-data", "user-data", "network-config"}
    text = (folder / "user-data").read_text()
    assert ("packages: [htop]" in text, "bootcmd" in text) == (True, False)
    assert (folder / "user-data").stat().st_mode & 0o777 == 0o600
    assert (folder / "network-config").read_text() == "network: {config: disabled}\n"
    assert "alice" not in (root / "etc/passwd").read_text()
    assert (root / "etc/hosts").is_symlink()


def test_user_data_is_refused_without_cloud_init(root: Path) -> None:
    with pytest.raises(Refused, match="guest n1: user_data needs cloud-init, which image busybox lacks"):
        seed(root, user_data="#cloud-config\npackages: [htop]\n")


@pytest.mark.parametrize("user_id", ["65536", "4026531840", "-1", "x", ""])
def test_a_guest_chooses_no_id_outside_its_range(root: Path, user_id: str) -> None:
    """The agent adds an offset to each ID. With the ID 4026531840, the sum would overflow to 0, the host's root."""
    with (root / "etc/passwd").open("a") as file:
        file.write(f"alice:x:{user_id}:0::/home/alice:/bin/sh\n")
    with pytest.raises(Refused, match="guest n1: cannot write the seed"):
        seed(root)
    assert not (root / "home/alice/.ssh/id_ed25519").exists()


@pytest.mark.parametrize("home", ["/../../../tmp/evil", "../evil", "{host}"])
def test_a_guest_chooses_no_home_outside_its_root(root: Path, home: str) -> None:
    host = root.parent / "host"
    host.mkdir()
    with (root / "etc/passwd").open("a") as file:
        file.write(f"alice:x:1001:0::{home.format(host=host)}:/bin/sh\n")
    seed(root)
    assert (list(host.iterdir()), {path.name for path in root.parent.iterdir()}) == ([], {"root", "host"})
    assert len(list(root.rglob("id_ed25519"))) == 1
