"""Reconciliation of a batch system's jobs with SBF's clusters, as a service on the scheduler's host.

``decide``, ``leases``, ``nodes`` and the readers of what schedulers print decide and do nothing; ``openpbs`` and
``torque`` ask, ``reconciler`` goes round.
"""
