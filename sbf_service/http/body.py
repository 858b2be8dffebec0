"""How long the body of a call may be: a longer one is refused before it is read whole."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope


class BodyTooLong(HTTPException):
    """The body is longer than ``most`` bytes; Starlette hands this exception through the parser of bodies."""

    def __init__(self, most: int) -> None:
        """Name the limit."""
        super().__init__(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"body: expected at most {most} bytes, got more; the limit is 'limits.body' in the settings of this SBF",
        )


def declared(scope: Scope) -> int:
    """Return the length that a call declares; 0 where it declares none, which is counted as it comes."""
    found = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(found) if found.isdigit() else 0


def bounded(receive: Receive, most: int) -> Receive:
    """Return a channel that raises BodyTooLong once more than ``most`` bytes of a body came."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise BodyTooLong(most)
        return message

    return counted
