"""What runs inside the lab's kernel: nodes, cables and services, built from a plan.

Only the standard library is imported here: inside User-mode Linux every import costs time.
"""
