"""Tests of starting services when the zygote ends. The zygote is the process that forks the nodes' services."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle
from virtcloud.lab.fabric.plan import LabNode, NodeService
from virtcloud.lab.fabric.zygote import Zygote


@pytest.fixture
def zygote_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The zygote's end of the channel. The test stands for the zygote."""
    channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(socket, "socketpair", lambda *_: (channel, end.dup()))
    monkeypatch.setattr(os, "fork", lambda: 1)
    with channel, end:
        yield end


def start_service(zygote: Zygote, channel: socket.socket) -> None:
    handle = NodeHandle(LabNode("h1", "host", isolated=False), 0, channel, Path("/nonexistent"))
    zygote.start(handle, NodeService("agent", ("agent",), module="agent"), "/dev/null", {})


def test_a_service_start_fails_after_the_zygotes_end(zygote_end: socket.socket) -> None:
    zygote = Zygote(())
    zygote_end.close()
    with pytest.raises(NodeFailed, match="h1: agent: the zygote has ended; to start the lab again"):
        start_service(zygote, zygote_end)


def test_a_service_start_fails_if_the_zygote_ends_meanwhile(zygote_end: socket.socket) -> None:
    zygote = Zygote(())
    zygote.listen()

    def end() -> None:
        zygote_end.recv(1, socket.MSG_PEEK)  # the request has arrived
        zygote_end.close()

    threading.Thread(target=end).start()
    with pytest.raises(NodeFailed, match="h1: agent: the zygote has ended; to start the lab again"):
        start_service(zygote, zygote_end)
