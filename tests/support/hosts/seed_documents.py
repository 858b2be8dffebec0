from typing import Any

from virtcloud.model.wanted import GuestWanted, Segment

HOST_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nhost\n-----END OPENSSH PRIVATE KEY-----\n"
CLUSTER_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\ncluster\n-----END OPENSSH PRIVATE KEY-----\n"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDkXGJTHImKMghsNegNE0VvZWwg+dgqPFM/bbxqqo4zH"
SEED = {
    "user": "alice",
    "authorized_keys": [f"{PUBLIC_KEY} alice@home"],
    "host_key": HOST_KEY,
    "cluster_key": CLUSTER_KEY,
}
PEERS = (
    {"name": "n1", "cluster": "demo", "addresses": ["10.0.0.1/24", "fd00::1/64"], "host_key": PUBLIC_KEY, "cpus": 2},
    {"name": "n1", "cluster": "4711.pbs", "addresses": ["10.0.0.9/24"], "host_key": f"{PUBLIC_KEY} comment"},
)


def seeded_guest(**changes: Any) -> GuestWanted:
    keys = {"name": "n1", "image": "busybox", "memory_mb": 64, "cpus": 2, "mac": "12:00:00:00:00:01"}
    addresses = ["10.0.0.1/24", "fd00::1/64"]
    return GuestWanted.model_validate({**keys, "addresses": addresses, "seed": SEED, **changes})


def seeded_segment(guest: GuestWanted, **changes: Any) -> Segment:
    keys = {"id": "c1", "key": "demo", "vlan": 100, "port": "eth0", "members": {"c2": "4711.pbs"}, "peers": PEERS}
    return Segment.model_validate({**keys, "guests": [guest], **changes})
