"""Clones of guests: the reports of the host that makes the image, and the start of the guest afterwards."""

from collections.abc import Callable, Iterator

from virtcloud.client.session_stream import SessionStream
from virtcloud.model.errors import Conflict, Gone, NotFound, Refused, ServiceUnreachable, VirtcloudError
from virtcloud.model.guest_sessions import CloneProgress
from virtcloud.model.guests import GuestView
from virtcloud.model.image import CatalogueImage

CloneObserver = Callable[[CloneProgress], None]


def receive_image(stream: SessionStream, host: str, image: str, observer: CloneObserver | None) -> CatalogueImage:
    """Call ``observer`` with each report of the host. Return the image.

    Raise Refused if the host cannot make the image. Raise ServiceUnreachable if the session ends before the image is
    complete.
    """
    for report in _read_reports(stream):
        if observer:
            observer(report)
        if report.error is not None:
            raise Refused(f"host {host}: {report.error}")
        if report.image is not None:
            return report.image
    raise ServiceUnreachable(
        f"host {host} ended the session before image {image} was complete: nothing is stored; try again"
    )


def _read_reports(stream: SessionStream) -> Iterator[CloneProgress]:
    text = b""
    while data := stream.receive():
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            yield CloneProgress.model_validate_json(line, extra="ignore")


def start_after_clone(guest: GuestView, start: Callable[[], object], outcome: str) -> None:
    """Call ``start``, which starts the guest.

    Raise no error if the guest's cluster is ending or has ended. If SBF refuses the start for another reason, for
    example because the token has expired, raise an error of the same type with the remedy. If SBF does not answer, or
    the user presses Ctrl-C, raise ServiceUnreachable with the remedy.

    ``outcome`` is the result of the clone, for the message of the error.
    """
    try:
        try:
            start()
        except Conflict:  # also raised after a concurrent change; if the cluster is ending, the next call fails too
            start()
    except (NotFound, Conflict, Gone):
        return  # the cluster is ending or has ended, and its guests are removed
    except (VirtcloudError, KeyboardInterrupt) as error:
        kind: type[VirtcloudError] = ServiceUnreachable if isinstance(error, KeyboardInterrupt) else type(error)
        raise kind(
            f"{outcome}; guest {guest.name} may still be stopped: virtcloud guest start {guest.cluster} {guest.name} "
            f"({str(error) or 'interrupted'})"
        ) from error
