"""The files that make a user's computer the router of a cluster: ``router`` (a script) and ``router.conf``.

The script is the same for all clusters. ``router.conf`` contains the script's settings as shell assignments.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_interface
from typing import Final, Self

from virtcloud.model.errors import BadInput
from virtcloud.model.guest_seed import Peer
from virtcloud.model.values import Address, Name
from virtcloud.model.vpn import NewVpnProfile

INTERFACE: Final = "vc-router"
"""The tap interface of the router's OpenVPN client. A computer is the router of one cluster at a time."""
HIGHEST_PORT: Final = 65535
_FORWARD: Final = re.compile(r"(?:(tcp|udp)/)?([0-9]{1,5}):([a-z][a-z0-9-]*):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class PortForward:
    """A port of the user's computer that leads to a port of a guest. ``protocol`` is ``tcp`` or ``udp``."""

    protocol: str
    port: int
    guest: Name
    guest_port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``8080:g1:80`` or ``udp/53:g1:53``. Raise BadInput for other texts."""
        found = _FORWARD.fullmatch(text)
        ports = [int(found[2]), int(found[4])] if found else []
        if found is None or not all(1 <= port <= HIGHEST_PORT for port in ports):
            raise BadInput(
                f"--forward: expected [tcp/|udp/]PORT:GUEST:PORT such as 8080:g1:80 or udp/53:g1:53, got {text!r}"
            )
        return cls(found[1] or "tcp", ports[0], Name(found[3]), ports[1])


def parse_forwards(texts: Iterable[str]) -> tuple[PortForward, ...]:
    """Parse the values of ``--forward``. Equal values count as one value.

    Raise BadInput if values with the same protocol and port have different targets.
    """
    forwards = tuple(map(PortForward.parse, texts))
    taken: dict[tuple[str, int], PortForward] = {}
    for forward in forwards:
        other = taken.setdefault((forward.protocol, forward.port), forward)
        if other != forward:
            raise BadInput(
                f"--forward: expected each port once, got {forward.protocol} port {forward.port} for guests "
                f"{other.guest} and {forward.guest}"
            )
    return tuple(dict.fromkeys(forwards))


def find_targets(forwards: Iterable[PortForward], peers: Sequence[Peer]) -> dict[Name, tuple[Address, ...]]:
    """Return the addresses of each guest in ``forwards``. Raise BadInput for a guest without an address."""
    addresses = {peer.name: peer.addresses for peer in reversed(peers)}
    for forward in forwards:
        if not addresses.get(forward.guest):
            known = ", ".join(name for name in sorted(addresses) if addresses[name]) or "none"
            raise BadInput(
                f"--forward: expected a guest with an address, got {forward.guest}; guests with addresses: {known}"
            )
    return {forward.guest: addresses[forward.guest] for forward in forwards}


def render_settings(
    profile: NewVpnProfile,
    profile_file: str,
    forwards: Iterable[PortForward],
    targets: Mapping[Name, tuple[Address, ...]],
    reachable: Iterable[str] = (),
) -> str:
    """Return the text of ``router.conf``. Pure. ``targets`` maps guests to their addresses with prefix lengths."""
    subnets = " ".join(str(ip_interface(address).network) for address in profile.addresses)
    lines = "".join(f"{line}\n" for forward in forwards for line in _list_rules(forward, targets[forward.guest]))
    return f"""\
# The settings of ./router. After a change, run 'sudo ./router up' again.
CLUSTER={profile.cluster}
# The OpenVPN profile in this folder. If PROFILE is empty, another OpenVPN client must connect, and INTERFACE must be
# the tap interface of this client.
PROFILE={profile_file}
INTERFACE={INTERFACE}
# The subnets of the cluster.
SUBNETS='{subnets}'
# Ports of this computer that lead to guests. In each line: tcp or udp, port, address of the guest, port of the guest.
FORWARDS='
{lines}'
# Guests reach all public addresses. The only private addresses and networks that guests reach are listed here, for
# example 192.168.1.53 10.8.0.0/16.
REACHABLE='{" ".join(reachable)}'
"""


def _list_rules(forward: PortForward, addresses: Iterable[Address]) -> Iterator[str]:
    for address in addresses:
        yield f"{forward.protocol} {forward.port} {ip_interface(address).ip} {forward.guest_port} {forward.guest}"


def read_script() -> str:
    """Return the text of the script."""
    return files("virtcloud.client").joinpath("router.sh").read_text(encoding="utf-8")
