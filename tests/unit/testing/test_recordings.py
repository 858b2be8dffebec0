"""Hooks in the fake PBS read every input file that was recorded on OpenPBS 23.06."""

import json
import re
from pathlib import Path

import pytest

from virtcloud.testing.fakepbs import recorded_event, run_hook

RECORDINGS = Path(__file__).parents[2] / "pbs_recordings"
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
"""The recorded scenes. Together they contain every kind of event."""
FILES = sorted(RECORDINGS.glob("*/*.in"))
SHOW = """
import json, pbs
e = pbs.event()
job = e._param.get("job")
shown = {"params": sorted(e._param), "node": pbs.get_local_nodename(), "requestor": e.requestor}
if job is not None:
    shown["attributes"] = {name: str(getattr(job, name)) for name in %r}
    shown["resources"] = {name: str(job.Resource_List[name]) for name in job.Resource_List.keys()}
    shown["variables"] = dict(job.Variable_List)
    shown["first"] = job.in_ms_mom()
    shown["files"] = [job.stdout_file(), job.stderr_file()]
if e.type == pbs.EXECJOB_LAUNCH:
    shown["env"] = dict(e.env)
    shown["argv"] = list(e.argv)
pbs.logmsg(pbs.LOG_DEBUG, json.dumps(shown))
"""
OWN_TYPES = {"job_state", "Rerunable", "array", "queue_type"}
"""Attributes that PBS writes as a word and gives to hooks as a number."""


def lines(file: Path) -> str:
    """Return the lines about the job. For a server hook they are in the data file."""
    data = file.with_suffix(".data")
    own = file.read_text()
    if "pbs.event().job" in own or not data.exists():
        return own
    return re.sub(r"^pbs\.server\(\)\.job\([^)]*\)\.", "pbs.event().job.", data.read_text(), flags=re.MULTILINE)


def plain(file: Path) -> dict[str, str]:
    """Return the attributes of the job from the file, without resources and variables."""
    found = re.findall(r"^pbs\.event\(\)\.job\.([A-Za-z]\w*)=(.*)$", lines(file), re.MULTILINE)
    return {name: text for name, text in found if name not in OWN_TYPES | {"Variable_List"}}


def of_list(file: Path, name: str) -> dict[str, str]:
    found = re.findall(rf"^pbs\.event\(\)\.job\.{name}\[(\w+)\]=(.*)$", lines(file), re.MULTILINE)
    return dict(found)


@pytest.mark.parametrize("scene", SCENES)
def test_hooks_read_what_was_recorded(scene: str) -> None:
    """For each scene, one interpreter runs per kind of event."""
    files = {file.stem.partition("-")[2]: file for file in FILES if file.parent.name == scene}
    for file in files.values():
        facts = plain(file)
        outcome = run_hook(SHOW % (sorted(facts),), recorded_event(file))
        assert outcome.failure is None, (file, outcome.traceback)
        shown = json.loads(outcome.log[0][1])
        assert shown.get("attributes", {}) == facts, file
        given = {name: text for name, text in of_list(file, "Resource_List").items() if text}
        assert {name: text for name, text in shown.get("resources", {}).items() if text} == given, file
        assert shown["node"] == re.findall(r"^pbs\.get_local_nodename\(\)=(.*)$", file.read_text(), re.MULTILINE)[0]


def test_every_recorded_event_can_be_tried() -> None:
    assert {recorded_event(file).kind for file in FILES} >= {"queuejob", "execjob_abort", "exechost_startup"}


def test_a_first_host_and_a_sister() -> None:
    scene = RECORDINGS / "three-hosts-vcluster"
    first = recorded_event(next(scene.glob("*-n1-execjob_prologue.in")))
    sister = recorded_event(next(scene.glob("*-n2-execjob_prologue.in")))
    assert first.job is not None
    assert sister.job is not None
    assert (first.job.first_host, first.job.stderr_file) == (True, "/var/spool/pbs-n1/spool/1.pbssrv.ER")
    assert (sister.job.first_host, sister.job.stderr_file) == (False, "/var/spool/pbs-n2/spool/1.pbssrv.ER")


def test_a_launch_has_its_program_and_environment() -> None:
    event = recorded_event(next((RECORDINGS / "three-hosts-vcluster").glob("*execjob_launch.in")))
    assert (event.progname, event.argv) == ("/bin/sleep", ("/bin/sleep", "2"))
    assert (event.env["PBS_JOBID"], event.env["LOGNAME"]) == ("1.pbssrv", "alice")


def test_a_recorded_job_shows_a_hooks_changes() -> None:
    event = recorded_event(next((RECORDINGS / "reject-runjob").glob("*-runjob.in")))
    hook = "import pbs; pbs.event().job.Hold_Types = pbs.hold_types('u'); pbs.event().reject('no')"
    outcome = run_hook(hook, event)
    assert (outcome.accepted, outcome.message, outcome.changed) == (False, "no", {"Hold_Types": "u"})
