"""``virtcloud torque``: write the scripts that Torque runs."""

import json
import os
from pathlib import Path

import click

from pbs_hooks.kit.hook_settings import SettingsError
from pbs_hooks.torque import script_files
from pbs_hooks.torque.scripts.script_settings import read_script_settings
from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.model.errors import BadInput

settings_option = click.option(
    "--settings",
    type=click.Path(path_type=Path),
    default="/etc/virtcloud/torque.json",
    show_default=True,
    help="File with the scripts' settings.",
)


@click.group(cls=SummaryGroup)
def torque() -> None:
    """Write the scripts that Torque runs. Run this command as root on each host.

    Example: virtcloud torque scripts --to /var/spool/torque/mom_priv
    """


@torque.command()
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True, help="The folder mom_priv of a MoM.")
@settings_option
@printing.json_option
def scripts(folder: Path, settings: Path, as_json: bool) -> None:
    """Write prologue, prologue.parallel, epilogue, epilogue.parallel and epilogue.precancel.

    Idempotent. The command writes nothing if the folder contains a script that has one of these names and was not
    written by this command.

    Example: virtcloud torque scripts --to /var/spool/torque/mom_priv
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: expected the folder mom_priv of a MoM, found none")
    text = _build_program(settings)
    if read_script_settings(str(settings)).sbf is None:
        raise BadInput(f"{settings}: expected the setting sbf (SBF's address for the scripts), got none")
    _write(script_files.plan_scripts(folder, text, os.geteuid()), text, as_json=as_json)


@torque.command("filter")
@click.option(
    "--to", "path", type=click.Path(path_type=Path), required=True, help="The path at which qsub expects its filter."
)
@settings_option
@printing.json_option
def filter_(path: Path, settings: Path, as_json: bool) -> None:
    """Write the submit filter. Run this command on each host where users submit jobs. Idempotent.

    Example: virtcloud torque filter --to /usr/local/sbin/torque_submitfilter
    """
    text = _build_program(settings)
    _write(script_files.plan_submit_filter(path, text, os.geteuid()), text, as_json=as_json)


def _build_program(settings: Path) -> str:
    try:
        read_script_settings(str(settings))
    except SettingsError as error:
        raise BadInput(str(error)) from error
    return script_files.build_program(settings)


def _write(files: list[script_files.ScriptFile], text: str, *, as_json: bool) -> None:
    if os.geteuid() != 0:
        raise BadInput("expected to run as root: Torque runs only scripts that root owns")
    script_files.write_files(files, text)
    rows = [{"path": str(file.path), "mode": f"{file.mode:04o}", "written": not file.is_right} for file in files]
    click.echo(json.dumps(rows, indent=2) if as_json else "\n".join(script_files.describe_files(files)))
