"""Benchmarks of the service: ``make bench`` runs all, ``python -m benchmarks NAME`` runs one.

Each module is a benchmark with its targets. Where possible, a target is the ratio of two durations measured in the same
run, because computers differ in speed and load. ``make test`` runs no benchmark.
"""
