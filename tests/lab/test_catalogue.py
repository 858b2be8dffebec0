import hashlib
import io
import tarfile
from collections.abc import Iterator

import pytest
from support.lab.clusters import create, pings, remove

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.image import ImageContent

pytestmark = pytest.mark.lab


@pytest.fixture
def image(lab: Lab, client: SbfClient) -> Iterator[str]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        tar.add(lab.state.folder / "images/busybox/rootfs", arcname=".")
    data = buffer.getvalue()
    content = ImageContent.model_validate(
        {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "format": "tar.gz", "architecture": "x86_64"}
    )
    client.upload_image("uploaded", content, [data])
    client.share_image("uploaded", everybody=True)
    yield "uploaded"
    client.remove_image("uploaded")


def test_guests_at_two_sites_start_from_an_uploaded_archive(lab: Lab, client: SbfClient, image: str) -> None:
    guests = [
        {"name": f"n{i}", "host": host, "image": image, "memory_mb": 32, "addresses": [f"10.0.0.{i}/24"]}
        for i, host in enumerate(("brno-h1", "praha-h1"), start=1)
    ]
    view = create(client, "fetched", ClusterSpec.model_validate({"owner": "alice", "guests": guests}))
    try:
        assert pings(lab, view, 0, "-c", "3", "-W", "1", "10.0.0.2")
    finally:
        remove(client, "fetched")
