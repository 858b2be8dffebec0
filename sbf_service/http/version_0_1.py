"""Answers for callers of version 0.1, whose client refuses a document with a key that it does not know.

That client names only its HTTP library (``User-Agent: python-httpx/…``, RFC 9110, 10.1.5); later ones name themselves
(``virtcloud/0.2.0``) and ignore unknown keys. For 0.1 every key that its documents do not have is left out, and a
problem of a type that it does not know gets the type of the nearest base class that it knows.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbf_service.http.version_0_1_keys import ANSWERS, INNER, KEYS, PROBLEMS
from virtcloud.model.errors import VirtcloudError

CLIENT: Final = b"python-httpx/"
NEEDED: Final = "requires"
"""Never left out where it names anything: what an agent must understand is not to be ignored, but refused by 0.1."""
JSON, PROBLEM = "application/json", "application/problem+json"
URN: Final = "urn:virtcloud:problem:"


@dataclass(frozen=True, slots=True)
class ForVersion01:
    """Stands around the application; answers to other callers pass as they are."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, and its answer back in the form of 0.1 where that is needed."""
        if scope["type"] == "http" and _is_version_0_1(scope):
            await self.app(scope, receive, _Rewritten(scope, send))
        else:
            await self.app(scope, receive, send)


def _is_version_0_1(scope: Scope) -> bool:
    return any(name == b"user-agent" and value.startswith(CLIENT) for name, value in scope["headers"])


class _Rewritten:
    """Collects an answer's body and sends it in the form of 0.1."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _media_type(message) in {JSON, PROBLEM}:
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)
        else:
            await self._send(message)

    async def _finish(self, start: Message) -> None:
        body = self._in_its_form(start) if self._body else b""  # 204 has none
        if body:
            MutableHeaders(scope=start)["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    def _in_its_form(self, start: Message) -> bytes:
        said = json.loads(self._body)
        operation = str(getattr(self._scope.get("route"), "operation_id", None))
        made = problem(said) if _media_type(start) == PROBLEM else answer(operation, said)
        return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()


def _media_type(start: Message) -> str:
    return MutableHeaders(scope=start).get("content-type", "").partition(";")[0]


def answer(operation: str, said: Any) -> Any:  # noqa: ANN401 - any JSON
    """PURE. Return an operation's answer as 0.1 knows it; an operation that 0.1 lacks answers unchanged."""
    return _known(said, ANSWERS.get(operation, ()))


def problem(said: Mapping[str, Any]) -> dict[str, Any]:
    """PURE. Return a problem document with a type that 0.1 knows."""
    slug = str(said["type"]).removeprefix(URN)
    return {**said, "type": URN + _BASES.get(slug, slug)}


def _known(value: Any, documents: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        return [_known(one, documents) for one in value]
    if not documents or not isinstance(value, dict):
        return value
    document = max(documents, key=lambda one: len(KEYS[one] & value.keys()))
    return {
        key: _known(inner, INNER.get((document, key), ()))
        for key, inner in value.items()
        if key in KEYS[document] or (key == NEEDED and inner)
    }


def _bases(kinds: Iterable[type[VirtcloudError]]) -> dict[str, str]:
    """Return for each type of problem the nearest that 0.1 knows: itself or one of its base classes."""
    found = {}
    for kind in kinds:
        lineage = (one for one in kind.__mro__ if issubclass(one, VirtcloudError))
        found[kind.slug] = next((one.slug for one in lineage if one.slug in PROBLEMS), VirtcloudError.slug)
        found |= _bases(kind.__subclasses__())
    return found


_BASES = _bases([VirtcloudError])
