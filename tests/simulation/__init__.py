"""Fault schedules: random orders of calls, crashes and restarts in a simulation of SBF.

The simulation runs SBF's real scheduler, sweeps and workers with a store and devices in memory, on a virtual clock. At
each call of the store or of a device, a schedule pauses the actor (a replica or an agent) and lets others run. The
schedule also kills actors and restarts devices. Only one actor runs at a time, no actor sleeps, and all random choices
depend on the seed. ``PYTHONPATH=tests .venv/bin/python -m simulation SEED`` repeats a schedule.
"""
