"""Writes the generated pages of docs/reference from the code; with ``--check`` it only says which are out of date."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sbf_service.drivers import edge_registry, registry
from sbf_service.http.app import create_app
from sbf_service.service import make_service
from sbf_service.settings import Settings
from virtcloud.agent.settings import AgentSettings
from virtcloud.cli import main

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; change the code instead. -->\n\n"


def commands() -> str:
    """Every command with its help."""
    return "# Commands\n\n" + "\n".join(_command_pages("virtcloud", main))


def _command_pages(name: str, command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent, max_content_width=100)
    yield f"## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _command_pages(f"{name} {child}", found, context)


def settings() -> str:
    """Every setting of the service and of the agent."""
    service = "# Settings\n\n## `sbf serve --config FILE` (TOML)\n\n" + _fields(Settings)
    return service + "\n## `virtcloud agent --config FILE` (TOML)\n\n" + _fields(AgentSettings)


def _fields(model: type[BaseModel], prefix: str = "") -> str:
    return "| key | what | default |\n|---|---|---|\n" + "".join(_rows(model, prefix))


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = _inner_model(field)
        key = f"{prefix}{name}" + (".NAME" if "dict" in str(field.annotation) and inner else "")
        if inner is not None:
            yield from _rows(inner, f"{key}.")
        else:
            yield f"| `{key}` | {field.description or ''} | {_default(field)} |\n"


def _inner_model(field: FieldInfo) -> type[BaseModel] | None:
    candidates: list[Any] = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((one for one in candidates if inspect.isclass(one) and issubclass(one, BaseModel)), None)


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)}`"


def http_api() -> str:
    """Every call of the HTTP API, from its OpenAPI document."""
    paths = create_app(make_service(Settings())).openapi()["paths"]
    rows = [
        f"| `{method.upper()} {path}` | {call['summary']} | {', '.join(sorted(call['responses']))} |"
        for path, calls in paths.items()
        for method, call in calls.items()
    ]
    head = (
        "# HTTP API\n\n`sbf openapi` prints the whole OpenAPI document; a running SBF serves it at `/openapi.json`.\n\n"
    )
    return head + "| call | what it does | answers |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def platforms() -> str:
    """Every platform of switches and of provider edges, with the facts of its driver."""
    edges = f"## Provider edges\n\n{edge_registry.table()}\n"
    return f"# Platforms\n\n{edges}## Switches\n\n{registry.table()}"


PAGES = {"commands.md": commands, "settings.md": settings, "http-api.md": http_api, "platforms.md": platforms}


def run(check: bool) -> int:
    """Write or compare all pages; gives the exit code."""
    stale = [name for name, page in PAGES.items() if _differs(REFERENCE / name, NOTE + page())]
    if check and stale:
        click.echo(f"docs/reference: out of date: {', '.join(stale)}; run 'make docs'", err=True)
        return 1
    if not check:
        REFERENCE.mkdir(exist_ok=True)
        for name, page in PAGES.items():
            (REFERENCE / name).write_text(NOTE + page())
    return 0


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text() != text


if __name__ == "__main__":
    sys.exit(run(check="--check" in sys.argv[1:]))
