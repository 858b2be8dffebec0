"""The documents of the metadata service: for each guest, the text at each path. Pure.

The paths are those of cloud-init's data sources NoCloud and EC2, which many other programs can also read.

* NoCloud with the seed URL ``http://169.254.169.254/``: ``meta-data``, ``user-data``, ``network-config``, and an empty
  ``vendor-data``. The texts are those on the seed disk of a virtual machine. If a guest has no seed, ``user-data`` is
  empty.
* EC2: ``/latest/user-data``, and a tree of folders and values below ``/latest/meta-data``. A folder's text is the list
  of its items. `metadata_program` answers requests for versions other than ``latest`` from the same documents.

Sources: https://docs.cloud-init.io/en/latest/reference/datasources/ (nocloud, ec2); Amazon EC2 User Guide, "Instance
metadata categories".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_interface
from typing import Any, Final

from virtcloud.agent.guests import peer_files
from virtcloud.agent.guests.peer_files import render_peer_files
from virtcloud.agent.guests.seeds import (
    META_DATA,
    NETWORK_CONFIG,
    USER_DATA,
    instance_id,
    render_meta_data,
    render_network_config,
    render_nocloud,
)
from virtcloud.agent.host_services.guest_identity import find_guests
from virtcloud.agent.host_services.metadata_program import LATEST, VERSIONS
from virtcloud.model.errors import Refused
from virtcloud.model.guest_seed import WITH_SECRETS
from virtcloud.model.wanted import GuestWanted, Segment

VENDOR_DATA: Final = "vendor-data"
FORM: Final = 1
"""The version of the documents' format. An agent restarts metadata services whose documents have another ``FORM``."""
_IPV4: Final = 4
_SEGMENT_KEYS: Final = {"id", "key", "members", "mtu", "peers", "host_services", "router_addresses", "services"}
_GUEST_KEYS: Final = {"name", "cluster", "mac", "addresses", "seed"}
Documents = dict[str, str]
"""The text at each path. Only the path ``/`` ends with a slash."""


@dataclass(frozen=True, slots=True)
class MetadataDocuments:
    """The documents of all guests. ``addresses`` maps a source address to the index of its guest in ``guests``."""

    guests: tuple[Documents, ...]
    addresses: Mapping[str, int]


def has_metadata(segment: Segment) -> bool:
    """Return whether hosts must offer a metadata service in a segment."""
    return "metadata" in segment.host_services


def hash_metadata(segment: Segment) -> str:
    """Return a digest of the documents' data, or "" without a metadata service."""
    if not has_metadata(segment):
        return ""
    guests = (guest.model_dump_json(include=_GUEST_KEYS, context=WITH_SECRETS) for guest in segment.guests)
    parts = (str(FORM), segment.model_dump_json(include=_SEGMENT_KEYS), *guests)
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def render_metadata(segment: Segment) -> MetadataDocuments:
    """Return the documents of a segment's guests.

    If the user's cloud-config cannot be merged with the generated cloud-config, the guest cannot start and has no
    documents.
    """
    numbers = {guest.mac: number for number, guest in enumerate(segment.guests)}
    return MetadataDocuments(
        guests=tuple(_render_guest(segment, guest) for guest in segment.guests),
        addresses={address: numbers[guest.mac] for address, guest in find_guests(segment).items()},
    )


def _render_guest(segment: Segment, guest: GuestWanted) -> Documents:
    try:
        nocloud = _render_nocloud(segment, guest)
    except Refused:
        return {}
    return {
        **{f"/{name}": text for name, text in nocloud.items()},
        "/": _list_items(VERSIONS),
        f"/{LATEST}": _list_items(("meta-data/", USER_DATA)),
        **dict(_flatten(f"/{LATEST}/meta-data", _ec2_tree(segment, guest))),
    }


def _render_nocloud(segment: Segment, guest: GuestWanted) -> Documents:
    if guest.seed is not None:
        files = render_nocloud(segment, guest, guest.seed, render_peer_files(segment, guest))
    else:
        network_config = render_network_config(segment, guest)
        files = {META_DATA: render_meta_data(segment, guest), USER_DATA: "", NETWORK_CONFIG: network_config}
    return {**files, VENDOR_DATA: ""}


def _ec2_tree(segment: Segment, guest: GuestWanted) -> dict[str, Any]:
    addresses = [ip_interface(address).ip for address in guest.addresses]
    own4 = [str(address) for address in addresses if address.version == _IPV4]
    own6 = [str(address) for address in addresses if address.version != _IPV4]
    keys = guest.seed.authorized_keys if guest.seed else ()
    return {
        "hostname": peer_files.full_name(guest.name, peer_files.cluster_key(segment, guest)),
        "instance-id": instance_id(segment, guest),
        **({"ipv6": own6[0]} if own6 else {}),
        "local-hostname": str(guest.name),
        **({"local-ipv4": own4[0]} if own4 else {}),
        "mac": str(guest.mac),
        **(
            {"public-keys": {str(number): {"openssh-key": str(key)} for number, key in enumerate(keys)}} if keys else {}
        ),
    }


def _flatten(path: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield path, _list_items(name if isinstance(item, str) else f"{name}/" for name, item in tree.items())
    for name, item in tree.items():
        if isinstance(item, str):
            yield f"{path}/{name}", item
        elif name == "public-keys":
            yield f"{path}/{name}", _list_items(f"{number}=key-{number}" for number in item)
            for number, key in item.items():
                yield from _flatten(f"{path}/{name}/{number}", key)
        else:
            yield from _flatten(f"{path}/{name}", item)


def _list_items(items: Iterable[str]) -> str:
    return "\n".join(items)
