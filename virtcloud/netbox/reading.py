"""Reads devices, interfaces and VLANs from NetBox's REST API with pynetbox. Nothing is written to NetBox."""

import ssl
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from virtcloud.model.errors import BadInput, ServiceUnreachable, VirtcloudError
from virtcloud.netbox.settings import NetBoxFile

TIMEOUT_S = 30.0
BATCH: Final = 50
"""Maximum number of devices or VLAN groups that one request names, so that the request's URL is not too long."""
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
Row = dict[str, Any]
"""An object of NetBox, as its REST API documents it."""


@dataclass(frozen=True, slots=True)
class NetBoxData:
    """The objects that NetBox has for the selected sites."""

    sites: tuple[Row, ...]
    devices: tuple[Row, ...]
    interfaces: tuple[Row, ...]
    groups: tuple[Row, ...]
    """The VLAN groups whose scope is one of the sites, with and without the tag. Empty if the settings have no tag."""
    vlans: tuple[Row, ...]
    """All VLANs of the sites and of ``groups``, including VLANs without the tag."""


def read_netbox(file: NetBoxFile) -> NetBoxData:
    """Read from NetBox the objects of the sites that ``file`` names.

    Raise BadInput for an unknown site, or an invalid token or address. Also raise BadInput if NetBox refuses a list or
    a filter, or if pynetbox is not installed. Raise ServiceUnreachable if NetBox does not answer, or answers with
    another error.
    """
    api = _open_api(file)
    sites = _read(file, "sites", partial(api.dcim.sites.filter, slug=list(file.sites)))
    if missing := set(file.sites) - {str(site["slug"]) for site in sites}:
        raise BadInput(
            f"{file.url}: expected the sites {', '.join(file.sites)}, found no {', '.join(sorted(missing))}: check the "
            "slugs, and whether the token's user may view the site"
        )
    tag = {} if file.tag is None else {"tag": file.tag}
    roles = [*file.switch_roles, *file.host_roles]
    devices = _read(file, "devices", partial(api.dcim.devices.filter, site=list(file.sites), role=roles, **tag))
    interfaces = [
        row
        for ids in _batches(devices)
        for row in _read(file, "interfaces", partial(api.dcim.interfaces.filter, device_id=ids))
    ]
    scope = {"scope_type": "dcim.site", "scope_id": [site["id"] for site in sites]}
    groups = _read(file, "VLAN groups", partial(api.ipam.vlan_groups.filter, **scope)) if tag else []
    vlans = _read(file, "VLANs", partial(api.ipam.vlans.filter, site=list(file.sites)))
    for ids in _batches(groups):  # a VLAN of a group may have no site of its own
        vlans += _read(file, "VLANs", partial(api.ipam.vlans.filter, group_id=ids))
    unique = {row["id"]: row for row in vlans}
    return NetBoxData(tuple(sites), tuple(devices), tuple(interfaces), tuple(groups), tuple(unique.values()))


def _batches(rows: Sequence[Row]) -> Iterator[list[int]]:
    ids = [row["id"] for row in rows]
    yield from (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _open_api(file: NetBoxFile) -> Any:  # noqa: ANN401 - pynetbox has no types
    try:
        import pynetbox  # noqa: PLC0415 - an optional library
        import requests  # noqa: PLC0415 - a library of pynetbox
    except ImportError as error:
        raise BadInput(
            f"the command 'netbox' needs {error.name}; install it with: pip install 'virtcloud[netbox]'"
        ) from error

    machine = ssl.get_default_verify_paths()
    trusted = file.ca_file or machine.cafile or machine.capath or True  # True: certifi, the default of `requests`

    class TimedSession(requests.Session):
        """A session whose requests end after a timeout."""

        def request(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the library's signature
            """Send a request with the arguments ``timeout`` and ``verify``.

            The session's attribute ``verify`` does not suffice: the variable ``REQUESTS_CA_BUNDLE`` overrides this
            attribute.
            """
            return super().request(*arguments, **{"timeout": TIMEOUT_S, "verify": trusted, **options})

    api = pynetbox.api(file.url, token=_read_token(file))
    api.http_session = TimedSession()
    # Without this function, the library `requests` would replace the token by a login of ~/.netrc.
    api.http_session.auth = lambda request: request
    return api


def _read_token(file: NetBoxFile) -> str | None:
    if file.token_file is None:
        return None
    try:
        token = Path(file.token_file).read_text(encoding="ascii").strip()
    except OSError as error:
        raise BadInput(f"token_file {file.token_file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BadInput(f"token_file {file.token_file}: expected a token of NetBox, got other characters") from None
    if not token:
        raise BadInput(f"token_file {file.token_file}: expected a token of NetBox, got an empty file")
    return token


def _read(file: NetBoxFile, noun: str, query: Callable[[], Collection[Any]]) -> list[Row]:
    """Return all objects of a query, from all pages. Convert the libraries' errors to exceptions of virtcloud.

    If an object is deleted between two pages, the next page begins one object too late. Therefore raise
    ServiceUnreachable if the number of objects differs from NetBox's first answer.
    """
    import pynetbox  # noqa: PLC0415 - an optional library

    try:
        records = query()
        rows = [dict(record) for record in records]
        count = len(records)
    except pynetbox.RequestError as error:
        raise _explain(file, noun, error.req.status_code, _detail(error)) from error
    except pynetbox.ContentError as error:
        raise BadInput(f"{file.url}: expected NetBox's API, got an answer that is no JSON: check the url") from error
    except OSError as error:  # the base class of requests.RequestException
        raise ServiceUnreachable(
            f"NetBox at {file.url} does not answer: {_cause(error)}: check the url, ca_file and network"
        ) from error
    if len({row["id"] for row in rows}) != count:
        raise ServiceUnreachable(
            f"NetBox at {file.url}: expected {count} {noun}, got {len(rows)}: the list changed between two pages; try "
            "again"
        )
    return rows


def _cause(error: BaseException) -> str:
    """Return the text of the last error in the chain of causes of ``error``, or else the name of its type."""
    while (former := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = former
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _detail(error: Any) -> str:  # noqa: ANN401 - pynetbox has no types
    with suppress(ValueError, AttributeError, TypeError):
        body = error.req.json()
        return str(body.get("detail") or "; ".join(f"{key}: {' '.join(words)}" for key, words in body.items()))
    return ""


def _explain(file: NetBoxFile, noun: str, status: int, detail: str) -> VirtcloudError:
    words = f" ({detail})" if detail else ""
    if status in {UNAUTHORIZED, FORBIDDEN}:
        return BadInput(
            f"NetBox at {file.url} refuses to list {noun}{words}: check token_file {file.token_file or '(none)'}, and "
            f"give the token's user the permission to view {noun}"
        )
    if status == NOT_FOUND:
        return BadInput(
            f"{file.url}: NetBox has no list of {noun} there: check the url, which ends before '/api'; NetBox 3.6 or "
            "later is needed"
        )
    if status == BAD_REQUEST:
        return BadInput(f"NetBox at {file.url} refuses the filter of {noun}{words}: check the slugs of tag and roles")
    return ServiceUnreachable(f"NetBox at {file.url} answered {status} to the list of {noun}{words}: try again later")
