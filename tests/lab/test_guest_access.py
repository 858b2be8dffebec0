"""Tests of users' access through SBF to a container and a virtual machine."""

from collections.abc import Iterator

import pytest
from support.lab.clusters import create, remove

from virtcloud.client.api import Client
from virtcloud.client.cluster import Cluster
from virtcloud.lab import Lab
from virtcloud.lab.snapshot import read_guests, run_checked
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.errors import Refused
from virtcloud.model.guests import GuestPower

pytestmark = pytest.mark.lab
pytest.importorskip("websockets", reason="NOT TESTED: websockets is not installed")
GUESTS = (("g1", "brno-h1", "busybox-qemu", "10.0.0.1/24"), ("g2", "brno-h1", "busybox", "10.0.0.2/24"))


@pytest.fixture(scope="module")
def cluster(mixed: Lab) -> Iterator[Cluster]:
    with Client(f"unix://{mixed.sbf_socket}") as client:
        guests = [{"name": n, "host": h, "image": i, "memory_mb": 128, "addresses": [a]} for n, h, i, a in GUESTS]
        spec = ClusterSpec.model_validate({"owner": "eva", "guests": guests, "deadline_s": 300})
        yield Cluster(client.sbf, create(client.sbf, "reach", spec))
        remove(client.sbf, "reach")


def test_users_can_read_logs_of_containers_and_virtual_machines(cluster: Cluster) -> None:
    for name in ("g1", "g2"):
        log = b""
        for piece in cluster.guests[name].log(follow=True):
            log += piece
            if f"{name}: up".encode() in log:
                break
        assert f"{name}: up".encode() in log


def test_typed_text_reaches_the_consoles_of_both_kinds_of_guests(cluster: Cluster) -> None:
    for name in ("g1", "g2"):
        guest, typed = cluster.guests[name], f"typed at {name}".encode()
        with guest.console() as user, guest.console() as other:
            user.send(typed + b"\n")
            for stream in (user, other):
                seen = b""
                while typed not in seen:
                    piece = stream.receive()
                    assert piece, seen
                    seen += piece


def test_qemu_runs_as_an_unprivileged_user(cluster: Cluster, mixed: Lab) -> None:
    assert cluster.guests["g1"].view.power is GuestPower.ON
    script = 'for process in $(pgrep qemu-system); do grep -E "^(Uid|CapEff):" /proc/$process/status; done'
    lines = run_checked(mixed, "brno-h1", "sh", "-c", script).splitlines()
    (users, capabilities) = (line.split()[1:] for line in lines)
    assert "0" not in users, "expected none of QEMU's real, effective, saved and file-system user IDs to be 0"
    assert int(capabilities[0], 16) == 0


def test_a_user_reaches_a_port_of_a_guest_through_sbf(cluster: Cluster, mixed: Lab) -> None:
    with cluster.guests["g1"].connect(23) as stream:
        stream.send(b"hostname\n")
        assert stream.receive() == b"g1\n"
    with pytest.raises(Refused, match="no process of guest g1 listens at port 24"):
        cluster.guests["g1"].connect(24)
    wait = "for i in 1 2 3 4 5 6 7 8 9 10; do ip -o link | grep -q ' vj' || exit 0; sleep 1; done; exit 1"
    assert mixed.run("brno-h1", ["sh", "-c", wait]).returncode == 0


def test_a_stopped_guest_ends_and_its_cluster_stays_active(cluster: Cluster, mixed: Lab) -> None:
    cluster.guests["g2"].stop(timeout=60)
    assert [name[-2:] for name in read_guests(mixed, "brno-h1")] == ["g1"]
    assert cluster.refresh().state is ClusterState.ACTIVE
    cluster.guests["g2"].start(timeout=60)
    assert sorted(name[-2:] for name in read_guests(mixed, "brno-h1")) == ["g1", "g2"]
