"""A fake of SBF that sends the images of its catalogue completely, slowly, partly, with an error, or not at all."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from support.guest_machine.interruptions import Interruptions, Turns
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import NotFound, ServiceUnreachable
from virtcloud.model.image import ImageSource


class ImageServer:
    """A fake of SBF with the images of its catalogue.

    ``modes`` maps each image to the behaviour of the fake SBF:

    - ``ok``: SBF sends the image.
    - ``slow``: SBF pauses before each part.
    - ``cut``: SBF ends each answer after one part.
    - ``wrong``: one byte is wrong.
    - ``long``: the answer has one byte too many.
    - ``gone``: SBF does not know the image.
    - ``down``: SBF does not answer.
    """

    def __init__(self, turns: Turns, interruptions: Interruptions) -> None:
        self._turns, self._interruptions = turns, interruptions
        heads = {"disk1": b"1", "disk2": b"2", "disk3": b"3", "root1": bytes(257) + b"ustar"}
        self.data = {name: head.ljust(3000, b".") for name, head in heads.items()}
        self.modes = dict.fromkeys(self.data, "ok")

    def source(self, name: str) -> ImageSource:
        data = self.data[name]
        keys = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "architecture": "x86_64"}
        return ImageSource.model_validate({**keys, "format": "tar" if name == "root1" else "raw"})

    @contextmanager
    def download(self, name: str, offset: int, _etag: str | None) -> Iterator[FileTransfer]:
        self._interruptions.tick()
        mode, data = self.modes[name], self.data[name]
        if mode == "gone":
            raise NotFound(f"image {name} is not known")
        if mode == "down":
            raise ServiceUnreachable("SBF does not answer")
        if mode == "wrong":
            data = data[:1000] + b"?" + data[1001:]
        yield FileTransfer(offset, '"1"', self._send(data + b"!" * (mode == "long"), offset, name))

    def _send(self, data: bytes, offset: int, name: str) -> Iterator[bytes]:
        for position in range(offset, len(data), 1000):
            self._interruptions.tick()
            while self.modes[name] == "slow":
                self._turns.park("server")
            yield data[position : position + 1000]
            if self.modes[name] == "cut":
                return
