import json
from collections.abc import Iterator
from contextlib import contextmanager

from click.testing import CliRunner

from support.lab.clusters import create, remove
from virtcloud.cli import main
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.laptop import CONNECTED, LaptopVpn
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView

GATEWAY, HOST = "brno-gw1", "brno-h1"
GUEST, GUEST6, GUEST_MAC = "10.0.0.1", "fd00::1", "02:00:00:00:00:a1"


def access(lab: Lab, *argv: str) -> str:
    done = CliRunner().invoke(main, ["--url", f"unix://{lab.sbf_socket}", "access", *argv], catch_exceptions=False)
    assert done.exit_code == 0, done.output + done.stderr
    return done.stdout


def make_profile(lab: Lab, key: str, device: str) -> str:
    return access(lab, "profile", key, "--device", device)


def find_addresses(lab: Lab, key: str, device: str) -> list[str]:
    found = json.loads(access(lab, "list", key, "--json"))
    return [address for one in found if one["device"] == device for address in one["addresses"]]


@contextmanager
def two_clusters(client: SbfClient, *keys: str, **changes: object) -> Iterator[dict[str, ClusterView]]:
    addresses = (f"{GUEST}/24", f"{GUEST6}/64")
    guest = Guest(name="g1", host=HOST, image="busybox-ssh", memory_mb=64, mac=GUEST_MAC, addresses=addresses)
    spec = ClusterSpec.model_validate({"owner": "alice", "guests": (guest,), "vpn": True, **changes})
    try:
        yield {key: create(client, key, spec) for key in keys}
    finally:
        remove(client, *keys)


@contextmanager
def connected(lab: Lab, key: str, name: str, *options: str) -> Iterator[LaptopVpn]:
    """Connect a device to a cluster during the context. Each device has its own network namespace on ``laptop``."""
    device = LaptopVpn(lab, name, namespace=True)
    try:
        device.connect(make_profile(lab, key, name), *options)
        assert device.logs(CONNECTED), device.log
        device.move_interface(*find_addresses(lab, key, name))
        yield device
    finally:
        device.disconnect()
