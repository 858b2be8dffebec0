import ast
import os
import pwd
import subprocess
from pathlib import Path

import pytest
from fake_machine import FakeMounts

from virtcloud.agent.job_access import connect_program, job_files
from virtcloud.agent.job_access.access import JobAccess
from virtcloud.agent.job_access.job_files import JobFiles, find_python
from virtcloud.agent.job_access.job_relays import NoFreeAddress
from virtcloud.model.cluster import Guest
from virtcloud.model.errors import Refused
from virtcloud.model.values import ClusterKey, Name, VlanId

GUESTS = (
    Guest.model_validate({"name": "g1", "host": "h1", "image": "x", "cpus": 2, "addresses": ["10.0.0.1/24"]}),
    Guest.model_validate({"name": "g2", "host": "h2", "image": "x", "addresses": ["10.0.0.2/24", "fd00::2/64"]}),
    Guest.model_validate({"name": "g3", "host": "h2", "image": "x"}),
)
PYTHON = find_python()
ME = pwd.getpwuid(os.geteuid()).pw_name
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def opening(user: str = ME, key: str = "12.pbs") -> JobAccess:
    return JobAccess(key=ClusterKey(key), user=user, vlan=VlanId(100), name=Name("demo"), guests=GUESTS)


class Way:
    """Relays that consist only of a path."""

    def __init__(self) -> None:
        self.uids: list[int] = []

    def ensure(self, opening: JobAccess, uid: int) -> Path:
        self.uids.append(uid)
        if opening.name == "full":
            raise NoFreeAddress(["10.0.0.0/30"])
        return Path("/relay")

    def ensure_none(self, key: str) -> None:
        self.uids.clear()


def test_the_files_name_every_guest(tmp_path: Path) -> None:
    facts = JobFiles(tmp_path, Way(), FakeMounts()).open(opening())
    assert facts == {
        "VCLUSTER_HOSTS": str(tmp_path / "12.pbs/hosts"),
        "VCLUSTER_HOSTFILE": str(tmp_path / "12.pbs/hostfile"),
        "VCLUSTER_SSH_CONFIG": str(tmp_path / "12.pbs/ssh_config"),
    }
    assert (tmp_path / "12.pbs/hosts").read_text() == "10.0.0.1 g1\n10.0.0.2 g2\nfd00::2 g2\n"
    assert (tmp_path / "12.pbs/hostfile").read_text() == "g1 slots=2\ng2 slots=1\ng3 slots=1\n"


def test_a_job_with_a_long_key_has_its_files(tmp_path: Path) -> None:
    files, key = JobFiles(tmp_path, Way(), FakeMounts()), f"1234567.{'x' * 255}"
    facts = files.open(opening(key=key))
    folder = Path(facts["VCLUSTER_HOSTS"]).parent
    assert f"UserKnownHostsFile {folder}/known_hosts" in (folder / "ssh_config").read_text()
    assert Path(facts["VCLUSTER_HOSTFILE"]).exists()
    files.close(key)
    assert list(tmp_path.iterdir()) == []


def test_ssh_config_names_guests_and_stores_host_keys(tmp_path: Path) -> None:
    JobFiles(tmp_path, Way(), FakeMounts()).open(opening())
    read = [one for one in (tmp_path / "12.pbs/ssh_config").read_text().splitlines() if not one.startswith("#")]
    assert read == [
        "Host g1",
        "  HostName 10.0.0.1",
        "Host g2",
        "  HostName 10.0.0.2",
        "",
        "Host *",
        f"  ProxyCommand {PYTHON} -I -S {tmp_path}/12.pbs/connect --hand-over --wait 30 /relay %h %p",
        "  ProxyUseFdpass yes",
        "  StrictHostKeyChecking accept-new",
        f"  UserKnownHostsFile {tmp_path}/12.pbs/known_hosts",
        "  GlobalKnownHostsFile /dev/null",
        "  LogLevel ERROR",
    ]


@needs_root
def test_a_user_can_run_the_python_that_ssh_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own Python is in a folder that only root can enter, so another Python is chosen."""
    own = tmp_path / "python3"
    own.symlink_to("/usr/bin/python3")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(job_files, "PYTHONS", (str(own), "/usr/bin/python3"))
    argv = [job_files.find_python(), "-I", "-S", "-c", "print('runs')"]
    nobody = 65534
    done = subprocess.run(  # noqa: S603
        argv, user=nobody, group=nobody, extra_groups=[], capture_output=True, text=True, check=False
    )
    assert done.stdout == "runs\n", done.stderr


def test_the_connect_program_is_valid_python_3_6() -> None:
    ast.parse(Path(connect_program.__file__).read_text(), feature_version=(3, 6))


def test_where_no_address_is_free_ssh_says_so(tmp_path: Path) -> None:
    JobFiles(tmp_path, Way(), FakeMounts()).open(opening().model_copy(update={"name": Name("full")}))
    argv = ["ssh", "-F", str(tmp_path / "12.pbs/ssh_config"), "g1", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
    message = "virtcloud: 10.0.0.0/30: no address is free for this host; do not use the last addresses of the subnet"
    assert done.stderr.splitlines()[0] == message


def test_ssh_itself_understands_its_settings(tmp_path: Path) -> None:
    JobFiles(tmp_path, Way(), FakeMounts()).open(opening())
    argv = ["ssh", "-G", "-F", str(tmp_path / "12.pbs/ssh_config"), "g2"]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout  # noqa: S603
    assert {"hostname 10.0.0.2", "stricthostkeychecking accept-new", "proxyusefdpass yes"} <= set(output.splitlines())


def test_a_job_without_addresses_has_no_way_to_its_guests(tmp_path: Path) -> None:
    way = Way()
    facts = JobFiles(tmp_path, way, FakeMounts()).open(opening().model_copy(update={"guests": GUESTS[2:]}))
    assert (sorted(facts), way.uids) == (["VCLUSTER_HOSTFILE", "VCLUSTER_HOSTS"], [])


@needs_root
def test_only_the_jobs_user_reads_them(tmp_path: Path) -> None:
    JobFiles(tmp_path, Way(), FakeMounts()).open(opening("nobody"))
    seen = {
        one.name: (one.stat().st_uid, oct(one.stat().st_mode & 0o7777))
        for one in [tmp_path / "12.pbs", *(tmp_path / "12.pbs").iterdir()]
    }
    nobody = pwd.getpwnam("nobody").pw_uid
    files = dict.fromkeys(("hosts", "hostfile", "ssh_config", "known_hosts", "connect"), (nobody, "0o600"))
    assert seen == {"12.pbs": (nobody, "0o500"), **files}
    assert oct(tmp_path.stat().st_mode & 0o7777) == "0o711", "who lists the jobs learns their keys"


def test_both_may_be_repeated(tmp_path: Path) -> None:
    port = JobFiles(tmp_path, Way(), FakeMounts())
    assert port.open(opening()) == port.open(opening())
    port.close("12.pbs")
    port.close("12.pbs")
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_versions_agent_left_is_in_nobodys_way(tmp_path: Path) -> None:
    for leftover in (".new-12.pbs", ".old-12.pbs", "12.pbs"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "hosts").write_text("x")
    port = JobFiles(tmp_path, Way(), FakeMounts())
    port.open(opening())
    assert sorted(one.name for one in tmp_path.iterdir()) == [".made-12.pbs", "12.pbs"]
    port.close("12.pbs")
    assert list(tmp_path.iterdir()) == []


def test_symbolic_links_of_a_user_are_not_followed(tmp_path: Path) -> None:
    """The user owns the folder, and may change its mode and content."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "shadow").write_text("root")
    port = JobFiles(tmp_path / "jobs", Way(), FakeMounts())
    port.open(opening())
    place = tmp_path / "jobs/12.pbs"
    place.chmod(0o700)
    (place / "hosts").unlink()
    (place / "hosts").symlink_to(precious / "shadow")
    (place / "all").symlink_to(precious)
    port.open(opening())
    assert (place / "hosts").readlink() == precious / "shadow", "what the user changed is the user's own affair"
    port.close("12.pbs")
    assert (precious / "shadow").read_text() == "root"


def test_a_link_in_the_folders_place_is_refused_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/12.pbs").symlink_to(tmp_path / "precious")
    with pytest.raises(Refused, match="cannot create the job's folder"):
        JobFiles(tmp_path / "jobs", Way(), FakeMounts()).open(opening())
    assert (tmp_path / "precious").is_dir()


def test_a_user_whom_this_machine_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"user alice-of-elsewhere is not known on host .*getent passwd"):
        JobFiles(tmp_path, Way(), FakeMounts()).open(opening("alice-of-elsewhere"))
