"""``python -m sbf_command`` is ``sbf``."""

from sbf_command import main

main()
