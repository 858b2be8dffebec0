"""Reconciliation of switches and edges by SBF's workers.

``scheduler.py`` starts workers; ``worker.py`` reconciles one device once; ``task.py`` and ``read_back.py`` decide what
to change and check the result; ``transactions.py`` reads and records; ``sessions.py`` and ``heartbeats.py`` hold
sessions and leases; ``deadlines.py`` enforces deadlines; ``on_demand.py`` and ``setting_dry_run.py`` read devices for
callers.
"""
