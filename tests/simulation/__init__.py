"""Fault schedules: random orders of calls, crashes and restarts in a simulation of SBF.

The simulation runs SBF's real scheduler, sweeps and workers with a store and devices in memory, on a virtual clock. At
each call of the store or of a device, a schedule pauses the actor (a replica or an agent) and lets others run. Only one
actor runs at a time, and all random choices depend on the seed.
"""
