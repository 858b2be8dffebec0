"""Reconciliation of switches and edges by SBF's workers.

``scheduler.py`` starts workers; ``device_statuses.py`` contains the scheduler's database queries. ``worker.py``
reconciles one device once; ``transactions.py`` contains the worker's database transactions. ``task.py`` compares a
device with its wanted state; ``device_task.py`` contains the base classes of tasks. ``read_back.py`` checks a
difference before and after the difference is applied. ``sessions.py`` manages the sessions with devices.
``heartbeats.py`` renews the leases of devices. ``deadlines.py`` enforces deadlines. ``on_demand.py`` and
``setting_dry_run.py`` read devices for HTTP requests.
"""
