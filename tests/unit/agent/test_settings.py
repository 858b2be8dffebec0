import os
import subprocess
import sys
from pathlib import Path

import pytest

from virtcloud.agent.settings import read_settings
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import BadDocument


def write_settings(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text)
    return path


def test_settings_need_only_two_keys(tmp_path: Path) -> None:
    settings = read_settings(write_settings(tmp_path, 'element = "brno-h1"\nsbf = "unix:///run/sbf.sock"\n'))
    assert (settings.element, settings.hypervisors, settings.guests.stop_grace) == ("brno-h1", {}, 5)


def test_a_scheduler_without_element_is_accepted(tmp_path: Path) -> None:
    settings = read_settings(write_settings(tmp_path, 'sbf = "http://sbf:8800"\n[scheduler]\n'))
    assert (settings.element, settings.scheduler and settings.scheduler.kind) == (None, "openpbs")


def test_every_key_can_be_set(tmp_path: Path) -> None:
    text = """
    element = "brno-h1"
    sbf = "http://sbf:8800"
    images = "/images"
    state = "/state"
    [hypervisors]
    lxc = "lxc:///system"
    [guests]
    accelerator = "tcg"
    confined = false
    stop_grace = 0.5
    [timing]
    check = 10
    retry_first = 1
    retry_most = 5
    """
    settings = read_settings(write_settings(tmp_path, text))
    assert settings.hypervisors == {Hypervisor.LXC: "lxc:///system"}
    assert (settings.guests.accelerator, settings.guests.confined, settings.timing.retry_most) == ("tcg", False, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('element = "h1"\n', "sbf: expected a value, got none"),
        ('sbf = "x"\n', r"element: expected element, a table \[scheduler\], or both; got neither"),
        ('sbf = "x"\n[scheduler]\nlooks = 1\n', "scheduler.looks: expected greater than or equal to 2, got 1"),
        ('element = "H1"\nsbf = "x"\n', "element: expected a name"),
        ('element = "h1"\nsbf = "x"\nimage = "y"\n', "image: unknown key; check its spelling"),
        (
            'element = "h1"\nsbf = "x"\n[timing]\ncheck = 600\n',
            "timing.check: expected less than or equal to 60, got 600",
        ),
        ("element = \n", "not TOML: .*line 1"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadDocument, match=rf"agent\.toml: {message}"):
        read_settings(write_settings(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadDocument, match=r"gone\.toml: cannot be read: No such file"):
        read_settings(tmp_path / "gone.toml")


def test_settings_are_utf8_in_every_locale(tmp_path: Path) -> None:
    """An editor of Windows wrote a byte order mark and CRLF."""
    path = tmp_path / "agent.toml"
    path.write_bytes('\ufeffelement = "h1"\r\nsbf = "unix:///sbf"\r\nstate = "/Plze\u0148"\r\n'.encode())
    code = "import sys; from pathlib import Path; from virtcloud.agent.settings import read_settings as read; "
    code += "print(ascii(str(read(Path(sys.argv[1])).state)))"
    argv = [sys.executable, "-c", code, str(path)]
    locale = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(argv, env=os.environ | locale, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.stdout, done.stderr) == ("'/Plze\\u0148'\n", "")
