"""Tests of the files of job access. A relay is lost if its process has ended and no connection through it is left."""

import os
import pwd
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from support.fake_machine import FakeMounts
from support.old_python import assert_syntax_of_python_3_6

from virtcloud.agent.job_access import connect_program, job_files
from virtcloud.agent.job_access.access import JobAccess, list_host_addresses
from virtcloud.agent.job_access.job_files import JobFiles, find_python
from virtcloud.agent.job_access.job_relays import NoFreeAddress
from virtcloud.model.errors import Refused
from virtcloud.model.guest_seed import Peer
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import ClusterKey, LoginName, Name, VlanId

GUESTS = (
    Guest.model_validate({"name": "g1", "host": "h1", "image": "x", "cpus": 2, "addresses": ["10.0.0.1/24"]}),
    Guest.model_validate({"name": "g2", "host": "h2", "image": "x", "addresses": ["10.0.0.2/24", "fd00::2/64"]}),
    Guest.model_validate({"name": "g3", "host": "h2", "image": "x"}),
)
PYTHON = find_python()
CURRENT_USER = pwd.getpwuid(os.geteuid()).pw_name
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of files")


def job_access(user: str = CURRENT_USER, key: str = "12.pbs") -> JobAccess:
    return JobAccess(key=ClusterKey(key), user=user, vlan=VlanId(100), name=Name("demo"), guests=GUESTS)


class FakeRelays:
    """Relays that have a socket path but no process."""

    def __init__(self) -> None:
        self.uids: list[int] = []
        self.is_full, self.lost = False, set[str]()

    def ensure(self, job_access: JobAccess, uid: int) -> Path:
        self.uids.append(uid)
        if self.is_full or job_access.name == "full":
            raise NoFreeAddress(["10.0.0.0/30"])
        return Path("/relay")

    def socket_path(self, key: str) -> Path:
        return Path("/relay")

    def ensure_none(self, key: str) -> None:
        self.uids.clear()

    def is_lost(self, key: str) -> bool:
        return key in self.lost


def test_the_files_name_every_guest(tmp_path: Path) -> None:
    variables = JobFiles(tmp_path, FakeRelays(), FakeMounts()).open(job_access())
    assert variables == {
        "VCLUSTER_HOSTS": str(tmp_path / "12.pbs/hosts"),
        "VCLUSTER_HOSTFILE": str(tmp_path / "12.pbs/hostfile"),
        "VCLUSTER_SSH_CONFIG": str(tmp_path / "12.pbs/ssh_config"),
        "VCLUSTER_KNOWN_HOSTS": str(tmp_path / "12.pbs/known_hosts"),
    }
    assert (tmp_path / "12.pbs/hosts").read_text() == "10.0.0.1 g1\n10.0.0.2 g2\nfd00::2 g2\n"
    assert (tmp_path / "12.pbs/hostfile").read_text() == "g1 slots=2\ng2 slots=1\ng3 slots=1\n"


def test_a_job_with_a_long_key_has_its_files(tmp_path: Path) -> None:
    files, key = JobFiles(tmp_path, FakeRelays(), FakeMounts()), f"1234567.{'x' * 255}"
    variables = files.open(job_access(key=key))
    folder = Path(variables["VCLUSTER_HOSTS"]).parent
    assert f"UserKnownHostsFile {folder}/known_hosts" in (folder / "ssh_config").read_text()
    assert Path(variables["VCLUSTER_HOSTFILE"]).exists()
    files.close(key)
    assert list(tmp_path.iterdir()) == []


def test_ssh_config_names_guests_and_stores_host_keys(tmp_path: Path) -> None:
    JobFiles(tmp_path, FakeRelays(), FakeMounts()).open(job_access())
    lines = [line for line in (tmp_path / "12.pbs/ssh_config").read_text().splitlines() if not line.startswith("#")]
    assert lines == [
        "Host g1",
        "Host g2",
        "",
        "Host *",
        f"  ProxyCommand {PYTHON} -I -S {tmp_path}/12.pbs/connect --hand-over --wait 30 /relay %h %p",
        "  ProxyUseFdpass yes",
        "  StrictHostKeyChecking accept-new",
        f"  UserKnownHostsFile {tmp_path}/12.pbs/known_hosts",
        "  GlobalKnownHostsFile /dev/null",
        "  LogLevel ERROR",
    ]


def test_ssh_knows_the_guests_user_and_host_keys(tmp_path: Path) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
    peer = Peer.model_validate({"name": "g1", "cluster": "12.pbs", "addresses": ["10.0.0.1/24"], "host_key": key})
    access = job_access().model_copy(update={"login": LoginName("somebody"), "peers": (peer,)})
    JobFiles(tmp_path, FakeRelays(), FakeMounts()).open(access)
    assert (tmp_path / "12.pbs/known_hosts").read_text() == f"g1,10.0.0.1 {key}\n"
    config = (tmp_path / "12.pbs/ssh_config").read_text()
    assert "Host g1\n  User somebody\nHost g2\n" in config


@needs_root
def test_all_users_can_run_the_python_of_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can enter the folder of the agent's own Python, so the agent must choose another Python."""
    agents_python = tmp_path / "python3"
    agents_python.symlink_to("/usr/bin/python3")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(job_files, "PYTHONS", (str(agents_python), "/usr/bin/python3"))
    argv = [job_files.find_python(), "-I", "-S", "-c", "print('runs')"]
    nobody = 65534
    result = subprocess.run(  # noqa: S603
        argv, user=nobody, group=nobody, extra_groups=[], capture_output=True, text=True, check=False
    )
    assert result.stdout == "runs\n", result.stderr


def test_the_connect_program_is_valid_python_3_6() -> None:
    assert_syntax_of_python_3_6(Path(connect_program.__file__).read_text())


def test_ssh_prints_that_no_address_is_free(tmp_path: Path) -> None:
    JobFiles(tmp_path, FakeRelays(), FakeMounts()).open(job_access().model_copy(update={"name": Name("full")}))
    argv = ["ssh", "-F", str(tmp_path / "12.pbs/ssh_config"), "g1", "true"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
    message = (
        "virtcloud: 10.0.0.0/30: expected a free address for this host, found none: do not give guests the last "
        "addresses of the subnet"
    )
    assert result.stderr.splitlines()[0] == message


def test_ssh_accepts_its_configuration(tmp_path: Path) -> None:
    JobFiles(tmp_path, FakeRelays(), FakeMounts()).open(job_access())
    argv = ["ssh", "-G", "-F", str(tmp_path / "12.pbs/ssh_config"), "g2"]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout  # noqa: S603
    assert {"hostname g2", "stricthostkeychecking accept-new", "proxyusefdpass yes"} <= set(output.splitlines())


def test_a_job_without_addresses_has_no_relay(tmp_path: Path) -> None:
    relays = FakeRelays()
    variables = JobFiles(tmp_path, relays, FakeMounts()).open(job_access().model_copy(update={"guests": GUESTS[2:]}))
    assert (sorted(variables), relays.uids) == (["VCLUSTER_HOSTFILE", "VCLUSTER_HOSTS"], [])


@needs_root
def test_only_the_jobs_user_may_read_its_files(tmp_path: Path) -> None:
    JobFiles(tmp_path, FakeRelays(), FakeMounts()).open(job_access("nobody"))
    owners_and_modes = {
        path.name: (path.stat().st_uid, oct(path.stat().st_mode & 0o7777))
        for path in [tmp_path / "12.pbs", *(tmp_path / "12.pbs").iterdir()]
    }
    nobody = pwd.getpwnam("nobody").pw_uid
    files = dict.fromkeys(("hosts", "hostfile", "ssh_config", "known_hosts", "connect"), (nobody, "0o600"))
    assert owners_and_modes == {"12.pbs": (nobody, "0o500"), **files}
    assert oct(tmp_path.stat().st_mode & 0o7777) == "0o711", (
        "expected a mode with which users cannot list the keys of other jobs"
    )


def test_opening_and_closing_are_idempotent(tmp_path: Path) -> None:
    provider = JobFiles(tmp_path, FakeRelays(), FakeMounts())
    assert provider.open(job_access()) == provider.open(job_access())
    provider.close("12.pbs")
    provider.close("12.pbs")
    assert list(tmp_path.iterdir()) == []


def test_files_stay_until_a_lost_relay_has_a_free_address(tmp_path: Path) -> None:
    relays, folder = FakeRelays(), tmp_path / "12.pbs"
    provider = JobFiles(tmp_path, relays, FakeMounts())
    variables = provider.open(job_access())
    folder.chmod(0o700)
    (folder / "mine").touch()
    relays.lost, relays.is_full = {"12.pbs"}, True
    assert provider.is_lost("12.pbs")
    # Before `JobRelays.ensure` searches for a free address, it removes the remains of the lost relay. After the
    # removal, `JobRelays.is_lost` returns False.
    relays.lost.clear()
    with pytest.raises(NoFreeAddress):
        provider.open(job_access())
    assert provider.is_lost("12.pbs")
    relays.is_full = False
    assert provider.open(job_access()) == variables
    assert (provider.is_lost("12.pbs"), (folder / "mine").exists()) == (False, True)


def test_files_of_a_lost_relay_stay_when_guests_change(tmp_path: Path) -> None:
    relays = FakeRelays()
    provider = JobFiles(tmp_path, relays, FakeMounts())
    provider.open(job_access())
    relays.lost, relays.is_full = {"12.pbs"}, True
    assert provider.is_lost("12.pbs")
    with pytest.raises(NoFreeAddress):
        provider.open(job_access().model_copy(update={"guests": GUESTS[:1]}))
    assert "g2" in (tmp_path / "12.pbs/hosts").read_text()


def test_a_restarted_agent_keeps_the_files_of_a_lost_relay(tmp_path: Path) -> None:
    """Before the restart, the agent tried to create the lost relay again. The attempt removed the relay's remains."""
    relays, mounts = FakeRelays(), FakeMounts()
    variables = JobFiles(tmp_path, relays, mounts).open(job_access())
    (tmp_path / "12.pbs").chmod(0o700)
    (tmp_path / "12.pbs/mine").touch()
    relays.is_full, provider = True, JobFiles(tmp_path, relays, mounts)
    with pytest.raises(NoFreeAddress):
        provider.open(job_access())
    relays.is_full = False
    assert provider.open(job_access()) == variables
    assert (tmp_path / "12.pbs/mine").exists()


def test_searches_of_jobs_begin_at_the_last_32_addresses() -> None:
    """A job's search begins with one of the subnet's last addresses, chosen by the job's key.

    So two jobs that search at the same time rarely begin with the same address.
    """
    subnet = ip_network("10.0.0.0/24")
    begins = {next(list_host_addresses(subnet, job_access(key=f"{number}.pbs"))) for number in range(200)}
    assert begins == {ip_address(f"10.0.0.{last}") for last in range(223, 255)}


def test_folders_of_earlier_agent_versions_are_replaced(tmp_path: Path) -> None:
    for leftover in (".new-12.pbs", ".old-12.pbs", "12.pbs"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "hosts").write_text("x")
    provider = JobFiles(tmp_path, FakeRelays(), FakeMounts())
    provider.open(job_access())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".made-12.pbs", "12.pbs"]
    provider.close("12.pbs")
    assert list(tmp_path.iterdir()) == []


def test_symbolic_links_of_a_user_are_not_followed(tmp_path: Path) -> None:
    """The user owns the folder, and so may change its mode and content."""
    protected = tmp_path / "protected"
    protected.mkdir()
    (protected / "shadow").write_text("root")
    provider = JobFiles(tmp_path / "jobs", FakeRelays(), FakeMounts())
    provider.open(job_access())
    folder = tmp_path / "jobs/12.pbs"
    folder.chmod(0o700)
    (folder / "hosts").unlink()
    (folder / "hosts").symlink_to(protected / "shadow")
    (folder / "all").symlink_to(protected)
    provider.open(job_access())
    assert (folder / "hosts").readlink() == protected / "shadow", "expected the user's link to be unchanged"
    provider.close("12.pbs")
    assert (protected / "shadow").read_text() == "root"


def test_a_link_at_the_folders_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "protected").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/12.pbs").symlink_to(tmp_path / "protected")
    with pytest.raises(Refused, match="cannot create the job's folder"):
        JobFiles(tmp_path / "jobs", FakeRelays(), FakeMounts()).open(job_access())
    assert (tmp_path / "protected").is_dir()


def test_an_unknown_user_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"user alice-of-elsewhere is not known on host .*getent passwd"):
        JobFiles(tmp_path, FakeRelays(), FakeMounts()).open(job_access("alice-of-elsewhere"))
