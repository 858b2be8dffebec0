"""Calls libnftables, which lists and changes the tables of the kernel's packet filter.

`namespace_program` and `dnsmasq_program` use this module too, so the module imports only the standard library.
"""

import ctypes
import re
import socket
from typing import Final

LIBRARY = "libnftables.so.1"
REMEDY = "apt-get install libnftables1 (Debian), dnf install nftables (RHEL)"
JSON_OUTPUT: Final = 1 << 4
"""NFT_CTX_OUTPUT_JSON (nftables/libnftables.h). List a table in this format only if `has_flags` returned False."""
TERSE_OUTPUT: Final = 1 << 11
"""NFT_CTX_OUTPUT_TERSE (nftables/libnftables.h): a listing contains no elements of sets."""
NETLINK_NETFILTER: Final = 12  # linux/netlink.h
_FLAGS = re.compile(r"^\tflags ", re.MULTILINE)


def is_installed() -> bool:
    """Return whether libnftables is installed."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def has_flags(listing: str) -> bool:
    """Return whether a table has flags, for example ``dormant``. ``listing`` is the output of ``nft list table``.

    If a table has one flag, the JSON printer of libnftables 1.0.6 (Debian 12) uses freed memory. The printed text can
    then be invalid, and the C library can abort the process.
    """
    return bool(_FLAGS.search(listing))


def run_commands(commands: str, output_flags: int = 0) -> str:
    """Run commands in the network namespace of the calling thread, and return their output.

    Raise OSError with a message if the library is missing, if the process has too many open files, or if the kernel
    refuses a command.
    """
    library = _load_library()
    _check_netlink()
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    try:
        library.nft_ctx_output_set_flags(context, output_flags)
        library.nft_ctx_buffer_output(context)
        library.nft_ctx_buffer_error(context)
        if library.nft_run_cmd_from_buffer(context, commands.encode()):
            lines = library.nft_ctx_get_error_buffer(context).decode(errors="replace").splitlines()
            raise OSError(f"the kernel refused the packet filter: {lines[0] if lines else 'no reason'}")
        return str(library.nft_ctx_get_output_buffer(context).decode(errors="replace"))
    finally:
        library.nft_ctx_free(context)


def _load_library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise OSError(f"the packet filter needs {LIBRARY}, which is missing: {REMEDY}") from error
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    return library


def _check_netlink() -> None:
    """Raise OSError if no netlink socket can be opened, for example because this process has too many open files.

    Without a netlink socket, libnftables would call the C function ``exit``, and so end this process.
    """
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER).close()
    except OSError as error:
        raise OSError(f"cannot open a netlink socket for the packet filter: {error.strerror}") from error
