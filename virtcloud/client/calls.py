"""The base class of all classes with calls to SBF."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from virtcloud import __version__
from virtcloud.client.connection import Connection, SbfResponse
from virtcloud.model.document import Document, find_unknown_keys
from virtcloud.model.errors import BadInput, Conflict, NoSuchCall
from virtcloud.model.image import ImageContent
from virtcloud.model.validation_errors import format_validation_errors

DEVICE_S = 120.0
"""Additional timeout of a call that reads or changes a device, in seconds."""
PAGE_SIZE: Final = 100
ANY_VERSION = "*"
"""The value of ``version`` with which SBF replaces a document even if another caller has changed the document."""
UNKNOWN_KEYS: Final = "ignore"
"""Unknown keys of answers are ignored: a later version of SBF may send them."""
ORDER: Final = "order"
FORMER_PARAMETERS: Final[Mapping[str, Collection[str]]] = {
    "/v1/audit": {"element", "cluster", "after", "limit", "wait"},
    "/v1/clusters": {"owner", "network", "ended", "limit", "before"},
}
"""The query parameters of lists that version 0.2.0 of SBF knows, by path. Version 0.2.0 ignores other parameters."""
D = TypeVar("D", bound=Document)


class SbfCalls:
    """The base of the classes that group SBF's calls by subject."""

    _connection: Connection

    def _document(self, kind: type[D], answer: SbfResponse) -> D:
        return answer.read(partial(kind.model_validate_json, extra=UNKNOWN_KEYS))

    def _documents(self, kind: type[D], answer: SbfResponse) -> list[D]:
        return answer.read(partial(TypeAdapter(list[kind]).validate_json, extra=UNKNOWN_KEYS))  # type: ignore[valid-type]

    def _pages(self, kind: type[D], path: str, query: Mapping[str, str | float | None], size: int) -> Iterator[list[D]]:
        """Yield the pages of a list. Each page is one call, which is sent when the caller asks for the page.

        An SBF without pages sends the whole list as one page. Raise NoSuchCall if this SBF ignores a filter.
        """
        cursor = None
        while True:
            answer = self._connection.send("GET", path, query={**query, "limit": size, "cursor": cursor})
            self._check_filters(path, query, answer)
            yield self._documents(kind, answer)
            if answer.cursor is None:
                return
            cursor = answer.cursor

    def _check_filters(self, path: str, query: Mapping[str, object], answer: SbfResponse) -> None:
        """Raise NoSuchCall if ``answer`` is a list of an older SBF, which ignores a filter in ``query``.

        The lists of such an SBF have no entity tag (docs/decisions/0086).
        """
        known = (ORDER, *FORMER_PARAMETERS.get(path, ()))
        ignored = [name for name, value in query.items() if value is not None and name not in known]
        if ignored and answer.etag is None:
            raise NoSuchCall(
                f"SBF at {self._connection.url} ignores the filter {', '.join(ignored)} of {path}: it is older than "
                f"this client, virtcloud {__version__}; upgrade SBF first"
            )

    def _document_to_change(self, kind: type[D], answer: SbfResponse) -> D:
        """Return a document that the caller will modify and send back.

        Raise Conflict for unknown keys, which SBF would delete when the document is sent back.
        """
        unknown = answer.read(lambda text: list(find_unknown_keys(kind.model_validate_json(text, extra="allow"))))
        if unknown:
            raise Conflict(
                f"SBF at {self._connection.url} has a later version: virtcloud {__version__} does not know "
                f"{', '.join(unknown)} at {answer.path}, and would delete these keys with any change; "
                "upgrade virtcloud on this computer first"
            )
        return self._document(kind, answer)


def entity_tag(version: str | None) -> str | None:
    """Return the value of ``If-Match`` for a version: the version's entity tag (RFC 9110, 8.8.3).

    For `ANY_VERSION`, return ``*``. Without a version, return None.
    """
    return version if version in {None, ANY_VERSION} else f'"{version}"'


def version_of(answer: SbfResponse) -> str | None:
    """Return the version of the document in an answer, or None if SBF sent no version."""
    return None if answer.etag is None else answer.etag.strip('"')


def flag_query(**flags: bool) -> dict[str, str]:
    """Return the query parameters for the flags that are true."""
    return {name: "true" for name, is_set in flags.items() if is_set}


def content_query(content: ImageContent) -> dict[str, str]:
    """Return the query parameters that describe an image's content."""
    return {key: str(value) for key, value in content.model_dump(mode="json").items()}


def validated(kind: type[D], **keys: object) -> D:
    """Return a document of class ``kind`` with these keys. For invalid keys, raise BadInput that lists every error."""
    try:
        return kind.model_validate(keys)
    except ValidationError as error:
        raise BadInput(format_validation_errors(error)) from error
