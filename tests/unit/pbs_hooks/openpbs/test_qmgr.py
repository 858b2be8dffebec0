from pathlib import Path

import pytest

from pbs_hooks.openpbs import qmgr
from virtcloud.model.errors import NotFound


def install(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin/qmgr"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return folder


def test_pbs_conf_names_the_installation(tmp_path: Path) -> None:
    programs, conf = install(tmp_path / "pbs"), tmp_path / "pbs.conf"
    conf.write_text(f"# a comment\nPBS_EXEC={programs}\nPBS_HOME=/srv/pbs\n")
    assert qmgr.find_installation({"PBS_CONF_FILE": str(conf), "PATH": ""}) == qmgr.PbsInstallation(
        programs, Path("/srv/pbs")
    )


def test_the_environment_overrides_pbs_conf(tmp_path: Path) -> None:
    first, other, conf = install(tmp_path / "first"), install(tmp_path / "other"), tmp_path / "pbs.conf"
    conf.write_text(f"PBS_EXEC={first}\n")
    assert qmgr.find_installation({"PBS_CONF_FILE": str(conf), "PBS_EXEC": str(other), "PATH": ""}).exec == other


def test_a_missing_installation_names_the_searched_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(qmgr, "DEFAULT_EXEC", str(tmp_path / "none"))
    with pytest.raises(
        NotFound, match=r"qmgr: expected OpenPBS's command in .*/none/bin or on PATH, got none; run this on"
    ):
        qmgr.find_installation({"PBS_CONF_FILE": "/nonexistent", "PATH": ""})


def test_qmgr_on_the_path_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(qmgr, "DEFAULT_EXEC", str(tmp_path / "none"))
    programs = install(tmp_path / "pbs")
    assert qmgr.find_installation({"PBS_CONF_FILE": "/nonexistent", "PATH": str(programs / "bin")}).exec == programs


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"pbs_python: expected it in .*/bin or .*/sbin, got none"):
        qmgr.PbsInstallation(tmp_path, tmp_path).program("pbs_python")
