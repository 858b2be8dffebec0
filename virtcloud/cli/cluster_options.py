"""The options and the spec file of ``cluster create``, and the conversion of options and file into the spec."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from itertools import islice
from typing import IO

from pydantic import ValidationError

from virtcloud.cli.options import SizeType, name_of, parse_name, parse_user, split_names
from virtcloud.jobs.request_values import DISK
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import BadInput
from virtcloud.model.guest_spec import Guest
from virtcloud.model.message_text import count_of
from virtcloud.model.ssh_keys import parse_user_keys
from virtcloud.model.user_data import check_user_data
from virtcloud.model.validation_errors import format_validation_errors
from virtcloud.model.values import Address
from virtcloud.model.yaml_document import parse_yaml

NO_SUBNETS = "none"
"""The value of ``--subnet`` for guests without addresses."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of ``cluster create`` that describe the cluster."""

    hosts: tuple[str, ...]
    guests_per_host: int
    guest_count: int | None
    spread_sites: tuple[str, ...]
    image: str | None
    cpus: int | None
    memory: int | None
    disk: int | None
    pids: int | None
    bandwidth: int | None
    extra_disks: tuple[str, ...]
    guest_prefix: str
    network: str | None
    subnets: tuple[str, ...]
    file: IO[str] | None
    owner: str | None
    name: str | None
    joins: str | None
    shares_with: tuple[str, ...]
    sites: tuple[str, ...]
    vlan: int | None
    lease: float | None
    deadline: float | None
    filters: str | None
    serves: tuple[str, ...]
    host_services: tuple[str, ...]
    services: tuple[str, ...]
    vpn: bool
    router: str | None
    outside: tuple[str, ...]
    user: str | None
    ssh_keys: tuple[IO[str], ...]
    user_data: IO[str] | None
    about_guests: tuple[str, ...] = ()
    """The options on the command line that describe hosts and guests, such as ``--host``."""


def build_spec(options: ClusterOptions, caller: Callable[[], str]) -> ClusterSpec:
    """Return the spec from the spec file or from the options.

    The options that do not describe hosts and guests override the file's keys (`_list_overrides`).

    ``caller`` returns the default owner, the user of the caller's token. Raise BadInput for malformed values and
    contradictory options, and if no option names hosts, guests, sites or a file.
    """
    if options.owner:
        parse_user(options.owner, "--owner")  # otherwise, the error would name the file of --spec
    _check_file_options(options)
    _check_placement_options(options)
    overrides = _list_overrides(options)
    if options.file:
        spec = _read_spec(options.file, lambda: options.owner or caller())
        return validate_spec(
            **spec.model_dump() | {key: value for key, value in overrides.items() if value is not None}
        )
    if options.guest_count:
        return validate_spec(
            **overrides | {"owner": options.owner or caller()}, hosts=options.hosts, spread=_build_spread(options)
        )
    guests = build_guests(
        options.hosts, options.guests_per_host, _require_image(options), options.network, options.guest_prefix
    )
    if options.user_data is not None:
        guests = add_user_data(guests, options.user_data.read())
    sized = tuple({**guest.model_dump(), **_list_sizes(options)} for guest in guests)
    return validate_spec(**overrides | {"owner": options.owner or caller()}, hosts=options.hosts, guests=sized)


def _read_spec(file: IO[str], default_owner: Callable[[], str]) -> ClusterSpec:
    document = parse_yaml(file.read(), name_of(file))
    if isinstance(document.data, dict) and document.data.get("owner") is None:
        document = replace(document, data={**document.data, "owner": default_owner()})
    return document.read(ClusterSpec)


def _check_file_options(options: ClusterOptions) -> None:
    if options.file is None and not (options.hosts or options.sites or options.guest_count):
        raise BadInput("expected either --host (at least one), --guests N, --reach SITE or --spec FILE, got none")
    if options.file is not None and options.about_guests:
        raise BadInput(
            f"expected hosts and guests in the file of --spec, got {', '.join(options.about_guests)}: write their "
            "values into the file"
        )
    if not (options.file or options.hosts or options.guest_count) and options.about_guests:
        raise BadInput(
            f"expected --host or --guests N with {', '.join(options.about_guests)}, got --reach only: --reach creates "
            "no guests"
        )


def _list_overrides(options: ClusterOptions) -> dict[str, object]:
    """Return the values of the options that can be used both with and without ``--spec``, by key of the spec.

    A missing option has the value None.
    """
    return {
        "owner": options.owner,
        "name": options.name,
        "joins": options.joins,
        "subnets": _parse_subnets(options.subnets),
        "shares_with": options.shares_with or None,
        "sites": options.sites or None,
        "vlan": options.vlan,
        "lease_s": options.lease,
        "deadline_s": options.deadline,
        "filters": options.filters,
        "serves": options.serves or None,
        "host_services": options.host_services or None,
        "services": options.services or None,
        "vpn": options.vpn or None,
        "router": options.router,
        "outside": options.outside or None,
        "user": options.user,
        "authorized_keys": [key for file in options.ssh_keys for key in parse_user_keys(file.read(), name_of(file))]
        or None,
    }


def _check_placement_options(options: ClusterOptions) -> None:
    if options.spread_sites and not options.guest_count:
        raise BadInput("expected --guests N with --sites, got --sites only; --reach reserves a VLAN ID at a site")
    if options.guest_count and options.network is not None:
        raise BadInput("expected --subnet with --guests, got --network: SBF assigns the addresses of placed guests")
    if options.guest_count and "--guests-per-host" in options.about_guests:
        raise BadInput("expected --guests or --guests-per-host, got both: with --guests, SBF chooses the guests' hosts")


def _build_spread(options: ClusterOptions) -> dict[str, object]:
    sites = tuple(split_names(options.spread_sites, "--sites", "sites"))
    named = {"count": options.guest_count, "image": _require_image(options), "prefix": options.guest_prefix}
    user_data = None if options.user_data is None else options.user_data.read()
    return {**named, "sites": sites, "user_data": user_data, **_list_sizes(options)}


def _list_sizes(options: ClusterOptions) -> dict[str, object]:
    sizes = {
        "cpus": options.cpus,
        "memory_mb": options.memory,
        "disk_mb": options.disk,
        "pids": options.pids,
        "bandwidth_mbit": options.bandwidth,
        "disks": tuple(map(_parse_disk, options.extra_disks)) or None,
    }
    return {key: value for key, value in sizes.items() if value is not None}


def _parse_disk(text: str) -> dict[str, object]:
    name, equals, size = text.partition("=")
    if not equals:
        raise BadInput(f"--extra-disk: expected NAME=SIZE such as data=10gb, got {text!r}")
    try:
        return {"name": name, "size_mb": SizeType(DISK).parse(size)}
    except BadInput as error:
        raise BadInput(f"--extra-disk {name}: {error}") from error


def add_user_data(guests: Iterable[Guest], text: str) -> tuple[Guest, ...]:
    """Return the guests, each with ``text`` as its cloud-config.

    Raise BadInput if ``text`` is no cloud-config or is too long. Without guests, ``text`` is not checked.
    """
    found = tuple(guests)
    for guest in found[:1]:
        check_user_data(text, f"guest {guest.name}")
    return tuple(guest.model_copy(update={"user_data": text}) for guest in found)


def _parse_subnets(texts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the subnets of a spec: None (the default) without the option, and an empty tuple for ``none``."""
    if not texts:
        return None
    others = [text for text in texts if text != NO_SUBNETS]
    if others and len(others) < len(texts):
        raise BadInput(
            f"--subnet: expected subnets or {NO_SUBNETS}, got {NO_SUBNETS} and {', '.join(others)}: omit {NO_SUBNETS}, "
            "or the subnets"
        )
    return tuple(others)


def _require_image(options: ClusterOptions) -> str:
    if options.image is None and (options.guest_count or (options.guests_per_host and options.hosts)):
        raise BadInput(
            "expected --image NAME (or VIRTCLOUD_IMAGE) for the guests, got none; 'virtcloud image list' on a host "
            "lists its images, and --guests-per-host 0 creates a network without guests"
        )
    return options.image or ""


def build_guests(
    hosts: Sequence[str], per_host: int, image: str, network: str | None, prefix: str = "g"
) -> tuple[Guest, ...]:
    """Return ``per_host`` guests for each host. Their names are ``prefix`` followed by 1, 2 and so on.

    The guests get ascending addresses, beginning with the address in ``network``, or with the first host address of a
    subnet such as 10.0.0.0/24. Raise BadInput if a name is malformed, or the network has too few addresses.
    """
    named_hosts = [parse_name(host, "--host (once for each host)") for host in hosts]
    guest_hosts = [host for host in named_hosts for _ in range(per_host)]
    addresses = [()] * len(guest_hosts) if network is None else _list_addresses(network, len(guest_hosts))
    return tuple(
        Guest(
            name=parse_name(f"{prefix}{number}", "--guest-prefix"),
            host=host,
            image=parse_name(image, "--image"),
            addresses=guest_addresses,
        )
        for number, (host, guest_addresses) in enumerate(zip(guest_hosts, addresses, strict=True), 1)
    )


def validate_spec(**keys: object) -> ClusterSpec:
    """Create a spec from ``keys``. None means the default value. Raise BadInput with a list of all errors."""
    try:
        return ClusterSpec.model_validate({key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        raise BadInput(format_validation_errors(error, root="spec")) from error


def _list_addresses(network: str, count: int) -> list[tuple[Address, ...]]:
    if "/" not in network:
        raise BadInput(f"expected a network such as 10.0.0.0/24 or fd00::/64, with its prefix length, got {network!r}")
    try:
        first = ip_interface(network)
        parsed = first.network
    except ValueError as error:
        raise BadInput(f"expected a network such as 10.0.0.0/24, got {network!r}: {error}") from error
    addresses: list[tuple[Address, ...]] = [
        (Address(f"{address}/{parsed.prefixlen}"),) for address in islice(_host_addresses(first), count)
    ]
    if len(addresses) < count:
        raise BadInput(
            f"network {network} has {count_of(len(addresses), 'address')} for {count_of(count, 'guest')}; choose a "
            "larger network"
        )
    return addresses


def _host_addresses(first: IPv4Interface | IPv6Interface) -> Iterator[object]:
    """Yield the host addresses of a network in ascending order, beginning with ``first``.

    If ``first`` is the address of the network itself, begin with the first host address.
    """
    network = first.network
    if first.ip == network.network_address:
        return iter(network.hosts())
    last = int(network.broadcast_address) - (network.version == 4)  # noqa: PLR2004 - IPv6 has no broadcast address
    return (type(first.ip)(number) for number in range(int(first.ip), last + 1))
