"""Tests of the parsers of Torque's output, with output in the documented form."""

import pytest
from support.batch_fakes.scheduler import SERVER, FakeCommands

from virtcloud.model.errors import SchedulerUnavailable
from virtcloud.scheduler.command import CommandResult
from virtcloud.scheduler.job_states import JobPhase, SchedulerJob, SchedulerServer
from virtcloud.scheduler.torque_adapter import TorqueScheduler, parse_nodes, parse_server

JOB = (
    "<Job><Job_Id>{number}.pbssrv</Job_Id><Job_Name>sim</Job_Name><Job_Owner>alice@n1</Job_Owner>"
    "<resources_used><walltime>00:00:27</walltime></resources_used><job_state>{state}</job_state>"
    "<Resource_List><nodect>1</nodect><vcluster>image=a</vcluster><walltime>00:10:00</walltime></Resource_List></Job>"
)
LIST = f"<Data>{JOB.format(number=7, state='R')}{JOB.format(number=8, state='C')}</Data>\n"
STATUS = "Server: pbssrv\n    server_state = Active\n    scheduling = True\n    total_jobs = 3\n    state_count = x\n"


def read_jobs(
    numbers: set[str], listed: tuple[int, str, str], **single: tuple[int, str, str]
) -> dict[str, SchedulerJob]:
    alone = {f"qstat -x {key.removeprefix('j')}": answer for key, answer in single.items()}
    jobs = TorqueScheduler(FakeCommands({"qstat -x": listed, **alone})).jobs(SERVER, numbers)
    return {str(key): job for key, job in jobs.items()}


def test_jobs_missing_in_the_list_are_queried() -> None:
    jobs = read_jobs({"7", "9"}, (0, LIST, ""), j9=(153, "", "qstat: Unknown Job Id Error 9.pbssrv\n"))
    assert {key: (job.phase, job.description) for key, job in jobs.items()} == {
        "7.pbssrv": (JobPhase.RUNNING, "runs"),
        "8.pbssrv": (JobPhase.GONE, "has finished"),
        "9.pbssrv": (JobPhase.GONE, "is not known to pbssrv"),
    }


def test_a_job_is_read_with_its_times_and_no_attempt() -> None:
    found_job = read_jobs(set(), (0, LIST, ""))["7.pbssrv"]
    assert (found_job.wants_cluster, found_job.walltime_s, found_job.used_s, found_job.attempt) == (True, 600, 27, None)


def test_a_job_missing_in_an_empty_list_is_unreadable() -> None:
    assert read_jobs({"7"}, (0, "", ""), j7=(0, "", ""))["7.pbssrv"].phase is JobPhase.UNREADABLE


@pytest.mark.parametrize("listed", [(0, LIST[:-9], ""), (1, "", "qstat: cannot connect to server"), (0, LIST, "x")])
def test_an_incomplete_list_raises(listed: tuple[int, str, str]) -> None:
    with pytest.raises(SchedulerUnavailable):
        read_jobs({"7"}, listed)


def test_the_server_reports_its_name_and_job_count() -> None:
    assert parse_server(CommandResult("qstat -B", 0, STATUS, "")) == SchedulerServer("pbssrv", empty=False)


@pytest.mark.parametrize(("code", "out"), [(1, STATUS), (0, ""), (0, STATUS.replace("Active", "Terminating"))])
def test_a_server_that_is_not_active_is_unavailable(code: int, out: str) -> None:
    with pytest.raises(SchedulerUnavailable):
        parse_server(CommandResult("qstat -B", code, out, ""))


def test_nodes_are_parsed() -> None:
    assert parse_nodes(
        CommandResult("pbsnodes", 0, "<Data><Node><name>n1</name><state>free</state></Node></Data>", "")
    ) == {"n1": "n1"}


def test_a_request_in_the_resource_named_other_is_recognized() -> None:
    copied = JOB.replace("<vcluster>image=a</vcluster>", "<other>vcluster=image=a</other>")
    other = JOB.replace("<vcluster>image=a</vcluster>", "<other>fast</other>")
    listed = f"<Data>{copied.format(number=7, state='R')}{other.format(number=8, state='R')}</Data>\n"
    assert [job.wants_cluster for job in read_jobs(set(), (0, listed, "")).values()] == [True, False]


def test_a_request_for_a_network_is_recognized() -> None:
    networks = JOB.replace("<vcluster>image=a</vcluster>", "<net>{net}</net>")
    jobs = (networks.format(number=number, state="R", net=net) for number, net in ((7, "private"), (8, "lab")))
    listed = f"<Data>{''.join(jobs)}</Data>\n"
    assert [job.wants_cluster for job in read_jobs(set(), (0, listed, "")).values()] == [True, True]


def test_control_characters_of_one_job_do_not_hide_others() -> None:
    """Torque's XML contains users' text, in which only ``<>&"'`` are escaped."""
    prompt = "<Variable_List>PS1=\x1b[1m$ \x1b[0m,X=\x01\x0b</Variable_List></Job>"
    listed = (
        f"<Data>{JOB.format(number=7, state='R').replace('</Job>', prompt)}{JOB.format(number=8, state='R')}</Data>"
    )
    assert set(read_jobs(set(), (0, listed, ""))) == {"7.pbssrv", "8.pbssrv"}


def test_another_servers_job_with_the_same_number_is_ignored() -> None:
    """A queue may route jobs from another server to this server."""
    jobs = read_jobs(
        {"8"}, (0, LIST.replace("8.pbssrv", "8.elsewhere"), ""), j8=(153, "", "qstat: Unknown Job Id 8.pbssrv\n")
    )
    assert jobs["8.pbssrv"].description == "is not known to pbssrv"


@pytest.mark.parametrize("suffix", ["", ".pbssrv.alias", ".pbssrv.example.org"])
def test_job_ids_without_the_server_name_are_an_error(suffix: str) -> None:
    """A server's settings ``display_job_server_suffix`` and ``job_suffix_alias`` can change the suffix of job IDs."""
    with pytest.raises(SchedulerUnavailable, match=r"expected job IDs that end in \.pbssrv, got '7"):
        read_jobs({"7"}, (0, LIST.replace(".pbssrv", suffix), ""))
