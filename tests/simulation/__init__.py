"""Fault schedules: the real scheduler, sweeps and workers with a store and devices in memory, on a virtual clock.

A schedule stops them at each call of the store or of a device, lets others go on meanwhile, kills them, restarts
devices. One thread runs at a time, nothing sleeps, and chance is the seed's: a schedule that fails is replayed with
``PYTHONPATH=tests .venv/bin/python -m simulation SEED``.
"""
