"""The cost of calls in installations of several sizes.

For each size, ``python -m benchmarks.scale`` fills a database with the rows of an installation. Then the same process
calls each measured operation, and counts SQL statements, rows and processor time.
"""
