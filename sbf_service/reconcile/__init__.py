"""Reconciliation of switches and edges by SBF's workers.

``scheduler.py`` starts workers. ``worker.py`` reconciles one device once. ``task.py`` compares a device with its wanted
state, and ``read_back.py`` checks differences and their results. ``transactions.py`` contains the database transactions
of scheduler and worker. ``sessions.py`` manages the sessions with devices, ``heartbeats.py`` renews leases.
``deadlines.py`` enforces deadlines. ``on_demand.py`` and ``setting_dry_run.py`` read devices for HTTP requests.
"""
