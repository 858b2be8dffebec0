"""The ``sbf`` command as ``python -m sbf_command``."""

from sbf_command import main

main()
