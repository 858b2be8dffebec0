"""What the service promises about speed, measured: ``make bench`` runs all, ``python -m benchmarks NAME`` one.

Machines differ and are shared, so a promise is a ratio of two times of one run wherever it can be. Nothing here is
part of ``make test``.
"""
