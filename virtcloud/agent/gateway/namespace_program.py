"""Reads and configures network namespaces of a gateway. The agent runs `main` as a child process.

The program enters each namespace in turn, so that no thread of the agent ever leaves the host's namespace. It uses only
the standard library (``python -I -S``). The input is a JSON array. Each element names an open namespace and is either a
reading or, with ``rules``, a configuration. The output is a JSON array with one answer for each element: the state of
the namespace, or an error.
"""

import ctypes
import ipaddress
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from virtcloud.agent.host_services.server_isolation import CLONE_NEWNET, call

SYSCTL = Path("/proc/sys/net")
SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
NFTABLES = "libnftables.so.1"
JSON_OUTPUT = 1 << 4
"""NFT_CTX_OUTPUT_JSON (nftables/libnftables.h)."""
FAMILY, TABLE = "inet", "virtcloud"
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Answer each request. An error of one namespace does not affect the others."""
    json.dump([_answer(request) for request in json.load(sys.stdin)], sys.stdout)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        call("join a network namespace", _LIBC.setns(request["descriptor"], CLONE_NEWNET))
        if "rules" in request:
            _configure(request)
            return {}
        return _read(request["sysctls"])
    except OSError as error:
        return {"error": str(error)}


def _configure(wanted: Mapping[str, Any]) -> None:
    """Set the packet filter first, and the interface up last, so that no packet passes unfiltered."""
    try:
        _run_nft(wanted["rules"])
    except OSError:  # a hook was changed: only a new table can change it back
        _run_nft(wanted["removal"])
        _run_nft(wanted["rules"])
    for name, value in wanted["sysctls"].items():
        if (SYSCTL / name).exists():  # on a kernel without IPv6, the file is missing
            (SYSCTL / name).write_text(value)
    device = wanted["device"]
    present = {ipaddress.ip_interface(text) for text in _read_interfaces().get(device, {}).get("addresses", ())}
    addresses = [ipaddress.ip_interface(text) for text in wanted["addresses"]]
    _run_ip(
        (
            "link set dev lo up",
            *(f"address delete {address} dev {device}" for address in present.difference(addresses)),
            *(f"address replace {address} dev {device}" for address in addresses),
            f"link set dev {device} mtu {wanted['mtu']} up",
        )
    )


def _read(sysctls: Iterable[str]) -> dict[str, Any]:
    return {
        "interfaces": _read_interfaces(),
        "sysctls": {name: (SYSCTL / name).read_text().strip() for name in sysctls if (SYSCTL / name).exists()},
        "rules": _read_table(),
    }


def _read_interfaces() -> dict[str, Any]:
    """Return the interfaces with their addresses, without link-local addresses."""
    return {
        interface["ifname"]: {
            "up": "UP" in interface["flags"],
            "addresses": [
                f"{address['local']}/{address['prefixlen']}"
                for address in interface["addr_info"]
                if address["scope"] != "link" and "local" in address
            ],
        }
        for interface in json.loads(_run((*_find_ip(), "-json", "address", "show")))
        if "ifname" in interface
    }


def _read_table() -> Any:  # noqa: ANN401 - JSON
    tables = json.loads(_run_nft(f"list tables {FAMILY}", JSON_OUTPUT))["nftables"]
    if not any(item["table"]["name"] == TABLE for item in tables if "table" in item):
        return None
    return json.loads(_run_nft(f"list table {FAMILY} {TABLE}", JSON_OUTPUT))


def _run_ip(commands: Iterable[str]) -> None:
    _run((*_find_ip(), "-batch", "-"), "".join(f"{command}\n" for command in commands))


def _find_ip() -> tuple[str]:
    program = shutil.which("ip", path=SEARCH_PATH)
    if program is None:
        raise OSError(f"the program ip (iproute2) is not in {SEARCH_PATH}: install the package iproute2")
    return (program,)


def _run(command: tuple[str, ...], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603 - iproute2
    if done.returncode:
        raise OSError(f"{Path(command[0]).name}: {done.stderr.strip()}")
    return done.stdout


def _run_nft(commands: str, flags: int = 0) -> str:
    """Run commands in the syntax of nft(8). Return the output. Raise OSError with the reason of a failure."""
    library = ctypes.CDLL(NFTABLES)
    library.nft_ctx_new.restype = ctypes.c_void_p
    for function in (library.nft_ctx_get_error_buffer, library.nft_ctx_get_output_buffer):
        function.restype = ctypes.c_char_p
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    try:
        library.nft_ctx_output_set_flags(context, flags)
        library.nft_ctx_buffer_output(context)
        library.nft_ctx_buffer_error(context)
        if library.nft_run_cmd_from_buffer(context, commands.encode()):
            reason = library.nft_ctx_get_error_buffer(context).decode(errors="replace").partition("\n")[0]
            raise OSError(f"nftables: {reason}")
        return str(library.nft_ctx_get_output_buffer(context).decode())
    finally:
        library.nft_ctx_free(context)
