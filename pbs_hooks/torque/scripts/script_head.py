"""The first lines of every script for Torque.

A job without a request for a cluster or network ends the script here, before other modules are loaded. A submit filter
always loads them.
"""

import sys

REQUEST_WORDS = ("vcluster=", "net=")
TRUNCATED_FROM = 900
"""Torque may have removed the request from a list of resources with more characters than this number.

The value is the same as ``script_call.TRUNCATED_FROM``.
"""
FILTERS = ("submit_filter", "qsub_filter", "torque_submitfilter")
"""File names of a submit filter. By default, qsub looks for the last two."""
script = sys.argv[0].rpartition("/")[2]
may_have_request = any(
    word in argument or len(argument) > TRUNCATED_FROM for argument in sys.argv[1:] for word in REQUEST_WORDS
)
