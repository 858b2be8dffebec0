"""Tests of the netlink socket and of the messages about interfaces."""

import errno
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import kernel_links
import pytest

from virtcloud.agent.network import netlink
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.netlink import MessageKind, NetlinkError, RouteSocket, decode_attributes

Run = Callable[[Callable[[], object]], object]
ANSWER, NLMSG_ERROR, NLMSG_DONE, INTERRUPTED = 16, 2, 3, 0x10


class ScriptedSocket:
    """A kernel's socket that sends prepared datagrams."""

    def __init__(self, *datagrams: bytes) -> None:
        self.datagrams = list(datagrams)
        self.sent = 0

    def send(self, data: bytes) -> None:
        self.sent += 1

    def recv(self, size: int) -> bytes:
        return self.datagrams.pop(0)


def message(kind: int, body: bytes, sequence: int, flags: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def end(sequence: int, flags: int = 0) -> bytes:
    return message(NLMSG_DONE, bytes(4), sequence, flags)


@pytest.fixture
def converse() -> Any:  # noqa: ANN401 - a function
    def start(*datagrams: bytes) -> tuple[RouteSocket, ScriptedSocket]:
        scripted, route = ScriptedSocket(*datagrams), RouteSocket()
        route.close()
        route._socket = scripted  # type: ignore[assignment]
        return route, scripted

    return start


def test_a_list_that_changed_while_it_was_sent_is_read_again(converse: Any) -> None:  # noqa: ANN401
    changed = message(ANSWER, b"old.", 1, INTERRUPTED) + end(1)
    route, _ = converse(changed, message(ANSWER, b"new.", 2), end(2))
    assert route.dump(MessageKind.GETLINK, b"", bytes) == [b"new."]


def test_a_list_that_changes_continually_is_an_error(converse: Any) -> None:  # noqa: ANN401
    route, scripted = converse(*(end(number, INTERRUPTED) for number in range(1, 200)))
    with pytest.raises(NetlinkError):
        route.dump(MessageKind.GETLINK, b"", bytes)
    assert scripted.sent == netlink.MAX_DUMPS


def test_answers_to_an_earlier_message_are_ignored(converse: Any) -> None:  # noqa: ANN401
    route, _ = converse(message(ANSWER, b"late", 0), message(ANSWER, b"mine", 1), end(1))
    assert route.dump(MessageKind.GETLINK, b"", bytes) == [b"mine"]


def test_an_error_at_the_end_of_a_list_is_raised(converse: Any) -> None:  # noqa: ANN401
    failed = message(NLMSG_DONE, struct.pack("=i", -errno.ENOMEM), 1)
    route, _ = converse(message(ANSWER, b"part", 1), failed)
    with pytest.raises(NetlinkError, match="Cannot allocate memory"):
        route.dump(MessageKind.GETLINK, b"", bytes)


def test_a_damaged_attribute_ends_the_decoding() -> None:
    assert decode_attributes(memoryview(struct.pack("=HHI", 8, 1, 7) + bytes(8))).keys() == {1}


def test_the_agent_reads_what_pyroute2_reads(in_namespace: Run) -> None:
    def work() -> object:
        with closing(NetlinkKernel()) as kernel:
            bridge = kernel.add_bridge("br100")
            kernel.change(bridge, alias="virtcloud:a", mtu=1400)
            kernel_links.link("add", ifname="up0", kind="veth", peer="up1")
            kernel.change(kernel_links.find_index("up0"), master=bridge, up=True)
            read = {
                one.index: (one.name, one.kind, one.mtu, one.master, one.parent, one.alias, one.up)
                for one in kernel.list_interfaces()
            }
            return read, {one["index"]: _describe(one) for one in kernel_links.link("dump")}

    read, witness = in_namespace(work)  # type: ignore[misc]
    assert read == witness


def test_a_veth_pair_is_created_in_another_namespace(in_namespace: Run) -> None:
    def work() -> object:
        with closing(NetlinkKernel()) as kernel:
            index = kernel.add_veth_pair("up0", "up1", threading.get_native_id(), 1300, "02:00:00:00:00:09")
            (peer,) = kernel_links.link("get", ifname="up1")
            return peer.get_attr("IFLA_LINK") == index, peer.get_attr("IFLA_MTU"), peer.get_attr("IFLA_ADDRESS")

    assert in_namespace(work) == (True, 1300, "02:00:00:00:00:09")


def _describe(one: Any) -> tuple[object, ...]:  # noqa: ANN401 - pyroute2 has no types
    info = one.get_attr("IFLA_LINKINFO")
    attributes = (one.get_attr(f"IFLA_{name}") for name in ("MTU", "MASTER", "LINK", "IFALIAS"))
    kind = info.get_attr("IFLA_INFO_KIND") if info else None
    return (one.get_attr("IFLA_IFNAME"), kind, *attributes, bool(one["flags"] & 1))
