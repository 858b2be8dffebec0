from pathlib import Path

import pytest
from support.emulators.session import EmulatedSession
from support.emulators.switch_bench import MakeBench, driver_for, login_for, set_read_timeout

from sbf_service.credential_settings import Credential, SecretSource
from sbf_service.device_credentials import make_login
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.settings import ServiceSettings
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

NO_VLANS = VlanSet()


def test_a_closed_port_is_described_in_one_sentence(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.address = "127.0.0.1:9"
    driver = driver_for(bench.switch, bench.a)
    with pytest.raises(Unreachable, match=r"sw1 \(127\.0\.0\.1:9\) does not answer: .*[^.]; SBF tries again"):
        driver.read(bench.managed)


def test_an_unreachable_network_is_described_without_an_error_number(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.address = "255.255.255.255:22"  # connect(2) to this address always fails at once
    driver = driver_for(bench.switch, bench.a)
    with pytest.raises(Unreachable, match=r"does not answer: [A-Z][a-z ]+; SBF tries again$"):
        driver.read(bench.managed)


def test_a_wrong_password_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench("dell_os10")
    bench.switch.password = "another"  # noqa: S105
    with pytest.raises(Refused, match="refuses the login of 'admin'"):
        bench.read()


def test_a_wrong_enable_password_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", read_timeout=1)
    bench.switch.secret = "another"  # noqa: S105
    with pytest.raises(Refused, match="refuses the privileged mode"):
        bench.read()


def test_a_login_with_a_late_prompt_is_repeated(make_bench: MakeBench) -> None:
    """Netmiko sends ``enable`` before the late prompt, and mistakes the prompt for the answer to ``enable``."""
    bench = make_bench("hp_procurve", read_timeout=0.5)
    prompt, delays = bench.switch.prompt, [0.7, 0.05, 0.05]

    def prompt_late(session: EmulatedSession) -> str:
        bench.switch.closing.wait(delays.pop(0) if delays else 0)
        return prompt(session)

    bench.switch.prompt = prompt_late
    assert bench.read().vlans == NO_VLANS
    assert bench.switch.logins == 2


def test_a_hanging_device_is_unreachable_after_its_timeout(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_nxos")
    bench.read()
    bench.switch.fail("hang", "^show vlan")
    set_read_timeout(bench.driver, 0.5)
    with pytest.raises(Unreachable, match=r"no output for 0\.5 s"):
        bench.read()
    set_read_timeout(bench.driver, 5)
    assert bench.read().vlans == NO_VLANS


def test_the_enable_password_is_read_from_a_separate_file(make_bench: MakeBench, tmp_path: Path) -> None:
    bench = make_bench("cisco_ios")
    files = {"password": tmp_path / "login", "enable": tmp_path / "enable"}
    files["password"].write_text(f"{bench.switch.password}\n")
    files["enable"].write_text(f"{bench.switch.secret}\n")
    sources = {name: SecretSource(file=path) for name, path in files.items()}
    credential = Credential(username=bench.switch.username, **sources)
    element = login_for(bench.switch, bench.a).device.model_copy(update={"credential": Name("lab")})
    login = make_login(element, ServiceSettings(credentials={Name("lab"): credential}))
    driver = SWITCH_PLATFORMS["cisco_ios"].driver(login)
    assert driver.read(bench.managed).vlans == NO_VLANS
    driver.close()
