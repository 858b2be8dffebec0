"""Reconciliation of switches and edges by SBF's workers.

``scheduler.py`` starts workers. ``worker.py`` reconciles one device once. ``task.py`` and ``read_back.py`` decide what
to change and check the result. ``transactions.py`` has the database transactions of both. ``sessions.py`` manages the
sessions with devices, ``heartbeats.py`` the leases. ``deadlines.py`` enforces deadlines. ``on_demand.py`` and
``setting_dry_run.py`` read devices for callers of the HTTP API.
"""
