"""Fault schedules: the real scheduler, sweeps and workers with a store and devices in memory, on a virtual clock.

A schedule stops these actors at each call of the store or of a device, runs other actors in between, kills actors and
restarts devices. One coroutine runs at a time, none sleeps, and all random choices depend on the seed. A schedule
that fails is repeated with ``PYTHONPATH=tests .venv/bin/python -m simulation SEED``.
"""
