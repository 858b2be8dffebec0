"""The keys of a job's request: their meanings and values. The request line and the request file use the same keys."""

from collections import OrderedDict
from typing import Dict, NamedTuple

from virtcloud.jobs import request_values
from virtcloud.jobs.request_values import ValueKind


class RequestKey(NamedTuple):
    """A key of the request line: the kind of its value, its meaning, and an example."""

    kind: ValueKind
    meaning: str
    example: str


REQUEST_KEYS: Dict[str, RequestKey] = OrderedDict(
    [
        ("image", RequestKey(request_values.NAME, "The image of the guests; required without `spec`.", "debian12")),
        ("name", RequestKey(request_values.NAME, "The name of the new network, by which others can join it.", "mine")),
        (
            "net",
            RequestKey(
                request_values.NETWORK,
                "The name of the running network to join; `private` requests a new network (the default).",
                "mine",
            ),
        ),
        ("share", RequestKey(request_values.OWNERS, "Other users who may join the network.", "bob+carol")),
        ("guests", RequestKey(request_values.GUESTS, "Guests per host; default: one.", "2")),
        ("mem", RequestKey(request_values.MEMORY, "Memory of each guest; default: 256mb.", "4gb")),
        ("ncpus", RequestKey(request_values.CPUS, "Processors of each guest; default: one.", "2")),
        (
            "disk",
            RequestKey(
                request_values.DISK,
                "Size of each virtual machine's disk (default: the image's size), or the amount of data that each "
                "container can write (default: no limit).",
                "10gb",
            ),
        ),
        (
            "pids",
            RequestKey(
                request_values.PIDS, "Maximum processes and threads of a container; default: the host's limit.", "500"
            ),
        ),
        (
            "bandwidth",
            RequestKey(
                request_values.BANDWIDTH,
                "Maximum rate in Mbit/s at which a guest sends, and at which it receives; default: no limit.",
                "1000",
            ),
        ),
        (
            "filters",
            RequestKey(
                request_values.FILTERS,
                "`addresses`: guests may only use the IP addresses of the spec. `open`: guests may use any MAC "
                "address, on hosts that allow this. Default: any IP addresses, but only the guest's own MAC address.",
                "addresses",
            ),
        ),
        (
            "reach",
            RequestKey(
                request_values.SITES,
                "Further sites of the new network, at which other jobs may join. Guests run on the job's hosts only.",
                "brno+praha",
            ),
        ),
        (
            "services",
            RequestKey(
                request_values.SERVICES,
                "What each host offers to its guests: `dhcp` with the addresses of the spec, `dns` with the names of "
                "all guests, `metadata` with the guest's seed. `dns` and `metadata` need `dhcp`. Default: none.",
                "dhcp+dns",
            ),
        ),
        (
            "service",
            RequestKey(
                request_values.GATEWAY_SERVICES,
                "What a gateway offers in the new network: `nfs` (folders of the owner, by NFSv4.2). Default: none.",
                "nfs",
            ),
        ),
        (
            "vpn",
            RequestKey(
                request_values.YES_OR_NO,
                "Whether SBF connects the cluster to gateways when the job starts. Default: SBF does so when a user "
                "creates the first VPN profile (`virtcloud access profile`).",
                "yes",
            ),
        ),
        (
            "outside",
            RequestKey(
                request_values.DESTINATIONS,
                "Destinations, defined by the sites' administrators, that guests may reach. A gateway becomes the "
                "guests' router. Default: none.",
                "archive+web",
            ),
        ),
        (
            "subnet",
            RequestKey(
                request_values.SUBNET,
                "The guests' addresses: a network, or the first address to assign, with the network's prefix length. "
                "At most one IPv4 subnet and one IPv6 subnet: `[10.0.0.0/24+fd00::/64]`.",
                "10.0.0.50/24",
            ),
        ),
        ("vlan", RequestKey(request_values.VLAN, "The VLAN ID, from the sites' pools; default: SBF chooses.", "112")),
        (
            "spec",
            RequestKey(
                request_values.PATH,
                "A file with the other keys of the request. Beside `spec`, the line may contain only `name` and `net`, "
                "which override the file.",
                "/home/alice/c.yaml",
            ),
        ),
    ]
)
