"""Reads and configures network namespaces of a gateway.

The agent runs `main` with ``python -I -S``, so the program uses only the standard library. A separate process is
necessary, because the agent's threads must stay in the host's namespace. The input is a JSON array of requests. The
``descriptor`` of each request is the file descriptor of a namespace. A request with ``tables`` configures the
namespace. A request with ``sets`` corrects the sets of addresses in the packet filter. A request with ``announced``
announces addresses to the computers in the network. All other requests read the namespace. The output is a JSON array
with one object for each request. After a reading, the object is the state of the namespace. After a change, the object
is empty, or has ``connections`` (`_remove_connections`). After a failure, the object has ``error``.
"""

import ctypes
import ipaddress
import json
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from virtcloud.agent.gateway.connected_routes import list_connected
from virtcloud.agent.gateway.connection_table import Translation, remove_ended_connections
from virtcloud.agent.host_services.server_isolation import CLONE_NEWNET, call
from virtcloud.agent.network import libnftables
from virtcloud.agent.network.owned_tables import OwnedSet, OwnedTable

SYSCTL = Path("/proc/sys/net")
SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
TABLES = {"bridge": "bridge virtcloud", "inet": "inet virtcloud"}
"""The tables of a namespace, by family."""
IPV6_VERSION = 6
CARRIER_S = 2.0
"""Time limit in seconds for the kernel to activate an interface. The kernel may delay the activation by a second."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Execute the requests, and print the answers. An error in one namespace does not stop the other requests."""
    json.dump([_answer(request) for request in json.load(sys.stdin)], sys.stdout)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        call("join a network namespace", _LIBC.setns(request["descriptor"], CLONE_NEWNET))
        if "tables" in request:
            _configure(request)
            return _remove_connections(request)
        if "sets" in request:
            _correct_sets(request["sets"])
            return {}
        if "announced" in request:
            _announce(request["device"], request["announced"])
            return {}
        return _read(request["sysctls"])
    except OSError as error:
        return {"error": str(error)}


def _configure(wanted: Mapping[str, Any]) -> None:
    """Set the packet filters before the interfaces are up, so that all packets are filtered."""
    for removal, commands in wanted["tables"]:
        _replace_table(removal, commands)
    if wanted["unwanted"] and _read_table("inet") is not None:
        libnftables.run_commands(wanted["unwanted"])
    bridge, port, mtu = wanted["bridge"]["name"], wanted["bridge"]["port"], wanted["mtu"]
    present = _read_interfaces()
    if bridge not in present:
        _run_ip((f"link add name {bridge} type bridge stp_state 0 mcast_snooping 0",))
    for name, value in wanted["sysctls"].items():
        if (SYSCTL / name).exists():  # on a kernel without IPv6, the file is missing
            (SYSCTL / name).write_text(value)
    connected = _find_connected(_read_routes())
    addresses = (_address_commands(device, wanted, present, connected) for device in wanted["addresses"])
    _run_ip(
        (
            "link set dev lo up",
            f"link set dev {port} master {bridge} mtu {mtu} up",
            f"link set dev {bridge} address {present[port]['mac']} mtu {mtu}",
            *chain.from_iterable(addresses),
        )
    )
    unwanted = (router for router in _find_routers(_read_routes()) if router not in wanted["routers"])
    _run_ip(
        (
            *(_route_command("delete", router) for router in unwanted),
            *(_route_command("replace", router) for router in wanted["routers"]),
        )
    )


def _remove_connections(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the connections of ended publications. Return {}, or ``{"connections": error}`` after a failure.

    A failure is harmless, because the packet filter drops these connections' packets.
    """
    if wanted["translations"] is None:
        return {}
    current = {Translation(*translation) for translation in wanted["translations"]}
    try:
        remove_ended_connections(current, [ipaddress.ip_network(text) for text in wanted["links"]])
    except OSError as error:
        return {"connections": str(error)}
    return {}


def _replace_table(removal: str, commands: str) -> None:
    try:
        libnftables.run_commands(commands)
    except OSError:  # a chain with another hook exists: nftables cannot change a hook, so create the table again
        try:
            libnftables.run_commands(removal + commands)
        except OSError as error:
            family = commands.split()[1]
            raise OSError(
                f"{error} (the kernel needs nftables for the family {family}, and NAT for routers)"
            ) from error


def _correct_sets(wanted: Mapping[str, Any]) -> None:
    sets = {name: OwnedSet(version, frozenset(addresses)) for name, (version, addresses) in wanted.items()}
    listing = _read_table("inet")
    family, name = TABLES["inet"].split()
    commands = OwnedTable(family, name, {}, address_sets=sets).render_set_changes(listing) if listing else ""
    if commands:
        libnftables.run_commands(commands)


def _route_command(action: str, router: str) -> str:
    return f"route {action} {'::/0' if ':' in router else '0.0.0.0/0'} via {router}"


def _address_commands(
    device: str, wanted: Mapping[str, Any], present: Mapping[str, Any], connected: Iterable[str]
) -> Iterator[str]:
    """Yield the commands that set the addresses of an interface.

    If routes of the present addresses are missing, set the interface down first: the kernel then creates all routes
    again.
    """
    former = {ipaddress.ip_interface(text) for text in present.get(device, {}).get("addresses", ())}
    addresses = [ipaddress.ip_interface(text) for text in wanted["addresses"][device]]
    yield from (f"address delete {address} dev {device}" for address in former.difference(addresses))
    if not set(list_connected(device, map(str, former.intersection(addresses)))) <= set(connected):
        yield f"link set dev {device} down"
    yield from (f"address replace {address} dev {device}{_find_option(address)}" for address in addresses)
    yield f"link set dev {device} up"


def _find_option(address: Any) -> str:  # noqa: ANN401 - an interface's address of either version
    """Disable duplicate address detection, with which a guest could block an IPv6 address of the gateway."""
    return " nodad" if address.version == IPV6_VERSION else ""


def _announce(device: str, addresses: Iterable[str]) -> None:
    """Announce the addresses of ``device``, because other computers may have cached another gateway's MAC address.

    Use ARP for IPv4 (RFC 5227), and neighbour advertisements for IPv6 (RFC 4861, 4.4). The kernel drops the packets
    until both ends of the veth pair are up.
    """
    octets = bytes.fromhex(_wait_for_carrier(device)["address"].replace(":", ""))
    for address in map(ipaddress.ip_interface, addresses):
        packed = address.ip.packed
        if address.version == IPV6_VERSION:
            with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as icmp:
                icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
                index = socket.if_nametoindex(device)
                icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
                message = struct.pack("!BBHI", 136, 0, 0, 0x20000000) + packed + b"\x02\x01" + octets
                with suppress(OSError):  # if the interface cannot send yet, other computers solicit the MAC address
                    icmp.sendto(message, ("ff02::1", 0, 0, index))
        else:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
                link.bind((device, 0))
                request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + octets + packed + bytes(6) + packed
                link.send(b"\xff" * 6 + octets + b"\x08\x06" + request)


def _wait_for_carrier(device: str) -> dict[str, Any]:
    deadline = time.monotonic() + CARRIER_S
    while True:
        (found,) = json.loads(_run((*_find_ip(), "-json", "link", "show", "dev", device)))
        if found["operstate"] == "UP" or time.monotonic() >= deadline:
            return dict(found)
        time.sleep(0.02)


def _read(sysctls: Iterable[str]) -> dict[str, Any]:
    routes = _read_routes()
    return {
        "interfaces": _read_interfaces(),
        "sysctls": {name: (SYSCTL / name).read_text().strip() for name in sysctls if (SYSCTL / name).exists()},
        "tables": {family: _read_table(family) for family in TABLES},
        "routes": _find_routers(routes),
        "connected": _find_connected(routes),
    }


def _read_interfaces() -> dict[str, Any]:
    return {
        interface["ifname"]: {
            "up": "UP" in interface["flags"],
            "mac": interface.get("address"),
            "master": interface.get("master"),
            "addresses": [
                f"{address['local']}/{address['prefixlen']}"
                for address in interface["addr_info"]
                if address["scope"] != "link" and "local" in address
            ],
        }
        for interface in json.loads(_run((*_find_ip(), "-json", "address", "show")))
        if "ifname" in interface
    }


def _find_routers(routes: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(route["gateway"] for route in routes if route["dst"] == "default" and "gateway" in route)


def _find_connected(routes: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(f"{route['dst']} dev {route['dev']}" for route in routes if "dev" in route)


def _read_routes() -> list[dict[str, Any]]:
    options = ("-4", "-6")
    return [route for option in options for route in json.loads(_run((*_find_ip(), "-json", option, "route")) or "[]")]


def _read_table(family: str) -> Any:  # noqa: ANN401 - JSON
    try:
        tables = libnftables.run_commands(f"list tables {family}").splitlines()
    except OSError:  # the kernel lacks this family
        return None
    if f"table {TABLES[family]}" not in tables:
        return None
    command = f"list table {TABLES[family]}"
    if libnftables.has_flags(libnftables.run_commands(command, libnftables.TERSE_OUTPUT)):
        return {"nftables": []}  # the value differs from each wanted table
    return json.loads(libnftables.run_commands(command, libnftables.JSON_OUTPUT))


def _run_ip(commands: Iterable[str]) -> None:
    _run((*_find_ip(), "-batch", "-"), "".join(f"{command}\n" for command in commands))


def _find_ip() -> tuple[str]:
    program = shutil.which("ip", path=SEARCH_PATH)
    if program is None:
        raise OSError(f"the program ip (iproute2) is not in {SEARCH_PATH}: install the package iproute2")
    return (program,)


def _run(command: tuple[str, ...], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603 - iproute2
    if done.returncode:
        raise OSError(f"{Path(command[0]).name}: {done.stderr.strip()}")
    return done.stdout
