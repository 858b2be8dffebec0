"""Tests of the parsers of OpenPBS's output. The output was recorded with version 23.06; names were replaced."""

import json

import pytest
from support.batch_fakes.scheduler import SERVER, FakeCommands

from virtcloud.model.errors import SchedulerUnavailable
from virtcloud.scheduler.command import CommandResult
from virtcloud.scheduler.job_states import JobPhase, SchedulerJob, SchedulerServer
from virtcloud.scheduler.openpbs_adapter import (
    OpenPbsScheduler,
    parse_job_numbers,
    parse_jobs,
    parse_nodes,
    parse_server,
)

HEAD = '{\n\t"timestamp":\t1795233147,\n\t"pbs_version":\t"23.06.06",\n\t"pbs_server":\t"pbssrv"'
NO_JOBS = HEAD + "\n}\n"
RUNNING = (
    HEAD
    + """,
	"Jobs":	{
		"7.pbssrv":	{
			"Job_Name":	"123",
			"Job_Owner":	"alice@pbssrv",
			"resources_used":	{
				"cpupercent":	0,
				"walltime":	"00:00:27"
			},
			"job_state":	"R",
			"exec_vnode":	"(n1:ncpus=1)",
			"Resource_List":	{
				"ncpus":	1,
				"vcluster":	"image=a",
				"walltime":	"00:10:00"
			},
			"substate":	42,
			"Variable_List":	{
				"PBS_O_HOME":	"/home/alice",
				"BAR":	7,
				"FOO":	"a\\\\\\"b\\\\\\\\c",
				"BIG":	1.2345678901234568e+29
			},
			"queue_rank":	1.79523314396754e+15,
			"run_version":	3
		}
	}
}
"""
)
UNKNOWN = "qstat: Unknown Job Id 99.pbssrv\n"
FINISHED = "qstat: 4.pbssrv Job has finished, use -x or -H to obtain historical job information\n"
STATUS = json.dumps({"Server": {"pbssrv": {"server_state": "Active", "total_jobs": 8, "server_host": "pbssrv"}}})


def read_jobs(out: str = NO_JOBS, err: str = "", code: int = 0) -> dict[str, SchedulerJob]:
    return {str(key): job for key, job in parse_jobs(CommandResult("qstat -f", code, out, err), SERVER).items()}


def test_a_running_job_is_read_with_its_attempt_and_times() -> None:
    assert read_jobs(RUNNING) == {
        "7.pbssrv": SchedulerJob("7.pbssrv", JobPhase.RUNNING, "runs", 3, wants_cluster=True, walltime_s=600, used_s=27)  # type: ignore[arg-type]
    }


def test_a_job_whose_script_has_not_started_is_recognized() -> None:
    found_job = read_jobs(RUNNING.replace('"substate":	42', '"substate":	41'))["7.pbssrv"]
    assert (found_job.phase, found_job.script_started) == (JobPhase.RUNNING, False)


def test_missing_jobs_are_parsed_beside_the_others() -> None:
    jobs = read_jobs(RUNNING, FINISHED + UNKNOWN, 153)
    assert {key: job.description for key, job in jobs.items()} == {
        "4.pbssrv": "has finished",
        "7.pbssrv": "runs",
        "99.pbssrv": "is not known to pbssrv",
    }


def test_an_omitted_job_makes_the_answer_incomplete() -> None:
    commands = FakeCommands({"qselect": (0, "", ""), "qstat -f": (0, NO_JOBS, "")})
    with pytest.raises(SchedulerUnavailable, match=r"qstat omitted job 7 \(1 in all\): qstat must run as root"):
        OpenPbsScheduler(commands).jobs(SERVER, {"7"})


@pytest.mark.parametrize(
    ("code", "err"),
    [
        (255, "Connection refused\nqstat: cannot connect to server pbssrv (errno=15010)\n"),
        (0, "Connection refused\n"),
        (153, UNKNOWN + "Connection refused\n"),
        (1, "qstat: illegally formed job identifier: 99.other\n"),
        (153, "qstat: Unknown queue 99.pbssrv\n"),
        (-9, ""),
    ],
)
def test_any_other_message_invalidates_the_answer(code: int, err: str) -> None:
    with pytest.raises(SchedulerUnavailable):
        read_jobs(RUNNING, err, code)


@pytest.mark.parametrize("job", ["7[].pbssrv", ".pbssrv"])
def test_an_invalid_job_id_invalidates_the_answer(job: str) -> None:
    with pytest.raises(SchedulerUnavailable, match="job of server pbssrv: expected a cluster key: "):
        read_jobs(json.dumps({"Jobs": {job: {"job_state": "R"}}}))


def test_one_invalid_job_does_not_hide_the_others() -> None:
    broken = RUNNING.replace("7.pbssrv", "8.pbssrv").replace('"BAR":	7', '"BAR":	007')
    both = {"qstat -f -F json 7 8": (0, broken, ""), "qstat -f -F json 8": (0, broken, "")}
    commands = FakeCommands(
        {"qselect": (0, "7.pbssrv\n8.pbssrv\n", ""), "qstat -f -F json 7": (0, RUNNING, ""), **both}
    )
    jobs = OpenPbsScheduler(commands).jobs(SERVER, set())
    assert {str(key): job.phase for key, job in jobs.items()} == {
        "7.pbssrv": JobPhase.RUNNING,
        "8.pbssrv": JobPhase.UNREADABLE,
    }


def test_control_characters_in_strings_are_accepted() -> None:
    assert read_jobs(RUNNING.replace("/home/alice", "a\x01\n\tb"))["7.pbssrv"].phase is JobPhase.RUNNING


@pytest.mark.parametrize("facts", ['"R"', '{"job_state": "Y"}', '{"job_state": "M"}', '{"Resource_List": "x"}'])
def test_a_moved_or_malformed_job_is_unreadable(facts: str) -> None:
    commands = FakeCommands({"qselect": (0, "", ""), "qstat": (0, f'{{"Jobs": {{"7.pbssrv": {facts}}}}}', "")})
    assert OpenPbsScheduler(commands).jobs(SERVER, {"7"})["7.pbssrv"].phase is JobPhase.UNREADABLE


def test_jobs_are_queried_in_batches_of_a_hundred() -> None:
    messages = "".join(f"qstat: Unknown Job Id {number}.pbssrv\n" for number in range(1, 151))
    commands = FakeCommands({"qselect": (0, "", ""), "qstat": (153, NO_JOBS, messages)})
    OpenPbsScheduler(commands).jobs(SERVER, {str(number) for number in range(1, 151)})
    assert [len(line.split()) - 4 for line in commands.lines[1:]] == [100, 50]


def test_running_jobs_that_want_a_cluster_are_selected_without_arrays() -> None:
    ended = CommandResult("qselect", 0, "7.pbssrv\n10[].pbssrv\n10[2].pbssrv\n8.pbssrv\n", "")
    assert parse_job_numbers(ended) == {"7", "8"}


@pytest.mark.parametrize(("code", "out", "err"), [(0, "", "qselect: x"), (170, "", ""), (0, "7.pbssrv\nsorry", "")])
def test_a_failed_qselect_raises(code: int, out: str, err: str) -> None:
    with pytest.raises(SchedulerUnavailable):
        parse_job_numbers(CommandResult("qselect", code, out, err))


def test_the_server_reports_its_name_and_job_count() -> None:
    assert parse_server(CommandResult("qstat -B", 0, STATUS, "")) == SchedulerServer("pbssrv", empty=False)
    assert parse_server(CommandResult("qstat -B", 0, STATUS.replace("8", "0"), "")).empty


@pytest.mark.parametrize(
    ("code", "out", "message"),
    [
        (255, "", "qstat -B ended with exit code 255: no error message"),
        (0, "", "expected one server with its state"),
        (0, STATUS[:-9], "expected one server with its state"),
        (0, NO_JOBS, "expected one server with its state"),
        (
            0,
            STATUS.replace("Active", "Hot_Start"),
            "server pbssrv: expected one of the states Active, Idle, Scheduling, got Hot_Start",
        ),
        (
            0,
            STATUS.replace("Active", "Terminating"),
            "server pbssrv: expected one of the states Active, Idle, Scheduling, got Terminating",
        ),
        (0, STATUS.replace('"pbssrv": {', f'"{"x" * 268}": {{'), "expected one server with its state"),
    ],
)
def test_a_server_that_is_not_active_is_unavailable(code: int, out: str, message: str) -> None:
    with pytest.raises(SchedulerUnavailable, match=message):
        parse_server(CommandResult("qstat -B", code, out, ""))


def test_nodes_are_named_by_their_vnodes() -> None:
    nodes = {"n1": {"Mom": "n1.example.org"}, "n1[0]": {"Mom": "n1.example.org"}, "n2": {"Mom": "n2,n2-ib"}, "n3": {}}
    hosts = {"n1": "n1.example.org", "n2": "n2", "n3": "n3"}
    assert parse_nodes(CommandResult("pbsnodes", 0, json.dumps({"nodes": nodes}), "")) == hosts


@pytest.mark.parametrize(("code", "out"), [(1, "{}"), (0, "pbsnodes: Server has no node list"), (0, '{"nodes": []}')])
def test_invalid_output_about_nodes_raises(code: int, out: str) -> None:
    with pytest.raises(SchedulerUnavailable):
        parse_nodes(CommandResult("pbsnodes", code, out, ""))
