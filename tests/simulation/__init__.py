"""Fault schedules: the real decisions over a store, switches and hosts in memory, on a clock that a seed drives.

No thread, no sleep, no chance but the seed's: a schedule that fails is replayed, step by step, with
``PYTHONPATH=tests .venv/bin/python -m simulation SEED``.
"""
