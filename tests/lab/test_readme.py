"""Test of the Python example of the README."""

import re
from pathlib import Path

import pytest

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.model.cluster import ENDED_STATES

pytestmark = pytest.mark.lab

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_of_the_readme_works(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"unix://{lab.sbf_socket}"
    monkeypatch.setenv("VIRTCLOUD_URL", url)
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    exec(compile(found[1], "README.md", "exec"), {})  # noqa: S102 - our own page
    assert re.fullmatch(r"\{'brno': (\d+), 'praha': \1\}\n", capsys.readouterr().out)
    with SbfClient(url) as client:
        view = client.cluster("demo")
        while view.state not in ENDED_STATES:
            view = client.cluster("demo", after=view.version, wait=30)
        assert view.state == "released"
