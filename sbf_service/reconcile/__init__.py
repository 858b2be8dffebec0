"""Reconciliation of switches and edges by SBF's workers.

``scheduler.py`` starts workers; ``device_statuses.py`` contains its database queries. ``worker.py`` reconciles one
device once; ``transactions.py`` contains its database transactions. ``task.py`` compares a device with its wanted
state; ``device_task.py`` contains its base classes. ``read_back.py`` checks a difference before and after its
application. ``sessions.py`` manages the sessions with devices. ``heartbeats.py`` renews the leases of devices.
``deadlines.py`` enforces deadlines. ``on_demand.py`` and ``setting_dry_run.py`` read devices for HTTP requests.
"""
