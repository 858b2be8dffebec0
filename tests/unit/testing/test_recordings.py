"""Tests that hooks in the fake PBS receive the values of hook input files that were recorded on OpenPBS 23.06."""

import json
import re
from pathlib import Path

import pytest

from virtcloud.testing.fakepbs import recorded_event, run_hook

RECORDINGS = Path(__file__).parents[2] / "recordings/pbs"
SCENES = (
    "array",
    "exechost-periodic",
    "exechost-startup",
    "hidden-resource",
    "old-nodes",
    "qalter-queued",
    "qdel",
    "reject-launch",
)
"""The recorded scenes whose values the tests compare. Together, these scenes contain every kind of event."""
FILES = sorted(RECORDINGS.glob("*/*.in"))
REPORTING_HOOK = """
import json, pbs
e = pbs.event()
job = e._param.get("job")
report = {"params": sorted(e._param), "node": pbs.get_local_nodename(), "requestor": e.requestor}
if job is not None:
    report["attributes"] = {name: str(getattr(job, name)) for name in %r}
    report["resources"] = {name: str(job.Resource_List[name]) for name in job.Resource_List.keys()}
    report["variables"] = dict(job.Variable_List)
    report["first"] = job.in_ms_mom()
    report["files"] = [job.stdout_file(), job.stderr_file()]
if e.type == pbs.EXECJOB_LAUNCH:
    report["env"] = dict(e.env)
    report["argv"] = list(e.argv)
pbs.logmsg(pbs.LOG_DEBUG, json.dumps(report))
"""
SPECIAL_TYPES = {"job_state", "Rerunable", "array", "queue_type"}
"""Attributes that PBS records as a word and passes to hooks as a number."""


def job_lines(file: Path) -> str:
    data = file.with_suffix(".data")
    text = file.read_text()
    if "pbs.event().job" in text or not data.exists():
        return text
    return re.sub(r"^pbs\.server\(\)\.job\([^)]*\)\.", "pbs.event().job.", data.read_text(), flags=re.MULTILINE)


def plain_attributes(file: Path) -> dict[str, str]:
    attributes = re.findall(r"^pbs\.event\(\)\.job\.([A-Za-z]\w*)=(.*)$", job_lines(file), re.MULTILINE)
    return {name: text for name, text in attributes if name not in SPECIAL_TYPES | {"Variable_List"}}


def list_items(file: Path, name: str) -> dict[str, str]:
    items = re.findall(rf"^pbs\.event\(\)\.job\.{name}\[(\w+)\]=(.*)$", job_lines(file), re.MULTILINE)
    return dict(items)


@pytest.mark.parametrize("scene", SCENES)
def test_hooks_receive_the_recorded_values(scene: str) -> None:
    files = {file.stem.partition("-")[2]: file for file in FILES if file.parent.name == scene}
    for file in files.values():
        attributes = plain_attributes(file)
        outcome = run_hook(REPORTING_HOOK % (sorted(attributes),), recorded_event(file))
        assert outcome.failure is None, (file, outcome.traceback)
        report = json.loads(outcome.log[0][1])
        assert report.get("attributes", {}) == attributes, file
        resources = {name: text for name, text in list_items(file, "Resource_List").items() if text}
        assert {name: text for name, text in report.get("resources", {}).items() if text} == resources, file
        assert report["node"] == re.findall(r"^pbs\.get_local_nodename\(\)=(.*)$", file.read_text(), re.MULTILINE)[0]


def test_every_recorded_event_is_supported() -> None:
    assert {recorded_event(file).kind for file in FILES} >= {"queuejob", "execjob_abort", "exechost_startup"}


def test_a_recorded_job_states_whether_its_host_is_the_first() -> None:
    scene = RECORDINGS / "three-hosts-vcluster"
    first = recorded_event(next(scene.glob("*-n1-execjob_prologue.in")))
    sister = recorded_event(next(scene.glob("*-n2-execjob_prologue.in")))
    assert first.job is not None
    assert sister.job is not None
    assert (first.job.first_host, first.job.stderr_file) == (True, "/var/spool/pbs-n1/spool/1.pbssrv.ER")
    assert (sister.job.first_host, sister.job.stderr_file) == (False, "/var/spool/pbs-n2/spool/1.pbssrv.ER")


def test_a_recorded_launch_contains_program_and_environment() -> None:
    event = recorded_event(next((RECORDINGS / "three-hosts-vcluster").glob("*execjob_launch.in")))
    assert (event.progname, event.argv) == ("/bin/sleep", ("/bin/sleep", "2"))
    assert (event.env["PBS_JOBID"], event.env["LOGNAME"]) == ("1.pbssrv", "alice")


def test_the_outcome_on_a_recorded_job_contains_the_changes() -> None:
    event = recorded_event(next((RECORDINGS / "reject-runjob").glob("*-runjob.in")))
    hook = "import pbs; pbs.event().job.Hold_Types = pbs.hold_types('u'); pbs.event().reject('no')"
    outcome = run_hook(hook, event)
    assert (outcome.accepted, outcome.message, outcome.changed) == (False, "no", {"Hold_Types": "u"})


def test_a_file_that_is_no_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.in").write_text("pbs.event().type=queuejob\n")
    with pytest.raises(
        ValueError, match=r"notes\.in: expected a hook's input file .* without node, requestor, .*debug"
    ):
        recorded_event(tmp_path / "notes.in")
