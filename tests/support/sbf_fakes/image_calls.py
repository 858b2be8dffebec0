"""Calls that add images to SBF's catalogue, and a list of the files that SBF stores for the images."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from support.sbf_fakes.http_calls import ask, client
from support.sbf_fakes.world import World

QCOW2 = b"QFI\xfb" + (3).to_bytes(4) + bytes(504) + b"disk" * 100
URL = {"url": "https://example.org/a.qcow2"}


def content(data: bytes, **changes: object) -> dict[str, Any]:
    keys = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "format": "qcow2", "architecture": "x86_64"}
    return keys | changes


def upload(
    world: World, token: str, data: bytes = QCOW2, *, name: str = "disk", sent: bytes | None = None, **changes: object
) -> httpx.Response:
    """Upload ``sent`` (by default, ``data``) in three parts. The call's parameters describe the file ``data``."""
    body = data if sent is None else sent

    async def parts() -> AsyncIterator[bytes]:
        for part in (body[:7], body[7:300], body[300:]):
            yield part

    async def call() -> httpx.Response:
        async with client(world.service, token) as http:
            return await http.put(f"/v1/images/{name}/content", params=content(data, **changes), content=parts())

    return asyncio.run(call())


def add_url(world: World, token: str, name: str = "disk", **changes: object) -> httpx.Response:
    return ask(world, "PUT", f"/v1/images/{name}", content(QCOW2, **URL) | changes, token=token)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
