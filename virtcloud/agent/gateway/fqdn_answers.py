"""The addresses of FQDNs: which answers of the resolver a gateway admits, and for how long. Pure.

The owner of a DNS name decides the name's addresses, and could direct guests to the gateway itself or to the gateway's
neighbours (DNS rebinding). Therefore a gateway admits no address of the following kinds, even for an allowed name:

======================================  ==============================================================================
address                                 how the gateway recognizes the address
======================================  ==============================================================================
loopback, link-local, multicast, …      `outside_links`, which also drops packets to these addresses
links of clusters                       the ranges in `outside_links`
metadata services of clouds             `resolved_addresses.METADATA`; link-local addresses are in the first row
IPv6 that contains a forbidden IPv4     `resolved_addresses`: `list_forms` for NAT64; `_TUNNELS` for all other kinds
the gateway itself, other interfaces    the gateway's routes: packets would not leave by the interface to the outside
SBF                                     the agent's settings
private networks                        `_is_unlisted`: the destination's ``private_networks`` lack the address
======================================  ==============================================================================

An address that is missing from a new answer stays admitted for `KEEP_S` seconds. A guest may still use the earlier
answer. The gateway counts the packets of an open connection only while the connection's address is admitted. If the
resolver fails, the addresses of the last answers stay admitted.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final

from virtcloud.agent.resolved_addresses import list_forms
from virtcloud.model.gateway_access import PRIVATE_NETWORKS, Destination, Fqdn
from virtcloud.model.outside_use import MAX_ERROR, MAX_NAME_ADDRESSES, ResolvedName

KEEP_S: Final = 3600.0
"""Seconds for which an address stays admitted after the first answer without the address."""
NOT_YET: Final = "not resolved yet"
FindFault = Callable[[str], str | None]
"""A function that returns why a gateway does not admit an address, or None."""


@dataclass(frozen=True, slots=True)
class FqdnAnswer:
    """The resolver's answer for a name. ``is_temporary``: the resolver failed, so the name may still have addresses."""

    addresses: tuple[str, ...] = ()
    error: str | None = None
    is_temporary: bool = False


@dataclass(frozen=True, slots=True)
class FqdnRecord:
    """The recorded addresses of a name, and the error of the latest answer.

    Each value in ``addresses`` is the Unix time of the first answer that lacked the address, or None if the latest
    answer contained the address.
    """

    addresses: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None


def merge_answer(former: FqdnRecord, answer: FqdnAnswer, find_fault: FindFault, now: float) -> FqdnRecord:
    """Return the record of a name after an answer. ``now`` is the Unix time in seconds.

    A recorded time after ``now`` is replaced by ``now``, because the host's clock may have been set back.
    """
    kept = {address: since for address, since in former.addresses.items() if find_fault(address) is None}
    if answer.is_temporary:
        return FqdnRecord(kept, answer.error)
    faults = {address: find_fault(address) for address in dict.fromkeys(answer.addresses)}
    admitted = [address for address, fault in faults.items() if fault is None]
    present = sorted(admitted, key=lambda address: (address not in kept, address))[:MAX_NAME_ADDRESSES]
    absent = {
        address: now if since is None else min(since, now) for address, since in kept.items() if address not in present
    }
    recent = sorted((address for address in absent if absent[address] > now - KEEP_S), key=lambda one: -absent[one])
    excess = f"the name has more than {MAX_NAME_ADDRESSES} addresses; the further addresses are not admitted"
    errors = [answer.error, *faults.values(), excess if len(admitted) > MAX_NAME_ADDRESSES else None]
    return FqdnRecord(
        dict.fromkeys(present) | {one: absent[one] for one in recent[: MAX_NAME_ADDRESSES - len(present)]},
        "; ".join(error for error in errors if error)[:MAX_ERROR] or None,
    )


def list_admitted(destination: Destination, records: Mapping[Fqdn, FqdnRecord]) -> set[str]:
    """Return the addresses of a destination's names to which guests may open connections."""
    found = {address for fqdn in destination.fqdns if fqdn in records for address in records[fqdn].addresses}
    return {address for address in found if not _is_unlisted(address, destination)}


def _is_unlisted(address: str, destination: Destination) -> bool:
    parsed = ip_address(address)
    forms = [form for form in list_forms(parsed) if any(form in network for network in PRIVATE_NETWORKS)]
    listed = [ip_network(text) for text in destination.private_networks]
    return any(not any(form in network for network in listed) for form in forms)


def describe_names(destination: Destination, records: Mapping[Fqdn, FqdnRecord]) -> Iterator[ResolvedName]:
    """Yield the addresses and the error of each name of a destination, for reports."""
    admitted = list_admitted(destination, records)
    for fqdn in destination.fqdns:
        record = records.get(fqdn, FqdnRecord(error=NOT_YET))
        private = sorted(record.addresses.keys() - admitted)
        faults = [f"{address} is private, and `private_networks` does not contain it" for address in private]
        errors = "; ".join(error for error in (record.error, *faults) if error)
        addresses = [ip_address(address) for address in sorted(record.addresses.keys() & admitted)]
        yield ResolvedName(fqdn=fqdn, addresses=tuple(addresses), error=errors[:MAX_ERROR] or None)
