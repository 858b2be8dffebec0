import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle, receive_report
from virtcloud.lab.fabric.plan import LabNode

NODE = LabNode("h1", "host", isolated=False)
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The two sockets of a node's channel. The first socket belongs to the lab's main process (the fabric).

    The second socket belongs to the node's first process. The test plays the role of this process.
    """
    fabric_end, node_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with fabric_end, node_end:
        yield fabric_end, node_end


def make_node(channel: socket.socket) -> NodeHandle:
    return NodeHandle(NODE, 0, channel, Path("/nonexistent"))


@pytest.mark.parametrize(
    ("has_power", "message"), [(True, "its first process has ended; to start"), (False, "h1 is powered off; power it")]
)
def test_a_request_fails_if_the_node_ends_without_an_answer(ends: Ends, has_power: bool, message: str) -> None:
    node = make_node(ends[0])
    node.listen()

    def end() -> None:
        ends[1].recv(1, socket.MSG_PEEK)  # the request has arrived
        node.has_power = has_power
        ends[1].close()

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(NodeFailed, match=message):
        node.signal(1, signal.SIGHUP)
    ending.join()


def test_a_request_after_the_end_of_the_node_fails(ends: Ends) -> None:
    node = make_node(ends[0])
    ends[1].close()
    with pytest.raises(NodeFailed, match="h1: its first process has ended; to start the lab again: virtcloud lab down"):
        node.signal(1, signal.SIGHUP)


def test_a_too_large_request_does_not_end_the_node(ends: Ends) -> None:
    with pytest.raises(OSError, match="Message too long"):
        make_node(ends[0]).spawn(["true", "x" * (1 << 22)], (), {})


def test_a_start_that_reads_no_description_is_reported(ends: Ends) -> None:
    ends[0].send(b"{}")
    ends[1].close()
    with pytest.raises(NodeFailed, match="h1: its first process died"):
        receive_report(NODE, ends[0])
