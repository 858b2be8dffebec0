"""The module that ``python -m sbf_command`` runs; it is the ``sbf`` command."""

from sbf_command import main

main()
