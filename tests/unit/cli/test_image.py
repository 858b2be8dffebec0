"""Tests of commands about images."""

import pytest
from cli_calls import RunCommand

from virtcloud.client.sbf import SbfClient
from virtcloud.model.image import CatalogueImage


def test_unshare_names_the_command_for_an_image_that_everybody_uses(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"sha256": "0" * 64, "size": 3 << 20, "format": "qcow2", "architecture": "x86_64"}
    keys = {"name": "mine", "owner": "eva", "kind": "qemu", "added_at": "2026-11-23T08:00:00Z", "everybody": True}
    found = CatalogueImage.model_validate({**keys, "source": source})
    monkeypatch.setattr(SbfClient, "share_image", lambda *_arguments, **_options: found)
    result = run("image", "unshare", "mine", "bob")
    assert result.stderr == "virtcloud: to exclude bob: virtcloud image unshare mine --everybody\n"
