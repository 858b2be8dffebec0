"""Benchmarks of the service: ``make bench`` runs all, ``python -m benchmarks NAME`` runs one.

Each module is a benchmark with its targets. Computers differ in speed and have other load. Therefore a target is a
ratio of two times of the same run where possible. ``make test`` runs no benchmark.
"""
