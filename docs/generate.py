"""Write the generated pages of docs/reference, the man pages and the completion scripts from the code.

With ``--check``, only list outdated files.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from command_files import command_files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pbs_hooks.kit.hook_settings import SettingKey
from pbs_hooks.openpbs.hooks.openpbs_settings import MOM_SETTINGS, SERVER_SETTINGS
from pbs_hooks.torque.scripts.script_settings import SCRIPT_SETTINGS as TORQUE
from sbf_command import main as sbf
from sbf_service.bootstrap import build_service
from sbf_service.domain.agent_messages import render_agent_messages
from sbf_service.drivers import registry
from sbf_service.http.app import create_app
from sbf_service.http.metric_reference import FOREIGN_METRICS, MetricDescription, list_metrics
from sbf_service.settings import ServiceSettings
from virtcloud.agent.job_socket import socket_requests as agent_requests
from virtcloud.agent.settings import AgentSettings
from virtcloud.cli import main
from virtcloud.jobs import address_plan, request, request_file, request_keys
from virtcloud.jobs.script_variables import SCRIPT_VARIABLES

REFERENCE = Path(__file__).parent / "reference"
WIDTH = 78
"""The width of help texts: a terminal of 80 columns minus a margin of two."""
NOTE = "<!-- Written by docs/generate.py; change the code instead. -->\n\n"


def commands() -> str:
    """Return the page with the help of all commands."""
    pages = (*_command_pages("virtcloud", main), *_command_pages("sbf", sbf))
    return "# Commands\n\n" + "\n".join(pages)


def _command_pages(name: str, command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    last = name.rpartition(" ")[2]
    context = click.Context(command, parent, last, terminal_width=WIDTH, **command.context_settings)
    yield f"## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            if subcommand is not None:
                yield from _command_pages(f"{name} {child}", subcommand, context)


def settings() -> str:
    """Return the page of all settings of the service, the agent and the hooks."""
    service = "# Settings\n\n## `sbf serve --config FILE` (TOML)\n\n" + _fields(ServiceSettings)
    agent = "\n## `virtcloud agent --config FILE` (TOML)\n\n" + _fields(AgentSettings)
    pbs = _hook("The hook of OpenPBS's server", SERVER_SETTINGS) + _hook("The hook of OpenPBS's MoMs", MOM_SETTINGS)
    return service + agent + pbs + _hook("Torque's scripts", TORQUE, "`/etc/virtcloud/torque.json` on each host.")


def _hook(title: str, keys: Mapping[str, SettingKey], where: str = "`virtcloud pbs install --settings FILE`.") -> str:
    rows = "".join(
        f"| `{name}` | {key.meaning} Expected: {key.expected} | {_hook_default(name, key)} |\n"
        for name, key in keys.items()
    )
    head = f"{where}\n\n| key | meaning | default |\n|---|---|---|\n"
    return f"\n## {title} (JSON)\n\n{head}{rows}"


def _hook_default(name: str, key: SettingKey) -> str:
    return "required" if name == "sbf" else f"`{json.dumps(key.default)}`"


def _fields(model: type[BaseModel], prefix: str = "") -> str:
    return "| key | meaning | default |\n|---|---|---|\n" + "".join(_rows(model, prefix))


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
    return next((model for model in candidates if inspect.isclass(model) and issubclass(model, BaseModel)), None)


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)}`"


def http_api() -> str:
    """Return the page of all calls of the HTTP API, from its OpenAPI document."""
    paths = create_app(build_service(ServiceSettings())).openapi()["paths"]
    rows = [
        f"| `{method.upper()} {path}` | {call['summary']} | {', '.join(sorted(call['responses']))} |"
        for path, calls in paths.items()
        for method, call in calls.items()
    ]
    head = (
        "# HTTP API\n\n`sbf openapi` prints the whole OpenAPI document; a running SBF serves it at `/openapi.json`.\n\n"
    )
    return head + "| call | effect | answers |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def platforms() -> str:
    """Return the page of all platforms with the facts of their drivers."""
    edges = f"## Provider edges\n\n{registry.render_edge_tables()}\n"
    return f"# Platforms\n\n{edges}## Switches\n\n{registry.render_switch_tables()}"


def job_request() -> str:
    """Return the page of all keys of a job's request: the keys on the request's line, and the keys in a file."""
    head = inspect.cleandoc(request.__doc__ or "").replace("``", "`")
    line = _request_rows(request_keys.REQUEST_KEYS)
    top = _request_rows(request_file.TOP_KEYS)
    guest = _request_rows(request_file.GUEST_KEYS, "hosts.N.guests.M.")
    table = "| key | meaning | expected | example |\n|---|---|---|---|\n"
    reserved = ", ".join(f"`{key}`" for key in request.RESERVED_KEYS)
    return (
        f"# A job's request\n\n{head}\n\n## The line\n\n{table}{line}\n{reserved}: not available yet.\n\n"
        f"## Addresses\n\n```text\n{inspect.cleandoc(address_plan.__doc__ or '')}\n```\n\n"
        f"## The file\n\n{inspect.cleandoc(request_file.__doc__ or '')}\n\n{table}{top}{guest}\n"
        f"{request_file.HOSTS_TEXT}\n\n"
        f"```yaml\n{request_file.EXAMPLE}```\n"
    )


def _request_rows(keys: Mapping[str, request_keys.RequestKey], prefix: str = "") -> str:
    return "".join(
        f"| `{prefix}{name}` | {key.meaning} | {key.kind.expected} | `{key.example}` |\n" for name, key in keys.items()
    )


def agent_socket() -> str:
    """Return the page of all requests on the agent's socket, with their answers."""
    requests = "".join(_request(do, kind) for do, kind in agent_requests.REQUEST_KINDS.items())
    errors = "".join(f"| `{slug}` | {text} |\n" for slug, text in agent_requests.ERROR_SLUGS.items())
    facts = "".join(f"| `{name}` | {text} |\n" for name, text in SCRIPT_VARIABLES.items())
    head = inspect.cleandoc(agent_requests.__doc__ or "").partition("\n\n")[2]
    return (
        f"# The agent's socket\n\n{head}\n\n```text\n{agent_requests.EXAMPLE_SESSION}```\n\n{requests}## Errors\n\n"
        'The answer is `{"ok": false, "error": …, "detail": …}`; `detail` is an explanation on one line.\n\n'
        f"| `error` | meaning |\n|---|---|\n{errors}\n## Facts\n\n"
        "Facts are environment variables for the job's script. Some values are paths of files in the folder of the "
        "setting `jobs`. Only the job's user may read these files.\n\n"
        f"| variable | value |\n|---|---|\n{facts}"
    )


def _request(do: str, kind: type[agent_requests.SocketRequest]) -> str:
    rows = "".join(_rows(kind, "")).replace("| `do` |  | required |\n", "")
    table = f"| key | meaning | default |\n|---|---|---|\n{rows}\n" if rows else ""
    effect = inspect.cleandoc(kind.__doc__ or "")
    return f"## `{do}`\n\n{effect}\n\n{table}Answer, in addition to `ok`: {kind.answer}\n\n"


def metrics() -> str:
    """Return the page of all metrics of a replica, and of other programs' metrics that the alert rules use."""
    rows = "".join(map(_metric_row, list_metrics()))
    table = "| metric | type | labels | source | meaning |\n|---|---|---|---|---|\n"
    foreign = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in FOREIGN_METRICS.items())
    return (
        "# Metrics\n\nSBF answers `GET /metrics` with these metrics. [Monitor SBF](../how-to/watch-it.md) describes "
        "how Prometheus reads them, and [the runbook](../how-to/runbook.md) describes the alerts.\n\n"
        "A metric from the database has the same value at every replica: use `max`, not `sum`. A metric of a replica "
        f"describes one process.\n\n{table}{rows}\n"
        "`process_…` are the metrics of the process, such as `process_resident_memory_bytes`.\n\n"
        f"## Metrics of other programs that the alert rules use\n\n| metric | meaning |\n|---|---|\n{foreign}"
    )


def _metric_row(metric: MetricDescription) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.source} | {metric.meaning} |\n"


PAGES = {
    "metrics.md": metrics,
    "commands.md": commands,
    "settings.md": settings,
    "http-api.md": http_api,
    "agent-socket.md": agent_socket,
    "platforms.md": platforms,
    "job-request.md": job_request,
}


MESSAGES_PAGE = Path(__file__).parent / "how-to/when-something-fails.md"
MESSAGES = re.compile(r"(?<=<!-- agent messages: )(.*? -->\n).*?(?=<!-- end of agent messages -->)", re.DOTALL)


def messages_page() -> str:
    """Return the page "When something fails" with the current table of agents' messages."""
    return MESSAGES.sub(lambda found: f"{found[1]}\n{render_agent_messages()}\n", MESSAGES_PAGE.read_text())


SPEED_PAGE = REFERENCE / "speed.md"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SPEED_TEXT = re.compile(r"(?<=## `benchmarks/)(\w+)(\.py`\n\n).*?(?=\n\nDate: )", re.DOTALL)


def speed_page() -> str:
    """Return the page "Speed" with the current docstrings of the benchmarks. ``make bench`` writes the measurements."""
    return SPEED_TEXT.sub(lambda found: f"{found[1]}{found[2]}{_docstring(found[1])}", SPEED_PAGE.read_text())


def _docstring(benchmark: str) -> str:
    module = ast.parse((BENCHMARKS / f"{benchmark}.py").read_text())
    return ast.get_docstring(module) or ""


SHARE = Path(__file__).parents[1] / "setup/share"


def run(check: bool) -> int:
    """Write or compare all generated files. Return the exit code."""
    files = {REFERENCE / name: NOTE + page() for name, page in PAGES.items()}
    files |= {MESSAGES_PAGE: messages_page(), SPEED_PAGE: speed_page()}
    files |= {SHARE / name: text for name, text in command_files().items()}
    existing = (path for path in SHARE.rglob("*") if path.is_file())
    outdated = [path for path in existing if path not in files]
    outdated += [path for path, text in files.items() if _differs(path, text)]
    if check and outdated:
        names = ", ".join(str(path.relative_to(SHARE.parents[1])) for path in sorted(outdated))
        click.echo(f"generated files out of date: {names}; run 'make docs'", err=True)
        return 1
    if not check:
        for path in outdated:
            _write(path, files.get(path))
    return 0


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text() != text


def _write(path: Path, text: str | None) -> None:
    """Write a file, or delete the file of a command that no longer exists."""
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(run(check="--check" in sys.argv[1:]))
