"""Fault schedules: the real convergers, sweeps and workers over a store and devices in memory, on a clock of a seed's.

A schedule stops them at each call of the store or of a device, lets others go on meanwhile, kills them, restarts
devices. One thread runs at a time, nothing sleeps, and chance is the seed's: a schedule that fails is replayed with
``PYTHONPATH=tests .venv/bin/python -m simulation SEED``.
"""
