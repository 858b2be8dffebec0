"""Tests of the Python code of the README, and of the page on Python."""

import ast
import asyncio
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_clusters import active, create, ended, remove, until

from virtcloud import Client
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.model.cluster import ClusterSpec

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]


def read_blocks(page: str) -> list[str]:
    """Return the Python code of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


async def execute(code: str, names: dict[str, object]) -> None:
    """Execute code that may contain ``await`` outside of functions, as in a notebook."""
    done = eval(compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # noqa: S307 - our own page
    if inspect.isawaitable(done):
        await done


@pytest.fixture(autouse=True)
def address(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of the lab's SBF, where the examples find it."""
    monkeypatch.setenv("VIRTCLOUD_URL", f"unix://{lab.sbf_socket}")


def test_the_python_example_of_the_readme_works(client: SbfClient, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(execute(read_blocks("README.md")[0], {}))
    assert re.fullmatch(r"\{'brno': (\d+), 'praha': \1\}\n", capsys.readouterr().out)
    assert until(client, "demo", ended).state == "released"


def test_the_code_of_the_page_on_python_works(lab: Lab, client: SbfClient, capsys: pytest.CaptureFixture[str]) -> None:
    first, *inspections, asynchronous = read_blocks("docs/how-to/use-python.md")
    asyncio.run(execute(first, {}))
    assert re.fullmatch(r"(g\d [a-z]+-h\d 10\.0\.0\.\d/24 \S+\n){3}", capsys.readouterr().out)
    until(client, "demo", ended)

    create(client, "demo", ClusterSpec.model_validate({"owner": "alice", "hosts": ["brno-h1", "praha-h1"]}))
    with Client(f"unix://{lab.sbf_socket}") as opened:
        for code in inspections:
            names: dict[str, object] = {"client": opened}
            asyncio.run(execute(code, names))
            assert not getattr(names.get("found"), "failed", ())
    remove(client, "demo")
    capsys.readouterr()

    def delete() -> None:
        until(client, "demo", active)
        client.delete_cluster("demo")

    with ThreadPoolExecutor() as pool:
        deletion = pool.submit(delete)
        asyncio.run(execute(asynchronous, {}))
        deletion.result()
    states = re.findall(r"^demo: (active|draining|released)\b", capsys.readouterr().out, re.MULTILINE)
    assert states == ["active", "draining", "released"]
