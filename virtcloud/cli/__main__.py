"""``python -m virtcloud.cli``: the same as ``virtcloud``."""

from virtcloud.cli import main

main(prog_name="virtcloud")
