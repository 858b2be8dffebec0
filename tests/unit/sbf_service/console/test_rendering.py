from pathlib import Path
from shutil import copytree, rmtree

import pytest

from sbf_service.console import rendering


def test_an_upgrade_does_not_change_a_running_sbfs_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copytree(rendering.FOLDER / "templates", tmp_path / "templates")
    monkeypatch.setattr(rendering, "FOLDER", tmp_path)
    environment = rendering.make_environment.__wrapped__()
    rmtree(folder)
    assert "Continue to the console" in environment.get_template("reload.html").render()
