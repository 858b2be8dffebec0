"""The cost of calls in installations of several sizes.

``python -m benchmarks.scale`` fills a database with the rows of an installation, calls each measured operation in the
same process, and counts SQL statements, rows and processor time.
"""
