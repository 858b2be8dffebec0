import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from virtcloud.cli import main
from virtcloud.lab import Lab, lab_kernel, prerequisites
from virtcloud.lab.lab_kernel import FEATURES, KernelFeature
from virtcloud.lab.node_services import AGENT_FILE

pytestmark = pytest.mark.lab

MISSING_FEATURE_ERRORS = ("Operation not supported", "Unknown device type", "Specified qdisc kind is unknown")


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_probe_succeeds_on_a_kernel_that_has_the_feature(lab: Lab, feature: KernelFeature) -> None:
    result = lab.run("laptop", ["unshare", "--net", "sh", "-c", " && ".join(feature.commands)])
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_failing_probe_means_a_missing_kernel_feature(feature: KernelFeature) -> None:
    """If a probe fails, the reason is an error of the kernel, and not a syntax error of ``ip`` or ``tc``."""
    command = ["unshare", "--net", "sh", "-c", " && ".join(feature.commands)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the probe itself
    assert result.returncode == 0 or any(text in result.stderr for text in MISSING_FEATURE_ERRORS), result.stderr
    assert lab_kernel.has_feature(feature) is (result.returncode == 0)


def test_doctor_and_the_lab_choose_the_same_kernel(lab: Lab) -> None:
    assert prerequisites.diagnose().kernel == lab.status()["kernel"]


def test_doctor_prints_one_line_per_finding_into_a_pipe() -> None:
    lines = CliRunner().invoke(main, ["doctor"]).output.splitlines()
    assert len(lines) == 1 + len(prerequisites.diagnose().findings) + 1


def test_the_exit_code_shows_whether_a_lab_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    assert (result.exit_code, json.loads(result.output)["healthy"]) == (0, True)
    monkeypatch.setattr(lab_kernel, "has_feature", lambda _: False)
    monkeypatch.setattr(lab_kernel, "find_uml_kernel", lambda: None)
    result = CliRunner().invoke(main, ["doctor"])
    assert (result.exit_code, "no lab can run here" in result.output) == (1, True)


def test_a_host_of_the_lab_passes_the_host_check(lab: Lab) -> None:
    argv = (sys.executable, "-m", "virtcloud.cli", "doctor", "--host", "--config", AGENT_FILE, "--json")
    passed = lab.run("praha-h2", argv, timeout_s=120)
    assert (passed.returncode, [check for check in json.loads(passed.stdout)["checks"] if not check["ok"]]) == (0, [])
    failed = lab.run("praha-h2", ("env", "PATH=/nowhere", *argv[:-2], "/nowhere.toml", "--json"), timeout_s=120)
    assert (failed.returncode, json.loads(failed.stdout)["healthy"]) == (1, False)
