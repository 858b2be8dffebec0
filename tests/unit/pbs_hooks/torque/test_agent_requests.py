import pytest
from support.batch_fakes.torque_host import ScriptResult, TorqueHost
from support.programs.fake_agent import BUSY


@pytest.mark.parametrize(("script", "do"), [("prologue", "up"), ("prologue", "state"), ("prologue.parallel", "list")])
def test_a_busy_agent_receives_the_request_again(bench: TorqueHost, script: str, do: str) -> None:
    busy, answer = {do}, bench.answer_as_agent
    bench.answer_as_agent = lambda request: BUSY if request["do"] in busy and not busy.clear() else answer(request)
    assert bench.run(script) == ScriptResult(0, "")
    assert [request["do"] for request in bench.agent_requests].count(do) == 2
