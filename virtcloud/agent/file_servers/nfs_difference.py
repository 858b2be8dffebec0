"""The observed file servers of a gateway, and the steps to the wanted file servers. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from virtcloud.agent.segment_step import SegmentStep, format_faults
from virtcloud.model.wanted import Segment


@dataclass(frozen=True, slots=True)
class ObservedFileServer:
    """The file server of a network.

    ``wanted`` is the wanted state (`NfsServer`, as JSON) with which the server was started.
    """

    cluster: str
    wanted: str = ""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeFiles(SegmentStep):
    """Start the file server of a network."""

    def __str__(self) -> str:
        """Describe the step."""
        exports = " and ".join(export.name for export in self.segment.nfs.exports) if self.segment.nfs else "no files"
        return f"serve {exports} by NFS{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class StopServingFiles:
    """Stop the file server of a network, and remove the server's record."""

    cluster: str

    def __str__(self) -> str:
        """Describe the step."""
        return "stop the file server"


FileServerStep = ServeFiles | StopServingFiles


def find_unwanted_file_servers(
    segments: Iterable[Segment], observed: Iterable[ObservedFileServer]
) -> Iterator[StopServingFiles]:
    """Yield the steps that stop the file servers of networks without the service ``nfs`` on this gateway."""
    wanted = {segment.id for segment in segments if segment.nfs is not None}
    for server in observed:
        if server.cluster not in wanted:
            yield StopServingFiles(server.cluster)


def find_file_server_changes(segment: Segment, observed: Iterable[ObservedFileServer]) -> Iterator[ServeFiles]:
    """Yield the step that starts or restarts a network's file server if the server is missing, faulty or outdated."""
    if segment.nfs is None:
        return
    server = next((one for one in observed if one.cluster == segment.id), None)
    if server is None:
        yield ServeFiles(segment)
        return
    outdated = () if server.wanted == segment.nfs.model_dump_json() else ("the exports changed",)
    if faults := (*server.faults, *outdated):
        yield ServeFiles(segment, faults)
