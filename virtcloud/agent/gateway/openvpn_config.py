"""The configuration of a gateway's OpenVPN servers (openvpn(8), OpenVPN 2.6). Pure.

A gateway can have a server for UDP and a server for TCP, each for all clusters. The tap of a server carries only tagged
frames (``vlan-tagging``). Frames between devices pass the cluster's bridge and filters, because ``client-to-client`` is
not set.

The configuration is written to the server's standard input, so no file contains the private keys.
"""

from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from virtcloud.model.errors import Refused
from virtcloud.model.vpn import VpnProtocol, VpnServer

MAX_MACS: Final = 8
"""Limit of MAC addresses of one device during a connection."""
MAX_DEVICES: Final = 1024
"""Limit of devices connected to a server at the same time."""
KEEPALIVE: Final = "10 60"
"""The interval between pings, and the silence after which the device connects again, both in seconds."""
DEVICE_WAITS_S: Final = 60
"""Seconds after which a device without a decision connects again: OpenVPN's default of ``hand-window``.

The server holds the abandoned connection longer. The agent must not admit the abandoned connection, because the agent
would then end the device's present connection.
"""
HANDSHAKE_S: Final = 300
"""Seconds for which OpenVPN waits for a device's handshake, and for the agent's decision about the device.

After this time without a decision, OpenVPN refuses the device, and the device's program ends. With more than 240 s, no
device is refused while the agent does not run, because the device connects again earlier. A new device connects again
after `DEVICE_WAITS_S` seconds. A connected device that renews its keys connects again after at most 240 s: after 60 s,
the device uses the new key, whose packets the server ignores; 120 s later, the server ends the connection
(``keepalive``); 60 s later, the device connects again. The server ends an unfinished handshake after 120 s without a
packet (``keepalive``).
"""
CIPHERS: Final = "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305"
TLS12_CIPHERS: Final = (
    "TLS-ECDHE-ECDSA-WITH-AES-256-GCM-SHA384:TLS-ECDHE-ECDSA-WITH-AES-128-GCM-SHA256:"
    "TLS-ECDHE-ECDSA-WITH-CHACHA20-POLY1305-SHA256"
)
DEVICES: Final = {VpnProtocol.UDP: "vpn-udp", VpnProtocol.TCP: "vpn-tcp"}
"""The name of each server's tap."""


class ServerAccount(NamedTuple):
    """The user and the group of OpenVPN servers."""

    user: str
    group: str


def render_config(server: VpnServer, protocol: VpnProtocol, account: ServerAccount, root: Path, *, ipv6: bool) -> str:
    """Return the configuration of a server. ``root`` is the empty folder that OpenVPN uses as its root directory.

    ``ipv6``: whether the server accepts IPv6 in addition to IPv4.
    """
    options = (
        f"dev {DEVICES[protocol]}",
        "dev-type tap",
        f"proto {_transport(protocol, ipv6=ipv6)}",
        f"port {server.ports[protocol]}",
        *(_UDP_OPTIONS if protocol is VpnProtocol.UDP else ()),
        *_FIXED_OPTIONS,
        f"user {account.user}",
        f"group {account.group}",
        f"chroot {root}",
    )
    blocks = (
        ("ca", server.authority),
        ("cert", server.certificate),
        ("key", server.private_key.get_secret_value()),
        ("tls-crypt-v2", server.tls_crypt_key.get_secret_value()),
    )
    return "\n".join((*options, *(_render_block(name, text) for name, text in blocks), ""))


def digest_config(config: str) -> str:
    """Return a digest, by which the agent recognizes the configuration of a running server."""
    return sha256(config.encode()).hexdigest()[:16]


_FIXED_OPTIONS: Final = (
    "mode server",
    "tls-server",
    "dh none",
    "vlan-tagging",
    "vlan-accept tagged",
    f"keepalive {KEEPALIVE}",
    f"hand-window {HANDSHAKE_S}",
    "management-client-auth",
    "management-hold",
    "auth-user-pass-optional",
    "verify-client-cert require",
    "remote-cert-tls client",
    "duplicate-cn",
    "tls-version-min 1.2",
    f"tls-cipher {TLS12_CIPHERS}",
    f"data-ciphers {CIPHERS}",
    "allow-compression no",
    f"max-clients {MAX_DEVICES}",
    f"max-routes-per-client {MAX_MACS}",
    "persist-key",
    "persist-tun",
    "script-security 0",
    "tmp-dir /",
    "verb 1",
)
"""``duplicate-cn`` allows two connections with the same profile, so that the agent can end the older connection with a
notice. Without this option, OpenVPN would end the older connection without a notice, and two devices would disconnect
each other again and again.
"""

_UDP_OPTIONS: Final = ("multihome",)
"""With ``multihome``, the server answers from the address to which the device sent its packet.

Without this option, the kernel would choose the source address, and devices refuse answers from another address. With
OpenVPN 2.6, an answer leaves through the interface at which the packet arrived. Data channel offload, which ignores the
option, is never used with a tap.
"""


def _transport(protocol: VpnProtocol, *, ipv6: bool) -> str:
    name = "udp" if protocol is VpnProtocol.UDP else "tcp-server"
    return name.replace("udp", "udp6").replace("tcp", "tcp6") if ipv6 else name


def _render_block(name: str, text: str) -> str:
    if "</" in text:
        raise Refused(f"expected a text in PEM form for {name} of the OpenVPN servers, got a text with '</'")
    return f"<{name}>\n{text.strip()}\n</{name}>"
