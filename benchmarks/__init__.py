"""Benchmarks of the service: ``make bench`` runs all, ``python -m benchmarks NAME`` runs one.

Each module is one benchmark with its targets. Machines differ and are shared, so a target is a ratio of two times of
the same run where possible. ``make test`` runs no benchmark.
"""
