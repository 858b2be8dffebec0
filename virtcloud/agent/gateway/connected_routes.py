"""The routes that the kernel creates for the addresses of an interface. Pure.

`namespace_program` uses this module too, so the module imports only the standard library.
"""

import ipaddress
from collections.abc import Iterable, Iterator


def list_connected(device: str, addresses: Iterable[str]) -> Iterator[str]:
    """Yield the routes to an interface's networks, such as "10.0.0.0/24 dev eth0".

    There is no such route for the address of a single host.
    """
    for address in map(ipaddress.ip_interface, addresses):
        if address.network.prefixlen < address.max_prefixlen:
            yield f"{address.network} dev {device}"
