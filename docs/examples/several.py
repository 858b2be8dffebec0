"""Create several clusters at the same time, with asyncio, and delete them.

Run: python several.py KEY...   (VIRTCLOUD_URL and VIRTCLOUD_TOKEN_FILE as for the command virtcloud)
"""

import asyncio
import sys

from virtcloud import AsyncClient


async def run(client: AsyncClient, key: str) -> None:
    """Create a cluster with one guest, print the guest's host and address, and delete the cluster."""
    cluster = await client.create(key, spread={"count": 1, "image": "busybox", "memory_mb": 32})
    async with cluster:
        await cluster.wait_active(timeout=300)
        (guest,) = cluster.view.spec.guests
        print(key, "is active on", guest.host, "as", guest.addresses[0])


async def main() -> None:
    """Run all clusters side by side."""
    async with AsyncClient() as client:
        await asyncio.gather(*(run(client, key) for key in sys.argv[1:]))


if not sys.argv[1:]:
    sys.exit(__doc__)
asyncio.run(main())
