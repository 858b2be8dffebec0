"""Reconciliation of switches and edges by SBF's workers.

``scheduler.py`` starts workers, with the queries in ``device_statuses.py``. ``worker.py`` reconciles one device once,
with the transactions in ``transactions.py``. ``task.py`` compares a device with its wanted state, with the base classes
in ``device_task.py``. ``read_back.py`` checks a difference before and after its application. ``sessions.py`` manages
the sessions with devices. ``heartbeats.py`` renews the leases of devices. ``deadlines.py`` enforces deadlines.
``on_demand.py`` and ``setting_dry_run.py`` read devices for HTTP requests.
"""
