"""Initial file systems (initramfs) of the lab's QEMU images: programs, kernel modules, and their archive."""

import lzma
import stat
from collections.abc import Sequence
from pathlib import Path


def write_program(path: Path, text: str) -> None:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def store_modules(tree: Path, modules: Sequence[Path]) -> None:
    """Copy kernel modules, which are in the order of loading, into the folder ``modules`` of a tree.

    Each copy's name begins with a number, so that the sorted names have the same order.
    """
    (tree / "modules").mkdir()
    for number, source in enumerate(modules):
        content = source.read_bytes()
        plain = lzma.decompress(content) if source.suffix == ".xz" else content
        (tree / f"modules/{number:02}-{source.name.removesuffix('.xz')}").write_bytes(plain)


def cpio_archive(tree: Path) -> bytes:
    """Return a folder tree as a cpio archive (newc) for an initial file system. Root owns every file in the archive."""
    entries = [
        _cpio_entry(path, str(path.relative_to(tree)), number) for number, path in enumerate(sorted(tree.rglob("*")), 1)
    ]
    return b"".join(entries) + _cpio_record("TRAILER!!!", 0, 0, b"")


def _cpio_entry(path: Path, name: str, number: int) -> bytes:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return _cpio_record(name, number, mode, str(path.readlink()).encode())
    return _cpio_record(name, number, mode, path.read_bytes() if path.is_file() else b"")


def _cpio_record(name: str, number: int, mode: int, data: bytes) -> bytes:
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return _cpio_pad(head) + _cpio_pad(data)


def _cpio_pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
