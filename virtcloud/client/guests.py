"""The Python API of guests: guests as objects, with methods to stop, start, reset, reach and clone them.

::

    cluster = client.get("demo")
    cluster.guests["g1"].stop()
    cluster.guests["g1"].start()
    print(cluster.guests["g1"].run("uptime").stdout)
    cluster.guests["g1"].ssh()  # log in on this terminal
    for piece in cluster.guests["g1"].log():
        sys.stdout.buffer.write(piece)
    with cluster.guests["g1"].connect(22) as stream:
        print(stream.receive())
    for name, guest in cluster.guests.items():
        print(name, guest.view.host, guest.view.power)
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from virtcloud.client.fan_out import ShowFanOut
from virtcloud.client.guest_clones import CloneObserver, receive_image, start_after_clone
from virtcloud.client.guest_commands import (
    GuestResult,
    find_batch_logins,
    make_command,
    require_success,
    run_collected,
)
from virtcloud.client.guest_copies import get_files, list_sources, put_files
from virtcloud.client.sbf import SbfClient
from virtcloud.client.session_stream import SessionStream
from virtcloud.client.ssh_arguments import DEFAULT_OPTIONS, SshOptions, open_logins, require_ssh
from virtcloud.client.waiting import POLL_S, call_until_answered, pause_after_failed_poll
from virtcloud.model.errors import NameTaken, NotFound, ServiceUnreachable, TimedOut
from virtcloud.model.guest_sessions import SessionKind, SessionRequest
from virtcloud.model.guests import GuestPower, GuestView
from virtcloud.model.image import CatalogueImage
from virtcloud.model.values import Name

GuestProgress = Callable[[GuestView], None]


class ClusterGuest:
    """A guest of a cluster. ``view`` is the last answer of SBF.

    The methods ``stop``, ``start`` and ``reset`` have a parameter ``wait``. If ``wait`` is true, these methods return
    when the host has confirmed the change, with the parameters ``progress`` and ``timeout`` and the errors of
    :meth:`wait_confirmed`. If ``wait`` is false, these methods return when SBF has recorded the change.
    """

    def __init__(
        self, sbf: SbfClient, cluster_id: str, view: GuestView, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create an object for an existing guest. ``clock`` returns monotonic seconds."""
        self._sbf = sbf
        self._cluster_id = cluster_id
        self._clock = clock
        self.view = view

    def __repr__(self) -> str:
        """Return the guest's name, cluster, host and wanted power state as text."""
        return f"<virtcloud.ClusterGuest {self.name} of {self.view.cluster} on {self.view.host}: {self.view.power}>"

    @property
    def name(self) -> str:
        """The guest's name in the cluster's spec."""
        return self.view.name

    def stop(self, *, wait: bool = True, progress: GuestProgress | None = None, timeout: float | None = None) -> Self:
        """Stop the guest. Idempotent. The disk remains."""
        return self._set(GuestPower.OFF, None, progress, timeout, wait=wait)

    def start(self, *, wait: bool = True, progress: GuestProgress | None = None, timeout: float | None = None) -> Self:
        """Start the stopped guest. Idempotent."""
        return self._set(GuestPower.ON, None, progress, timeout, wait=wait)

    def reset(self, *, wait: bool = True, progress: GuestProgress | None = None, timeout: float | None = None) -> Self:
        """Restart the guest once. Raise Conflict if the guest is stopped."""
        resets = self.refresh().resets + 1
        return self._set(GuestPower.ON, resets, progress, timeout, wait=wait)

    def log(self, *, follow: bool = False) -> Iterator[bytes]:
        """Yield the log of the guest's console.

        If ``follow`` is true, also yield later output until the guest is removed.
        """
        with self.open_log(follow=follow) as stream:
            while data := stream.receive():
                yield data

    def open_log(self, *, follow: bool = False) -> SessionStream:
        """Open the log of the guest's console as a stream; see :meth:`log`."""
        return self._open(SessionRequest(kind=SessionKind.LOG, follow=follow))

    def connect(self, port: int) -> SessionStream:
        """Connect to a TCP port of the guest, inside its network. Raise Refused if no process listens at the port."""
        return self._open(SessionRequest(kind=SessionKind.PORT, port=port))

    def console(self) -> SessionStream:
        """Connect to the guest's console. Several users may be connected at the same time."""
        return self._open(SessionRequest(kind=SessionKind.CONSOLE))

    def run(  # noqa: PLR0913 - callers pass each argument by its name
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        wait: float = 0,
        check: bool = False,
        options: SshOptions = DEFAULT_OPTIONS,
        progress: ShowFanOut | None = None,
    ) -> GuestResult:
        """Run a command in the guest over ssh, and return its result; see :meth:`virtcloud.Cluster.run`."""
        made = make_command(command, stdin)
        with open_logins(self._sbf, self.view.cluster, self._cluster_id) as logins:
            results = run_collected(logins, options, (self.name,), made, 1, timeout, progress, wait)
        if check:
            require_success(results)
        return results[self.name]

    def put(
        self,
        local: str | Path | Sequence[str | Path],
        remote: str = "",
        *,
        timeout: float | None = None,
        options: SshOptions = DEFAULT_OPTIONS,
        progress: ShowFanOut | None = None,
    ) -> None:
        """Copy files or folders to the guest; see :meth:`virtcloud.Cluster.put`."""
        sources = list_sources([local] if isinstance(local, str | Path) else local)
        with open_logins(self._sbf, self.view.cluster, self._cluster_id) as logins:
            put_files(find_batch_logins(logins, options, (self.name,)), sources, remote, 1, timeout, progress)

    def get(
        self,
        remote: str | Sequence[str],
        local: str | Path = ".",
        *,
        timeout: float | None = None,
        options: SshOptions = DEFAULT_OPTIONS,
        progress: ShowFanOut | None = None,
    ) -> None:
        """Copy files or folders from the guest into the folder ``local``.

        If ``local`` is no folder, the copy of a single file or folder gets the path ``local``. Raise GuestsFailed if
        the copy failed or took longer than ``timeout`` seconds; no incomplete file remains.
        """
        remotes = {self.name: [remote] if isinstance(remote, str) else remote}
        with open_logins(self._sbf, self.view.cluster, self._cluster_id) as logins:
            found = find_batch_logins(logins, options, (self.name,))
            get_files(found, remotes, Path(local), 1, timeout, progress, folder_for_each=False)

    def ssh(self, *command: str, options: SshOptions = DEFAULT_OPTIONS) -> int:
        """Log in to the guest with ssh on this program's terminal. Return the exit code of ssh.

        With ``command``, run the command instead of a shell. ssh uses the program's standard streams.
        """
        with open_logins(self._sbf, self.view.cluster, self._cluster_id) as logins:
            arguments = logins.find(options, (self.name,))[self.name]
            with require_ssh():
                return subprocess.call([*arguments, *command])  # noqa: S603 - no shell

    def clone(self, image: str, *, stop: bool = False, progress: CloneObserver | None = None) -> CatalogueImage:
        """Create an image from the disk of the stopped guest. Return the image, whose owner is the caller.

        If ``stop`` is true, first stop a running guest, and start the guest again afterwards; a guest that is stopping
        stays stopped. If ``stop`` is false, a guest that runs or is stopping raises Conflict. Call ``progress`` with
        each report of the host. Raise NameTaken if an image with the name ``image`` exists. Raise Refused if the host
        cannot make the image. Raise ServiceUnreachable if the session is interrupted; SBF then stores no part of the
        image. If SBF does not answer for 30 s after the copy, or refuses to start the guest, raise the error of the
        start with the remedy. The message states that the guest may still be stopped, and whether the image is ready.
        """
        request = SessionRequest(kind=SessionKind.CLONE, image=Name(image))
        if not stop:
            return self._clone(request, progress)
        if self.refresh().power is GuestPower.OFF and self.wait_confirmed().view.power is GuestPower.OFF:
            return self._clone(request, progress)
        for existing in self._sbf.images():
            if existing.name == image:
                raise NameTaken(f"image {image} exists: {existing.owner} added it; choose another name")
        start = partial(call_until_answered, partial(self.start, wait=False), self._clock)
        try:
            self.stop()
            made = self._clone(request, progress)
        except BaseException as error:
            start_after_clone(self.view, start, f"image {image} is not complete: {str(error) or 'interrupted'}")
            raise
        start_after_clone(self.view, start, f"image {image} is ready")
        return made

    def _clone(self, request: SessionRequest, progress: CloneObserver | None) -> CatalogueImage:
        with self._open(request) as stream:
            return receive_image(stream, self.view.host, str(request.image), progress)

    def _open(self, request: SessionRequest) -> SessionStream:
        return self._sbf.open_session(self.view.cluster, self.name, request, self._cluster_id)

    def refresh(self) -> GuestView:
        """Read the guest again."""
        self.view = self._sbf.guest(self.view.cluster, self.name, cluster_id=self._cluster_id)
        return self.view

    def _set(
        self,
        power: GuestPower,
        resets: int | None,
        progress: GuestProgress | None,
        timeout: float | None,
        *,
        wait: bool,
    ) -> Self:
        self.view = self._sbf.set_guest_power(self.view.cluster, self.name, power, resets, self._cluster_id)
        return self.wait_confirmed(progress, timeout) if wait else self

    def wait_confirmed(self, progress: GuestProgress | None = None, timeout: float | None = None) -> Self:
        """Wait until the host has confirmed the wanted power state. Call ``progress`` with each new view.

        Raise TimedOut after ``timeout`` seconds. Raise Conflict if the cluster ends.
        """
        deadline = None if timeout is None else self._clock() + timeout
        answered = self._clock()
        while True:
            if progress:
                progress(self.view)
            if self.view.is_confirmed:
                return self
            if deadline is not None and self._clock() >= deadline:
                raise TimedOut(
                    f"host {self.view.host} has not confirmed guest {self.name} after {timeout:g} s{self._trouble}"
                )
            answered = self._poll(answered)

    @property
    def _trouble(self) -> str:
        return f": {self.view.trouble}" if self.view.trouble else "; SBF continues"

    def _poll(self, answered: float) -> float:
        """Run one long poll for a newer view. Return the time of SBF's last answer, as seconds of ``clock``."""
        view = self.view
        try:
            self.view = self._sbf.guest(view.cluster, view.name, view.wanted_revision - 1, POLL_S, self._cluster_id)
        except ServiceUnreachable as error:
            pause_after_failed_poll(error, self._clock() - answered)
            return answered
        return self._clock()


class ClusterGuests(Mapping[str, ClusterGuest]):
    """The guests of a cluster, by name. Each access reads the guest from SBF."""

    def __init__(self, sbf: SbfClient, key: str, cluster_id: str) -> None:
        """Create the mapping for a cluster, and send no call to SBF."""
        self._sbf = sbf
        self._key = key
        self._cluster_id = cluster_id

    def __getitem__(self, name: str) -> ClusterGuest:
        """Return a guest. Raise KeyError for an unknown name."""
        try:
            return self.find(name)
        except NotFound as error:
            raise KeyError(str(error)) from error

    def find(self, name: str) -> ClusterGuest:
        """Return a guest. Raise NotFound for an unknown name; the message lists the cluster's guests."""
        view = self._sbf.guest(self._key, name, cluster_id=self._cluster_id)
        return ClusterGuest(self._sbf, self._cluster_id, view)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the guests in the order of the spec."""
        return (view.name for view in self.views())

    def __len__(self) -> int:
        """Return the number of guests."""
        return len(self.views())

    def views(self) -> list[GuestView]:
        """Return the views of all guests."""
        return self._sbf.guests(self._key, self._cluster_id)
