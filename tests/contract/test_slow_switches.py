"""A switch that is too slow is described in one sentence: who, what was expected, what was seen last, the remedy."""

import pytest
from emulators.bench import MakeBench

from virtcloud.model.errors import Unreachable


def test_a_login_that_comes_to_no_prompt_is_said_plainly(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", read_timeout=1)
    bench.switch.fail("hang", "^terminal ")
    with pytest.raises(Unreachable) as caught:
        bench.read()
    assert str(caught.value) == (
        f"switch sw1 ({bench.switch.address}) does not answer: expected its prompt within 1 s of logging in, "
        "seen last: 'sw1>terminal width 511' (if it is always so slow: timing.read_timeout); it is tried again"
    )


def test_a_command_that_is_not_answered_is_named_with_what_was_seen(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", read_timeout=1)
    bench.switch.fail("hang", "^show vlan brief")
    with pytest.raises(Unreachable) as caught:
        bench.read()
    assert str(caught.value) == (
        f"switch sw1 ({bench.switch.address}) does not answer: nothing heard for 1 s after 'show vlan brief', "
        "seen last: 'show vlan brief' (if it is always so slow: timing.read_timeout); it is tried again"
    )


def test_what_was_seen_last_names_no_password(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", read_timeout=1)
    bench.switch.secret = "another"  # noqa: S105
    bench.switch.fail("hang", "^enable")
    with pytest.raises(Unreachable) as caught:
        bench.read()
    assert bench.switch.password not in str(caught.value)
