"""Hooks of MkDocs. They take the navigation from docs/README.md, and replace links to files outside of docs."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages of the site that are not in docs."""
LINK = re.compile(r"\[([^]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
FIRST = "README.md"
DECISIONS = "decisions/README.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: a tab for each row of the table in docs/README.md, and the tabs Start and Changes."""
    folder = Path(config.docs_dir)
    rows = [line.split("|")[1:3] for line in (folder / FIRST).read_text().splitlines() if line.startswith("| ")]
    tabs: list[dict[str, Any]] = [{"Start": FIRST}]
    tabs += [{kind.strip().capitalize(): _links(cell)} for kind, cell in rows if DECISIONS not in cell and _links(cell)]
    decisions = [{title: f"decisions/{path}"} for title, path, _ in LINK.findall((folder / DECISIONS).read_text())]
    config.nav = [*tabs, {"Decisions": [DECISIONS, *decisions]}, {"Changes": "CHANGELOG.md"}]
    return config


def _links(cell: str) -> list[dict[str, str]]:
    links = ((title, path.removeprefix("../")) for title, path, _ in LINK.findall(cell))
    return [{f"{title[0].upper()}{title[1:]}": path} for title, path in links]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs."""
    for name in OUTSIDE:
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401 - MkDocs passes further arguments
    """Replace each link to a file outside of docs by the link's text, unless the file is a page of the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        title, path, anchor = link.groups("")
        target = posixpath.normpath(posixpath.join("docs", folder, path))
        if "://" in path or target.startswith("docs/"):
            return link.group()
        return f"[{title}]({posixpath.relpath(target, folder or '.')}{anchor})" if target in OUTSIDE else title

    return LINK.sub(replace, markdown)
