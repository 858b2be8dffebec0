"""Tests of one run of a hook on one event. The expected values were observed on OpenPBS 23.06."""

import pytest

from virtcloud.testing import fakepbs
from virtcloud.testing.fakepbs import (
    HookDidNotRunError,
    HookEvent,
    HookFailure,
    HookJob,
    HookOutcome,
    HookVnode,
    run_hook,
)

JOB = HookJob(
    "12.pbssrv",
    attributes={"run_version": 2, "euser": "alice"},
    resources={"walltime": "0:01:30", "select": "2:ncpus=1", "mem": "10mb", "vcluster": "image=a"},
    variables={"PBS_O_WORKDIR": "/home/alice"},
)
LOG_FUNCTIONS = """
import time
import pbs
e = pbs.event()
def log(value):
    pbs.logmsg(pbs.LOG_DEBUG, str(value))
def attempt(function):
    try:
        function()
        log("done")
    except Exception as error:
        log("%s: %s" % (type(error).__name__, error))
"""


def logged_texts(hook: str, kind: str = "queuejob", **fields: object) -> list[str]:
    outcome = run_hook(LOG_FUNCTIONS + hook, HookEvent(kind, **({"job": JOB} | fields)))  # type: ignore[arg-type]
    assert outcome.failure is None, outcome.traceback
    return [text for _, text in outcome.log]


def run_queuejob(hook: str, **fields: object) -> HookOutcome:
    return run_hook(LOG_FUNCTIONS + hook, HookEvent("queuejob", **({"job": JOB} | fields)))  # type: ignore[arg-type]


def test_the_interpreter_has_no_packages() -> None:
    """As in PBS, there are no site-packages, asserts are ignored, and ``__name__`` is ``builtins``."""
    hook = (
        "import sys; assert False; log(sys.flags.isolated); log(sys.flags.no_site)\n"
        "log(__name__); log('__file__' in globals())\n"
    )
    assert logged_texts(hook) == ["1", "1", "builtins", "False"]


def test_a_hook_cannot_import_virtcloud() -> None:
    assert logged_texts("attempt(lambda: __import__('virtcloud'))") == [
        "ModuleNotFoundError: No module named 'virtcloud'"
    ]


def test_a_hook_without_accept_or_reject_accepts() -> None:
    assert run_queuejob("").accepted


def test_reject_sets_the_message_of_the_outcome() -> None:
    outcome = run_queuejob("e.reject('vcluster: no')")
    assert (outcome.accepted, outcome.message, outcome.failure) == (False, "vcluster: no", None)


def test_reject_raises_system_exit() -> None:
    outcome = run_queuejob("try:\n    e.reject('no')\nexcept SystemExit:\n    log('continued')\n")
    assert (outcome.accepted, outcome.log) == (False, ((5, "continued"),))


def test_no_attribute_can_be_set_after_accept() -> None:
    hook = "try:\n    e.accept()\nexcept SystemExit:\n    attempt(lambda: setattr(e.job, 'comment', 'x'))\n"
    assert logged_texts(hook)[0].startswith("AssertionError: Not permitted to modify attributes (name=comment)")


def test_an_exception_rejects_without_a_message() -> None:
    outcome = run_queuejob("1/0")
    assert (outcome.accepted, outcome.message, outcome.failure) == (False, None, HookFailure.EXCEPTION)
    assert outcome.traceback is not None
    assert "ZeroDivisionError" in outcome.traceback


def test_the_alarm_raises_keyboard_interrupt() -> None:
    assert run_queuejob("time.sleep(9)", alarm=0.2).failure is HookFailure.ALARM
    outcome = run_queuejob("try:\n    time.sleep(9)\nexcept KeyboardInterrupt:\n    e.reject('too slow')\n", alarm=0.2)
    assert (outcome.failure, outcome.message) == (None, "too slow")


def test_a_hook_that_outlives_its_alarm_is_killed() -> None:
    loop = "while True:\n    try:\n        time.sleep(9)\n    except KeyboardInterrupt: pass\n"
    assert run_queuejob(loop, alarm=0.1).failure is HookFailure.KILLED


def test_values_of_resources_have_the_types_of_pbs() -> None:
    hook = (
        "r = e.job.Resource_List\n"
        "log(r['walltime'] + 1); log(r['walltime'])\n"
        "log(r['mem'] + pbs.size('1gb')); log(r['mem'] == pbs.size('10240kb'))\n"
        "log(r['ncpus']); log(r['vcluster']); log(type(r['vcluster']).__name__)\n"
        "log(r['select']); log('nonsense' in r)\n"
        "attempt(lambda: r['nonsense'])\n"
    )
    assert logged_texts(hook) == [
        "91",
        "0:01:30",
        "1034mb",
        "True",
        "None",
        "image=a",
        "pbs_str",
        "2:ncpus=1",
        "False",
        "AttributeError: 'Resources' object has no attribute 'nonsense'",
    ]


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ("pbs.duration('x')", "BadResourceValueError: input value x not of the right format for 'walltime'"),
        ("pbs.size('4x')", "TypeError: 4x: bad value for _size"),
        (
            "pbs.place('scatter:bad')",
            "BadResourceValueError: input value scatter:bad not of the right format for 'place'",
        ),
        ("pbs.hold_types('z')", "BadAttributeValueError: input value z not of the right format for 'Hold_Types'"),
        ("pbs.select('')", "BadResourceValueError: input value  not of the right format for 'select'"),
        ("hash(pbs.size('4gb'))", "TypeError: unhashable type: 'size'"),
    ],
)
def test_types_reject_invalid_values(value: str, refusal: str) -> None:
    assert logged_texts(f"attempt(lambda: {value})") == [refusal]


@pytest.mark.parametrize(
    ("kind", "name", "value", "answer"),
    [
        ("queuejob", "comment", "'c'", "done"),
        ("queuejob", "run_version", "3", "BadAttributeValueError: job attribute 'run_version' is readonly"),
        ("queuejob", "nosuch", "3", "UnsetAttributeNameError: job attribute 'nosuch' not found"),
        ("queuejob", "Execution_Time", "1", "BadAttributeValueError: exec_time '"),
        ("runjob", "Hold_Types", "pbs.hold_types('s')", "done"),
        ("runjob", "Execution_Time", "2 ** 31", "done"),
        ("runjob", "comment", "'c'", "AssertionError: Can only set job's (Hold_Types|Execution_Time|project|"),
        (
            "runjob",
            "Hold_Types",
            "'s'",
            "BadAttributeValueTypeError: value for class <_job> attribute <Hold_Types> must",
        ),
        ("execjob_begin", "comment", "'c'", "done"),
        ("execjob_begin", "run_version", "7", "done"),
        ("execjob_attach", "comment", "'c'", "AssertionError: nothing is settable inside an execjob_attach hook!"),
        ("jobobit", "comment", "'c'", "AssertionError: Unexpected event"),
        (
            "queuejob",
            "Variable_List",
            "{}",
            "BadAttributeValueError: attribute 'Variable_List' cannot be directly set.",
        ),
    ],
)
def test_the_event_determines_settable_attributes(kind: str, name: str, value: str, answer: str) -> None:
    (answered,) = logged_texts(f"attempt(lambda: setattr(e.job, {name!r}, {value}))", kind)
    assert answered.startswith(answer)


@pytest.mark.parametrize(
    ("kind", "name", "value", "answer"),
    [
        ("queuejob", "place", "pbs.place('scatter:excl')", "done"),
        (
            "queuejob",
            "place",
            "'scatter'",
            "BadResourceValueTypeError: value for class <pbs_resource> attribute <place>",
        ),
        ("queuejob", "nosuch", "'x'", "UnsetResourceNameError: resource attribute 'nosuch' not found"),
        ("execjob_begin", "nosuch", "'x'", "done"),
        ("runjob", "vcluster", "'x'", "done"),
    ],
)
def test_a_mom_accepts_unknown_resources_and_the_server_rejects_them(
    kind: str, name: str, value: str, answer: str
) -> None:
    (answered,) = logged_texts(f"attempt(lambda: e.job.Resource_List.__setitem__({name!r}, {value}))", kind)
    assert answered.startswith(answer)


def test_changes_are_reported_in_pbs_notation() -> None:
    hook = (
        "e.job.Hold_Types = pbs.hold_types('u') + pbs.hold_types('s')\n"
        "e.job.Resource_List['place'] = pbs.place('scatter:excl')\n"
        "e.job.Variable_List['A'] = '1'\n"
    )
    assert run_queuejob(hook).changed == {
        "Hold_Types": "us",
        "Resource_List.place": "scatter:excl",
        "Variable_List.A": "1",
    }


def test_variables_of_pbs_cannot_be_set_for_a_job() -> None:
    assert logged_texts("attempt(lambda: e.job.Variable_List.__setitem__('PBS_O_WORKDIR', '/'))") == [
        "BadAttributeValueError: env variable 'PBS_O_WORKDIR' is readonly"
    ]


def test_the_job_before_a_change_is_read_only() -> None:
    hook = "log(e.job_o.id); attempt(lambda: setattr(e.job_o, 'comment', 'x'))"
    assert logged_texts(hook, "modifyjob", job_o=JOB) == [
        "12.pbssrv",
        "BadAttributeValueError: attribute 'comment' is part of a readonly object",
    ]


def test_parameters_depend_on_the_event() -> None:
    assert logged_texts("attempt(lambda: e.env)", "execjob_begin") == [
        'EventIncompatibleError: "env" not found in self._param'
    ]


def test_a_launch_can_change_program_and_environment() -> None:
    """PBS doubles a single backslash in a value of the environment. The fake PBS must do the same."""
    hook = "e.progname = '/bin/true'\ne.argv.append('x')\ne.env['A'] = '1,2 \\\\d'\ne.env['PBS_JOBID'] = 'y'\n"
    outcome = run_hook(LOG_FUNCTIONS + hook, HookEvent("execjob_launch", job=JOB, env={"PBS_JOBID": "12.pbssrv"}))
    assert (outcome.progname, outcome.argv) == ("/bin/true", ("-sh", "x"))
    assert outcome.env == {"PBS_JOBID": "y", "A": "1,2 \\\\d"}


def test_only_a_mom_hook_can_request_a_rerun() -> None:
    assert run_hook("import pbs; pbs.event().job.rerun()", HookEvent("execjob_launch", job=JOB)).rerun
    assert logged_texts("attempt(e.job.rerun)") == ["NotImplementedError: rerun(): only for mom hooks"]


def test_a_periodic_event_contains_the_jobs_of_the_host() -> None:
    assert logged_texts(
        "log(sorted(e.job_list)); log(e.job_list['12.pbssrv'].run_version)", "exechost_periodic", job_list=(JOB,)
    ) == [
        "['12.pbssrv']",
        "2",
    ]


def test_a_hook_reads_its_configuration_from_a_file() -> None:
    assert logged_texts("log(open(pbs.hook_config_filename).read())", config='{"a": 1}') == ['{"a": 1}']
    assert logged_texts("log(pbs.hook_config_filename)") == ["None"]


def test_lines_of_the_jobs_log_are_in_the_outcome() -> None:
    assert run_queuejob("pbs.logjobmsg(e.job.id, 'waits')").job_log == (("12.pbssrv", "waits"),)


def test_the_server_object_contains_jobs_and_vnodes() -> None:
    hook = (
        "s = pbs.server(); log(s.name); log(s.job('12.pbssrv').euser); log(s.job('9.x')); log(len(list(s.jobs())))\n"
        "log(s.vnode('n1').resources_available['mem']); attempt(lambda: setattr(s.job('12.pbssrv'), 'comment', 'x'))\n"
    )
    vnodes = (HookVnode("n1", resources={"mem": "8gb"}),)
    assert logged_texts(hook, server_jobs=(JOB,), server_vnodes=vnodes) == [
        "pbssrv",
        "alice",
        "None",
        "1",
        "8gb",
        "BadAttributeValueError: attribute 'comment' is part of a readonly object",
    ]


def test_unknown_events_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^event execjob_start: not an event of PBS; expected one of queuejob, "):
        HookEvent("execjob_start", job=JOB)
    with pytest.raises(ValueError, match=r"^event queuejob: expected a job, got none$"):
        HookEvent("queuejob")


def test_a_missing_interpreter_raises() -> None:
    with pytest.raises(HookDidNotRunError, match="no-such-python"):
        run_hook("", HookEvent("queuejob", job=JOB), "no-such-python")


def test_former_names_still_work_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="is now called HookEvent"):
        assert fakepbs.Event is HookEvent
