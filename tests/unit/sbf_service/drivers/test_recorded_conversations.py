"""The dialects parse recorded answers of switches (tests/recordings/switches) and render the recorded commands."""

import pytest
from recordings import RECORDS

from sbf_service.trial import run_trial
from virtcloud.model.dialect_trial import TrialRecord, TrialRequest, compare_records


def replayed(record: TrialRecord) -> TrialRecord:
    example = record.model_dump(include={"platform", "ports", "vlan", "access"})
    return run_trial(TrialRequest.model_validate({**example, "replayed": record}))


@pytest.mark.parametrize("name", RECORDS)
def test_a_recorded_conversation_is_parsed_as_recorded(name: str) -> None:
    trial = replayed(RECORDS[name])
    assert list(compare_records(RECORDS[name], trial)) == []
    assert trial.faults == RECORDS[name].faults


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_a_reading_and_commands(name: str) -> None:
    record = RECORDS[name]
    assert record.source
    assert record.understood
    assert record.understood.vlans
    assert record.understood.ports
    assert record.lines
