from pathlib import Path

import pytest

from virtcloud.agent.guests import containment_checks
from virtcloud.agent.guests.containment_checks import (
    check_control_groups,
    check_ids,
    check_user_namespaces,
    describe_qemu_confinement,
)
from virtcloud.model.errors import Refused

CAPABILITIES = """<capabilities><host>
<secmodel><model>apparmor</model><doi>0</doi></secmodel>
<secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>+{user}:+{user}</baselabel></secmodel>
</host></capabilities>"""


def test_qemu_as_root_is_found() -> None:
    with pytest.raises(Refused, match="QEMU runs as root"):
        describe_qemu_confinement(CAPABILITIES.format(user=0))


def test_qemus_user_and_security_driver_are_described() -> None:
    assert describe_qemu_confinement(CAPABILITIES.format(user=64055)) == "user 64055; security driver: apparmor"
    without = CAPABILITIES.format(user=64055).replace("apparmor", "none")
    assert describe_qemu_confinement(without) == "user 64055; security driver: none"


@pytest.mark.parametrize(
    ("granted", "collides"),
    [
        ("alice:100000:65536\n", False),
        ("alice:268435000:456\n", False),
        ("alice:268435000:457\n", True),
        ("alice:1879048192:65536\n", False),
        ("", False),
    ],
)
def test_granted_ids_must_not_be_those_of_containers(tmp_path: Path, granted: str, collides: bool) -> None:
    (tmp_path / "subuid").write_text(granted)
    files = (tmp_path / "subuid", tmp_path / "missing")
    if collides:
        with pytest.raises(Refused, match="alice 457 IDs from 268435000, but containers use the IDs from 268435456"):
            check_ids(0x10000000, files)
    else:
        assert check_ids(0x10000000, files) == "268435456-1879048191"


def test_comments_and_malformed_lines_grant_no_ids(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("# user:first:count\nalice:1e9:all\n")
    assert check_ids(0x10000000, [tmp_path / "subuid"]) == "268435456-1879048191"


def test_a_kernel_without_user_namespaces_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment_checks, "MAX_NAMESPACES", tmp_path / "most")
    with pytest.raises(Refused, match="the kernel has no user namespaces"):
        check_user_namespaces()
    (tmp_path / "most").write_text("0\n")
    with pytest.raises(Refused, match="most is 0"):
        check_user_namespaces()


def test_missing_controllers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment_checks, "CONTROLLERS", tmp_path / "controllers")
    with pytest.raises(Refused, match="version 2 are not mounted"):
        check_control_groups()
    (tmp_path / "controllers").write_text("cpu io\n")
    with pytest.raises(Refused, match="missing: memory, pids"):
        check_control_groups()
