"""Tests of clones in the lab. A container's host sends an image to SBF. A guest at another site uses the image."""

from collections.abc import Iterator

import pytest
from support.lab.clusters import create, remove

from virtcloud.client.api import Client
from virtcloud.client.cluster import Cluster
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Conflict
from virtcloud.model.guests import GuestPower

pytestmark = pytest.mark.lab
pytest.importorskip("websockets", reason="NOT TESTED: websockets is not installed")
ENTER = ENTER_CONTAINER.replace(" -n -m -u ", " -a ")
FULL_LINE = 70
KEYS = "cat /etc/ssh/ssh_host_ed25519_key /home/carol/.ssh/id_ed25519"


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[Client]:
    with Client(f"unix://{lab.sbf_socket}") as client:
        yield client


@pytest.fixture(scope="module")
def origin(client: Client) -> Iterator[Cluster]:
    yield start(client, "origin", "brno-h1", "busybox-ssh", disks=[{"name": "data", "size_mb": 16}])
    remove(client.sbf, "origin")


def start(client: Client, key: str, host: str, image: str, **changes: object) -> Cluster:
    guest = {"name": "n1", "host": host, "image": image, "memory_mb": 64, "addresses": ["10.0.0.1/24"], **changes}
    spec = ClusterSpec.model_validate({"owner": "carol", "guests": [guest]})
    return Cluster(client.sbf, create(client.sbf, key, spec))


def run_inside(lab: Lab, cluster: Cluster, command: str) -> str:
    host = cluster.view.spec.guests[0].host
    (domain,) = (name for name in read_guests(lab, host) if cluster.view.id in name)
    return lab.run(host, ("sh", "-c", ENTER, domain, "/bin/sh", "-c", command), check=True).stdout


def read_keys(lab: Lab, cluster: Cluster) -> set[str]:
    """Return the full-length lines of the private keys, except each key's first line, which is the same in all keys."""
    lines = set(run_inside(lab, cluster, KEYS).splitlines())
    return {line for line in lines if len(line) == FULL_LINE and not line.startswith("b3BlbnNz")}


def test_an_extra_disk_is_kept_over_restarts(lab: Lab, origin: Cluster) -> None:
    run_inside(lab, origin, "echo kept >/mnt/data/file && ! dd if=/dev/zero of=/mnt/data/large bs=1M count=32")
    origin.guests["n1"].reset(timeout=60)
    assert run_inside(lab, origin, "cat /mnt/data/file; stat -c %u:%g /mnt/data") == "kept\n0:0\n"


def test_a_clone_has_equal_files_but_different_keys(lab: Lab, client: Client, origin: Cluster) -> None:
    run_inside(lab, origin, "mkdir -p /srv; echo 42 >/srv/result; cp /home/carol/.ssh/id_ed25519 /srv/key")
    keys = read_keys(lab, origin)
    with pytest.raises(Conflict, match="guest n1 of cluster origin runs"):
        origin.guests["n1"].clone("copied")
    origin.guests["n1"].clone("copied", stop=True)
    assert origin.guests["n1"].view.power is GuestPower.ON
    client.sbf.share_image("copied", everybody=True)
    copy = start(client, "copy", "praha-h1", "copied")
    assert run_inside(lab, copy, "cat /srv/result; ls /srv; grep -c carol /etc/passwd") == "42\nresult\n1\n"
    assert len(keys) > 1
    assert not keys & read_keys(lab, copy)
    remove(client.sbf, "copy")
    client.sbf.remove_image("copied")
