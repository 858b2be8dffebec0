"""Reconciliation of a batch system's jobs with SBF's clusters, on the host of the batch system's server.

``decision`` contains the rules (pure). ``openpbs_adapter`` and ``torque_adapter`` query the batch systems.
``job_reconciler`` runs the rounds of reconciliation. ``reconciliation_threads`` starts the threads.
"""
