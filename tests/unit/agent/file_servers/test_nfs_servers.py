import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from support.kernel.mount_namespace import is_disk_released, unshare_mounts
from support.kernel.network_namespaces import Run
from support.programs.nfs_client import EXIST, INVAL, MINOR_VERS_MISMATCH, OK, OP_PUTROOTFH, ROFS, STALE, NfsClient

from virtcloud.agent.file_servers import nfs_probe, nfs_probe_program
from virtcloud.agent.file_servers.ganesha_config import CONNECTIONS, PORT
from virtcloud.agent.file_servers.nfs_difference import (
    FileServerStep,
    find_file_server_changes,
    find_unwanted_file_servers,
)
from virtcloud.agent.file_servers.nfs_probe import SILENCE_S, NfsProbe
from virtcloud.agent.file_servers.nfs_servers import PROGRAM, SEARCH_PATH, NfsServers
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import Segment

pytestmark = pytest.mark.skipif(
    shutil.which(PROGRAM, path=SEARCH_PATH) is None, reason="NOT TESTED: nfs-ganesha is not installed"
)
OWNER, OWNER_ID = "nobody", 65534
LOOPBACK = "127.0.0.1"
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # linux/sockios.h


def run_mount(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - util-linux


class FileGateway:
    """A gateway with one owner's file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home/nobody"
        self.home.mkdir(parents=True)
        (folder / "home/other").mkdir()
        folder.chmod(0o755)
        run_mount("mount", "-t", "tmpfs", "-o", f"uid={OWNER_ID},mode=755", "home", str(self.home))
        (self.home / "file").write_text("mine")
        (folder / "home/other/file").write_text("other")
        self.now = 0.0
        probe = NfsProbe(self.open_namespace, lambda: self.now)
        self.servers = NfsServers(self.open_namespace, folder / "state", probe=probe)

    @contextmanager
    def open_namespace(self, _cluster: str) -> Iterator[int]:
        descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        yield descriptor
        os.close(descriptor)

    def make_segment(self, **export: object) -> Segment:
        exports = [{"name": "home", "folder": str(self.home)} | export]
        wanted = {"owner": OWNER, "exports": exports}
        return Segment.model_validate({"id": "c1", "key": "demo", "vlan": 100, "port": "eth0", "nfs": wanted})

    def reconcile(self, *segments: Segment) -> list[str]:
        observed = self.servers.read()
        steps: list[FileServerStep] = [*find_unwanted_file_servers(segments, observed)]
        steps += [step for one in segments for step in find_file_server_changes(one, observed)]
        for step in steps:
            self.servers.apply(step)
        return [str(step) for step in steps]

    @property
    def pid(self) -> int:
        return int(json.loads((self.folder / "state/c1/record.json").read_text())["pid"])

    def read_status(self, key: str) -> str:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line.partition("\t")[2] for line in lines if line.startswith(f"{key}:"))


T = TypeVar("T")


@pytest.fixture
def in_network(in_namespace: Run) -> Run:

    def run(work: Callable[[], T]) -> T:
        def run_with_loopback() -> T:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
            unshare_mounts()
            return work()

        return in_namespace(run_with_loopback)

    return run


@contextmanager
def furnished() -> Iterator[FileGateway]:
    with TemporaryDirectory() as folder:
        gateway = FileGateway(Path(folder))
        try:
            yield gateway
        finally:
            gateway.reconcile()
            mounted = [line.split()[1] for line in Path("/proc/thread-self/mounts").read_text().splitlines()]
            for target in reversed([path for path in mounted if path.startswith(folder)]):
                run_mount("umount", "-l", target)


@contextmanager
def opened(**export: object) -> Iterator[FileGateway]:
    with furnished() as gateway:
        gateway.reconcile(gateway.make_segment(**export))
        yield gateway


def test_clients_read_and_write_as_the_owner(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway, NfsClient(LOOPBACK, uid=0).start_session() as client:
            assert client.read("home", "file") == b"mine"
            assert client.make_folder("home", "new") == OK
            assert (gateway.home / "new").stat().st_uid == OWNER_ID

    in_network(scenario)


def test_files_outside_of_the_exports_are_not_reached(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway, NfsClient(LOOPBACK).start_session() as client:
            (gateway.home / "link").symlink_to(gateway.folder / "home/other/file")
            (gateway.home / "up").symlink_to("../other")
            assert client.read("home", "link") == INVAL  # the server does not follow the link
            for path in (("home", "up", "file"), ("home", "..", "other", "file"), ("etc", "passwd")):
                assert isinstance(client.read(*path), int), path

    in_network(scenario)


def test_a_handle_from_a_former_export_opens_no_file(in_network: Run) -> None:
    """A client can send any file handle, here the handle of a file in a formerly exported folder."""

    def scenario() -> None:
        with opened() as gateway:
            other = gateway.folder / "home/other"
            run_mount("mount", "-t", "tmpfs", "-o", f"uid={OWNER_ID}", "other", str(other))
            (other / "file").write_text("other")
            gateway.reconcile(gateway.make_segment(folder=str(other)))
            with NfsClient(LOOPBACK).start_session() as client:
                handle = client.find_handle("home", "file")
                assert client.read(handle=handle) == b"other"
            gateway.reconcile(gateway.make_segment())
            with NfsClient(LOOPBACK).start_session() as client:
                assert client.read(handle=handle) == STALE

    in_network(scenario)


def test_a_read_only_export_is_not_written(in_network: Run) -> None:
    def scenario() -> None:
        with opened(read_only=True), NfsClient(LOOPBACK).start_session() as client:
            assert client.read("home", "file") == b"mine"
            assert client.make_folder("home", "new") == ROFS

    in_network(scenario)


def test_only_version_4_2_is_served(in_network: Run) -> None:
    def scenario() -> None:
        with opened(), NfsClient(LOOPBACK) as client:
            request = struct.pack(">I", OP_PUTROOTFH)
            assert [client.call(request, minor=minor).status for minor in (0, 1)] == [MINOR_VERS_MISMATCH] * 2

    in_network(scenario)


def test_the_server_has_the_owners_rights_and_one_capability(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway:
            assert gateway.read_status("Uid").split() == [str(OWNER_ID)] * 4
            assert {gateway.read_status(key) for key in ("CapEff", "CapPrm", "CapBnd")} == {f"{1 << 2:016x}"}
            assert gateway.read_status("NoNewPrivs") == "1"
            assert not Path(f"/proc/{gateway.pid}/root{gateway.folder}").exists()

    in_network(scenario)


def test_a_disk_that_is_unmounted_later_is_released(in_network: Run) -> None:
    def scenario() -> None:
        with furnished() as gateway:
            assert is_disk_released(gateway.folder, lambda: gateway.reconcile(gateway.make_segment()))

    in_network(scenario)


def test_a_killed_server_starts_again(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway:
            os.kill(gateway.pid, signal.SIGKILL)
            while read_start_time(gateway.pid) is not None:
                pass
            assert gateway.reconcile(gateway.make_segment()) == ["serve home by NFS (Ganesha has ended)"]
            with NfsClient(LOOPBACK).start_session() as client:
                assert client.read("home", "file") == b"mine"

    in_network(scenario)


def test_a_server_that_hangs_is_replaced(in_network: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nfs_probe, "ANSWER_S", 2.0)

    def scenario() -> None:
        with opened() as gateway:
            os.kill(gateway.pid, signal.SIGSTOP)
            assert gateway.reconcile(gateway.make_segment()) == []  # a busy server may miss one probe
            gateway.now += SILENCE_S
            assert gateway.reconcile(gateway.make_segment()) == ["serve home by NFS (the server does not answer)"]
            with NfsClient(LOOPBACK).start_session() as client:
                assert client.read("home", "file") == b"mine"

    in_network(scenario)


def test_more_than_1024_servers_can_be_probed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard) if hard >= 0 else 2048, hard))
    try:
        near, server = socket.socketpair()
        with near, server, socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD, 1100)) as last:
            server.send(b"answer")
            monkeypatch.setattr(nfs_probe_program, "_open", lambda *_: last)
            nfs_probe_program.main(["2049", "5", "0"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert capsys.readouterr().out == "answers"


def test_a_server_that_answers_again_is_left_alone(in_network: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nfs_probe, "ANSWER_S", 2.0)

    def scenario() -> None:
        with opened() as gateway:
            os.kill(gateway.pid, signal.SIGSTOP)
            assert gateway.reconcile(gateway.make_segment()) == []
            os.kill(gateway.pid, signal.SIGCONT)
            gateway.now += SILENCE_S
            monkeypatch.setattr(nfs_probe, "ANSWER_S", 30.0)
            assert gateway.reconcile(gateway.make_segment()) == []
            monkeypatch.setattr(nfs_probe, "ANSWER_S", 2.0)
            os.kill(gateway.pid, signal.SIGSTOP)
            assert gateway.reconcile(gateway.make_segment()) == []
            os.kill(gateway.pid, signal.SIGCONT)

    in_network(scenario)


def test_a_guest_that_uses_all_connections_causes_no_restart(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway, ExitStack() as stack:
            for _ in range(CONNECTIONS + 10):
                stack.enter_context(socket.create_connection((LOOPBACK, PORT)))
            for _ in range(2):
                assert gateway.reconcile(gateway.make_segment()) == []
                gateway.now += SILENCE_S

    in_network(scenario)


def test_the_next_agent_leaves_a_working_server_alone(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway:
            gateway.servers = NfsServers(gateway.open_namespace, gateway.folder / "state")
            assert gateway.reconcile(gateway.make_segment()) == []

    in_network(scenario)


def test_a_server_of_a_later_agent_is_replaced(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway:
            path = gateway.folder / "state/c1/record.json"
            record = json.loads(path.read_text())
            later = json.dumps(json.loads(record["wanted"]) | {"later": True})
            path.write_text(json.dumps(record | {"wanted": later}))
            steps = gateway.reconcile(gateway.make_segment())
            assert steps == ["serve home by NFS (another version of the agent started the server, the exports changed)"]
            assert gateway.reconcile(gateway.make_segment()) == []

    in_network(scenario)


def test_a_server_with_an_unreadable_record_is_replaced(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway:
            former = gateway.pid
            (gateway.folder / "state/c1/record.json").write_text("{")
            gateway.reconcile(gateway.make_segment())
            assert (read_start_time(former), gateway.reconcile(gateway.make_segment())) == (None, [])

    in_network(scenario)


def test_changed_exports_and_another_namespace_restart_the_server(in_network: Run, unshare: Callable[[], None]) -> None:
    def scenario() -> None:
        with opened() as gateway:
            changed = gateway.make_segment(read_only=True)
            assert gateway.reconcile(changed) == ["serve home by NFS (the exports changed)"]
            unshare()
            assert gateway.reconcile(changed) == ["serve home by NFS (the server is in a former network namespace)"]

    in_network(scenario)


def test_nothing_remains_of_a_removed_server(in_network: Run) -> None:
    def scenario() -> None:
        with opened() as gateway:
            pid = gateway.pid
            assert gateway.reconcile() == ["stop the file server"]
            assert (read_start_time(pid), list((gateway.folder / "state").iterdir())) == (None, [])
            assert f"{gateway.folder}/state" not in Path("/proc/thread-self/mounts").read_text()
            with socket.socket() as probe:
                assert probe.connect_ex((LOOPBACK, 2049)) != 0

    in_network(scenario)


def test_a_link_in_the_path_of_a_folder_is_refused(in_network: Run) -> None:
    def scenario() -> None:
        with furnished() as gateway:
            Path(gateway.folder, "link").symlink_to("home")
            with pytest.raises(Refused, match="symbolic links are not followed"):
                gateway.reconcile(gateway.make_segment(folder=f"{gateway.folder}/link/nobody"))
            while gateway.servers.read()[0].faults == ("the server's start was interrupted",):
                pass  # wait for the end of the process that refused the folder
            assert gateway.servers.read()[0].faults == ("Ganesha has ended",)

    in_network(scenario)


def test_a_folder_of_a_larger_file_system_is_refused(in_network: Run) -> None:
    """If the folder were exported, a client with a forged handle could read every file of the larger file system."""

    def scenario() -> None:
        with furnished() as gateway:
            (gateway.home / "inner").mkdir()
            bound = Path(gateway.folder, "bound")
            bound.mkdir()
            run_mount("mount", "--bind", f"{gateway.home}/inner", str(bound))
            for path in (f"{gateway.folder}/home/other", f"{gateway.home}/inner", f"{gateway.folder}/bound"):
                with pytest.raises(Refused, match="to be the root of a file system"):
                    gateway.reconcile(gateway.make_segment(folder=path))

    in_network(scenario)


def test_a_folder_of_another_user_is_refused(in_network: Run) -> None:
    def scenario() -> None:
        with furnished() as gateway:
            os.chown(gateway.home, 0, 0)
            with pytest.raises(Refused, match=f"to belong to user ID {OWNER_ID}, got 0"):
                gateway.reconcile(gateway.make_segment())

    in_network(scenario)


def test_files_stay_in_a_file_system_of_the_given_size(in_network: Run) -> None:
    def scenario() -> None:
        with furnished() as gateway:
            segment = gateway.make_segment(folder=f"{gateway.folder}/more/nobody", size_mb=16)
            for _ in range(2):
                gateway.reconcile(segment)
                with NfsClient(LOOPBACK).start_session() as client:
                    created = client.make_folder("home", "new")
                gateway.reconcile()
            assert created == EXIST
            status = Path(gateway.folder, "more/nobody.ext4").stat()
            assert (status.st_size, status.st_uid, status.st_mode & 0o777) == (16 << 20, 0, 0o600)

    in_network(scenario)


@pytest.mark.parametrize(
    ("owner", "error"),
    [("nobody-has-this-name", "found none; .* rights: add the account"), ("daemon", "got daemon with user ID")],
)
def test_an_owner_without_a_personal_account_is_refused(in_network: Run, owner: str, error: str) -> None:
    def scenario() -> None:
        with furnished() as gateway:
            segment = gateway.make_segment()
            assert segment.nfs
            changed = segment.model_copy(update={"nfs": segment.nfs.model_copy(update={"owner": owner})})
            with pytest.raises(Refused, match=error):
                gateway.reconcile(changed)

    in_network(scenario)
