"""Parses input files that a real PBS recorded (``set hook H debug=true``) into events for the fake PBS."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from virtcloud.testing.fakepbs.hook_event import CUSTOM_RESOURCES, HookEvent, HookJob
from virtcloud.testing.fakepbs.interpreter.attributes import RESOURCES

LINE = re.compile(r"(?P<object>[^=]*?)(?:\.(?P<name>\w+))?(?:\[(?P<key>[^\]]*)\])?=(?P<value>.*)", re.DOTALL)
OF_EVENT, OF_JOB, AT_SERVER, QUOTES = "pbs.event()", "pbs.event().job", "pbs.server().job(", '"""'
FLAGS = {"_msmom", "_stdout_file", "_stderr_file", "_rerun", "_delete"}
REQUIRED_FACTS = ("type", "node", "requestor", "requestor_host", "hook_name", "alarm")
Lines = list[tuple[str, str | None, str]]
"""The lines of a recording. A line consists of an attribute, the attribute's resource (or None), and the value."""


def recorded_event(file: Path, config: str | None = None) -> HookEvent:
    """Read an ``.in`` file. For a server hook, also read the ``.data`` file of the same name, which contains the job.

    Raise ValueError for an unsupported event, or if the recording lacks a fact of the event, such as its type. Raise
    OSError if a file cannot be read.
    """
    data = file.with_suffix(".data")
    parts = [file.read_text(encoding="utf-8"), data.read_text(encoding="utf-8") if data.exists() else ""]
    facts, jobs, argv = _sort_lines(_join_lines("\n".join(parts)))
    if missing := [name for name in REQUIRED_FACTS if name not in facts]:
        raise ValueError(
            f"{file}: expected a hook's input file that PBS wrote, got a file without {', '.join(missing)} of the "
            "event: record the event with qmgr -c 'set hook NAME debug=true'"
        )
    server_jobs = [
        _build_job(name.partition("(")[2][2:].strip("()"), lines) for name, lines in jobs.items() if AT_SERVER in name
    ]
    event_jobs = {name: _build_job("", lines) for name, lines in jobs.items() if name.startswith(OF_EVENT)}
    server_job = server_jobs[0] if server_jobs else None
    event_job = event_jobs.get(OF_JOB)
    return HookEvent(
        facts["type"],
        job=event_job if event_job is not None else server_job,
        job_o=server_job if event_job is not None else None,
        job_list=tuple(job for name, job in event_jobs.items() if "job_list" in name),
        config=config,
        node=facts["node"],
        requestor=facts["requestor"],
        requestor_host=facts["requestor_host"],
        hook_name=facts["hook_name"],
        alarm=float(facts["alarm"]),
        progname=facts.get("progname", ""),
        argv=tuple(argv),
        env=parse_variables(facts.get("env", "")),
        custom_resources=_custom_resources(jobs),
        server_jobs=tuple(server_jobs),
    )


def _sort_lines(lines: Iterable[str]) -> tuple[dict[str, str], dict[str, Lines], list[str]]:
    facts: dict[str, str] = {}
    jobs: dict[str, Lines] = {}
    argv: list[str] = []
    for match in filter(None, (LINE.fullmatch(line) for line in lines)):
        subject, name, key = match["object"], match["name"] or "", match["key"]
        value = match["value"].removeprefix(QUOTES).removesuffix(QUOTES)
        if subject == OF_EVENT and name == "argv":
            argv.append(value)
        elif subject == OF_EVENT:
            facts[name] = value
        elif subject == "pbs.get_local_nodename()":
            facts["node"] = value
        elif subject == OF_JOB or "job" in subject.partition("(")[2]:
            jobs.setdefault(subject, []).append((name, key, value))
    return facts, jobs, argv


def parse_variables(text: str) -> dict[str, str]:
    """Parse ``A=1,B=2``. A comma after a backslash belongs to the value."""
    pairs = (item.partition("=") for item in re.split(r"(?<!\\),", text))
    return {name: value for name, equals, value in pairs if equals}


def _join_lines(text: str) -> Iterator[str]:
    incomplete = ""
    for line in text.splitlines():
        incomplete = f"{incomplete}\n{line}" if incomplete else line
        if incomplete.count(QUOTES) != 1:
            yield incomplete
            incomplete = ""


def _build_job(identifier: str, lines: Lines) -> HookJob:
    attributes: dict[str, str | int] = {}
    resources: dict[str, str | int] = {}
    flags: dict[str, str] = {}
    environment: dict[str, str] = {}
    for name, key, value in lines:
        if name == "Resource_List" and key is not None:
            resources[key] = value
        elif name == "Variable_List":
            environment = parse_variables(value)
        elif name in FLAGS:
            flags[name] = value
        elif key is None:
            attributes[name] = value
    return HookJob(
        str(attributes.pop("id", identifier)),
        attributes,
        resources,
        environment,
        flags.get("_msmom") == "True",
        flags.get("_stdout_file"),
        flags.get("_stderr_file"),
    )


def _custom_resources(jobs: Mapping[str, Lines]) -> dict[str, str]:
    """Return the types of ``CUSTOM_RESOURCES`` and of the recorded jobs' other custom resources, by resource name.

    Recordings contain no types, so the other resources have the type ``"string"``.
    """
    names = {
        key
        for lines in jobs.values()
        for name, key, _ in lines
        if name == "Resource_List" and key and key not in RESOURCES
    }
    return CUSTOM_RESOURCES | dict.fromkeys(names, "string")
