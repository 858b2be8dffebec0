"""Tests of clones of guests, with a real SBF and the listener of an agent."""

import io
import os
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from support.sbf_fakes.session_world import Installation, Start, await_true, no_bridge, serve_worlds

from sbf_service.store.elements.revisions import require_element
from virtcloud.agent.guest_access.guest_clones import GuestCloner
from virtcloud.agent.guest_access.session_listener import SessionListener
from virtcloud.agent.guests.guest_disks import ensure_disks
from virtcloud.agent.guests.images import QemuImage
from virtcloud.agent.guests.root_archives import RootArchive
from virtcloud.agent.guests.root_reservations import RootReservations
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.agent.network import names
from virtcloud.agent.supervision import start_unsupervised
from virtcloud.client.agent_calls import AgentCalls
from virtcloud.client.guests import ClusterGuest
from virtcloud.client.sbf import SbfClient
from virtcloud.client.session_stream import SessionStream
from virtcloud.model.access import QuotaLimits, Role
from virtcloud.model.errors import (
    BadInput,
    Conflict,
    NameTaken,
    NotFound,
    QuotaExceeded,
    Refused,
    ServiceUnreachable,
    StorageFull,
    Unreachable,
)
from virtcloud.model.guest_sessions import CloneProgress, GuestSession, SessionKind, SessionRequest
from virtcloud.model.image import Architecture, ImageContent, Sha256
from virtcloud.model.values import Name

pytest.importorskip("websockets", reason="NOT TESTED: websockets is not installed")
SHIFT = 0x10000000
CLONE = SessionRequest(kind=SessionKind.CLONE, image=Name("mine"))
SESSION = GuestSession.model_validate(
    {"kind": "clone", "image": "mine", "number": 1, "id": "x", "network": "n", "guest": "g1"}
)
CONTENT = ImageContent.model_validate({"sha256": "0" * 64, "size": 1, "format": "tar.gz", "architecture": "x86_64"})


@dataclass
class OneRoot:
    """The root file systems of a host with one container: ``find`` returns ``root`` for every domain."""

    root: GuestRoot

    def find(self, domain: str) -> GuestRoot | None:
        return self.root

    def ensure(self, domain: str, image: Path, size_mb: int | None = None) -> GuestRoot:
        raise NotImplementedError

    def ensure_none(self, domain: str) -> None:
        raise NotImplementedError


@dataclass
class Cloning:
    """A world whose SBF serves HTTP and whose agent clones the guest g1 of the cluster demo."""

    made: Installation
    root: Path
    reservations: RootReservations

    def guest(self, user: str = "alice", role: Role = Role.USER) -> ClusterGuest:
        return self.made.client(role, user).get("demo").guests.find("g1")

    def clone(self, image: str = "mine", progress: Callable[[CloneProgress], None] | None = None) -> list[str]:
        self.guest().clone(image, progress=progress)
        with self.made.client(Role.USER, "alice").sbf.download_image(image) as transfer:
            data = b"".join(transfer.chunks)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            return tar.getnames()

    @property
    def stored(self) -> list[str]:
        folder = self.made.world.service.image_folder.path
        return [path.name for path in folder.iterdir()] if folder.exists() else []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with serve_worlds(tmp_path) as start:
        yield start


@pytest.fixture
def cloning(start: Start, tmp_path: Path) -> Cloning:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: user namespaces of guests need root")
    made, root = start(agent=False, agent_wait=5), tmp_path / "root"
    for name in ("etc/ssh/ssh_host_ed25519_key", "srv/result"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for path in (root, *root.rglob("*")):
        os.chown(path, SHIFT, SHIFT)
    reservations = RootReservations(OneRoot(GuestRoot(root, SHIFT)), tmp_path)
    sbf = made.client(Role.AGENT, "brno-h1").sbf
    cloner = GuestCloner(Name("brno-h1"), tmp_path, reservations.for_reading, sbf)
    listener = SessionListener(Name("brno-h1"), sbf, cloner.open_clone, no_bridge)
    made.stack.callback(listener.stop)
    listener.start(start_unsupervised)
    stop(made)
    return Cloning(made, root, reservations)


def stop(made: Installation) -> None:
    made.client(Role.USER, "alice").get("demo").guests["g1"].stop(wait=False)
    made.world.settle()


def test_a_stopped_guest_becomes_an_image_of_its_user(cloning: Cloning) -> None:
    (cloning.root / "srv/large").write_bytes(os.urandom(5 << 20))  # larger than the body limit of other calls
    os.chown(cloning.root / "srv/large", SHIFT, SHIFT)
    reports: list[CloneProgress] = []
    files = cloning.clone(progress=reports.append)
    assert "./srv/result" in files
    assert "./etc/ssh/ssh_host_ed25519_key" not in files
    (image,) = cloning.made.client(Role.USER, "alice").sbf.images()
    assert (image.name, image.owner, image.kind, image.certified) == ("mine", "alice", "lxc", ())
    (opened,), (added,) = (cloning.made.world.audit(what) for what in ("guest_session", "image_added"))
    assert (opened.who, opened.why, added.who) == ("alice", "clone mine of guest g1", "alice")
    assert reports[-1].image == image


def test_a_stopped_virtual_machine_becomes_a_disk_without_its_keys(
    cloning: Cloning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneRoot, "find", lambda *_: None)
    ((guest,),) = (
        segment.guests for segment in cloning.made.client(Role.AGENT, "brno-h1").sbf.wanted("brno-h1").wanted.segments
    )
    assert guest.seed is not None
    key = guest.seed.cluster_key.get_secret_value().encode()
    disk, folder = tmp_path / "disk.raw", tmp_path / names.domain_name(cloning.made.world.view("demo").id, "g1")
    disk.write_bytes((b"result " + key).ljust(1 << 20, b"\0"))
    folder.mkdir()
    ensure_disks(folder, QemuImage(kind="qemu", disk=disk, disk_format="raw"), guest)
    cloning.guest().clone("mine")
    sbf = cloning.made.client(Role.USER, "alice").sbf
    with sbf.download_image("mine") as transfer:
        (tmp_path / "mine.qcow2").write_bytes(b"".join(transfer.chunks))
    convert = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw", "mine.qcow2", "mine.raw"]
    subprocess.run(convert, cwd=tmp_path, check=True)  # noqa: S603
    copy = (tmp_path / "mine.raw").read_bytes()
    assert (sbf.image("mine").kind, copy[:7], len(copy)) == ("qemu", b"result ", 1 << 20)
    private = key.splitlines()[2:-2]  # the line before END contains no part of the private key
    assert [len(line) for line in private] == [70, 70, 70]
    assert not [line for line in private if line in copy]


def test_a_running_guest_is_not_cloned(cloning: Cloning) -> None:
    cloning.guest().start(wait=False)
    with pytest.raises(Conflict, match=r"guest g1 of cluster demo runs: .* pass --stop"):
        cloning.clone()
    assert cloning.stored == []


def test_a_guest_that_is_stopping_is_not_cloned(cloning: Cloning) -> None:
    cloning.guest().start(wait=False)
    cloning.made.world.settle()
    cloning.guest().stop(wait=False)
    with pytest.raises(Conflict, match=r"guest g1 of cluster demo is stopping: .* stop the guest first"):
        cloning.clone()


def test_a_guest_on_an_unreachable_host_is_not_cloned(start: Start) -> None:
    made = start(agent=False, agent_wait=0.2)
    stop(made)
    with made.world.store.change_row() as unit:
        require_element(unit, "brno-h1").reachable = False
    with pytest.raises(Conflict, match="guest g1 of cluster demo may still run, because host brno-h1 does not answer"):
        made.client(Role.USER, "alice").get("demo").guests.find("g1").clone("mine")


def test_a_guest_that_the_host_is_starting_is_not_cloned(cloning: Cloning) -> None:
    domain = names.domain_name(cloning.made.world.view("demo").id, "g1")
    with (
        cloning.reservations.for_start(domain, "g1"),
        pytest.raises(Refused, match="host brno-h1: guest g1 is being started: try again"),
    ):
        cloning.clone()


def test_a_guest_that_starts_before_the_reading_is_not_cloned(
    cloning: Cloning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest was stopped when the clone began, but a user starts it before the agent reads the files."""

    def find_after_start(_roots: OneRoot, _domain: str) -> GuestRoot:
        cloning.guest().start(wait=False)
        return GuestRoot(cloning.root, SHIFT)

    monkeypatch.setattr(OneRoot, "find", find_after_start)
    with pytest.raises(Refused, match="host brno-h1: guest g1 runs: stop it first"):
        cloning.clone()
    assert cloning.stored == []


def test_a_taken_name_is_refused_before_the_host_packs(cloning: Cloning) -> None:
    cloning.clone()
    with pytest.raises(NameTaken, match="image mine exists: you added it; choose another name"):
        cloning.clone()


def test_other_users_find_no_guest_to_clone(cloning: Cloning) -> None:
    bob = cloning.made.client(Role.USER, "bob").sbf
    guest = cloning.guest()
    guest._sbf = bob
    with pytest.raises(NotFound, match=r"cluster demo .*is not known"):
        guest.clone("mine")


def test_a_full_quota_is_refused(cloning: Cloning) -> None:
    cloning.made.world.service.settings.__dict__["quota"] = QuotaLimits(images_mb=1)
    (cloning.root / "large").write_bytes(os.urandom(2 << 20))
    os.chown(cloning.root / "large", SHIFT, SHIFT)
    with pytest.raises((QuotaExceeded, Refused), match=r"alice already stores 0 MiB of images.*together 1 MiB\)"):
        cloning.clone()
    assert cloning.stored == []


def test_a_full_disk_of_sbf_leaves_no_image_or_file(cloning: Cloning, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageFull("the disk of SBF's folder of images is full")

    monkeypatch.setattr("sbf_service.image_files.Upload.write", fail)
    with pytest.raises(Refused, match="the disk of SBF's folder of images is full"):
        cloning.clone()
    assert (cloning.stored, cloning.made.client(Role.USER, "alice").sbf.images()) == ([], [])


def test_a_dying_agent_leaves_no_image_or_file(cloning: Cloning, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is killed in the middle of the upload, so its connections are closed."""

    def die(archive: RootArchive) -> Iterator[bytes]:
        yield b"x"
        raise ServiceUnreachable("killed")

    monkeypatch.setattr(RootArchive, "read", die)
    with pytest.raises(Refused, match="killed"):
        cloning.clone()
    await_true(lambda: cloning.stored == [])
    assert cloning.made.client(Role.USER, "alice").sbf.images() == []


def test_a_user_who_closes_the_connection_gets_no_image(cloning: Cloning, monkeypatch: pytest.MonkeyPatch) -> None:
    left, reached = threading.Event(), threading.Event()
    pack = RootArchive.pack

    def wait(archive: RootArchive, root: GuestRoot, texts: object) -> Iterator[int]:
        reached.set()
        left.wait(10)
        yield from pack(archive, root, texts)  # type: ignore[arg-type]

    monkeypatch.setattr(RootArchive, "pack", wait)
    stream = cloning.guest()._open(CLONE)
    assert reached.wait(10)
    stream._connection.socket.shutdown(socket.SHUT_RDWR)
    await_true(lambda: cloning.made.open_sessions == 0)
    left.set()
    await_true(lambda: not cloning.reservations._read)
    assert (cloning.stored, cloning.made.client(Role.USER, "alice").sbf.images()) == ([], [])


@contextmanager
def open_clone(made: Installation) -> Iterator[tuple[SbfClient, GuestSession, SessionStream]]:
    """Stop the guest, and open a session in which the agent would clone the guest.

    Yield the agent's client, the session, and the user's side of the session.
    """
    stop(made)
    agent = made.client(Role.AGENT, "brno-h1").sbf
    with ThreadPoolExecutor(1) as user:
        guest = made.client(Role.USER, "alice").get("demo").guests.find("g1")
        opening = user.submit(lambda: guest._open(CLONE))
        (session,) = agent.waiting_sessions("brno-h1", wait=10)
        with agent.join_session("brno-h1", session) as side:
            side.send_text("{}")
            yield agent, session, opening.result(10)


def test_an_upload_without_a_waiting_user_is_discarded(start: Start) -> None:
    made, data = start(agent=False), b"\x1f\x8b" + bytes(1000)
    content = CONTENT.model_copy(update={"sha256": Sha256(sha256(data).hexdigest()), "size": len(data)})
    with open_clone(made) as (agent, session, stream):

        def send() -> Iterator[bytes]:
            yield data[:500]
            stream.close()
            await_true(lambda: made.open_sessions == 0)
            yield data[500:]

        with pytest.raises(NotFound, match="has ended, or clones no guest"):
            agent.upload_clone("brno-h1", session, content, send())
    assert made.client(Role.USER, "alice").sbf.images() == []


def test_an_agent_sends_images_only_for_its_open_sessions(cloning: Cloning) -> None:
    sbf: SbfClient = cloning.made.client(Role.AGENT, "brno-h1").sbf
    with pytest.raises(NotFound, match="session x of brno-h1 has ended, or clones no guest"):
        sbf.upload_clone("brno-h1", SESSION, CONTENT, [b"x"])


def test_a_clone_for_an_unknown_architecture_is_refused(start: Start) -> None:
    content = CONTENT.model_copy(update={"architecture": Architecture("amd64")})
    with open_clone(start(agent=False)) as (agent, session, stream):
        with pytest.raises(BadInput, match="architecture amd64: expected"):
            agent.upload_clone("brno-h1", session, content, [b"x"])
        stream.close()


def list_without_clones(sbf: SbfClient, element: str, after: int = 0, wait: float = 0) -> list[GuestSession]:
    path = f"/v1/elements/{element}/sessions"
    answer = sbf._connection.send("GET", path, query={"after": after, "wait": min(wait, 1)}, wait=wait)
    return sbf._documents(GuestSession, answer)


def test_agents_of_earlier_versions_are_not_asked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of an earlier version does not list ``clone`` among its kinds of sessions."""
    monkeypatch.setattr(AgentCalls, "waiting_sessions", list_without_clones)
    made = start(agent_wait=1)
    stop(made)
    with pytest.raises(Unreachable, match="upgrade an agent of an earlier version"):
        made.client(Role.USER, "alice").get("demo").guests.find("g1").clone("mine")
    assert made.guests.asked == []
