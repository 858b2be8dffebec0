"""Entry point of ``python -m virtcloud.cli``, which runs the command ``virtcloud``."""

from virtcloud.cli import main

main(prog_name="virtcloud")
