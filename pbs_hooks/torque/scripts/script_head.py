"""The first lines of every script for Torque.

These lines check whether the job may have requested a cluster or network. For a job without such a request, every
script except a submit filter ends before it loads any other module.
"""

import sys

REQUEST_WORDS = ("vcluster=", "net=")
TRUNCATED_FROM = 900
"""If a list of resources has more characters than this number, Torque may have truncated the list and removed the
request.

The value is the same as ``script_call.TRUNCATED_FROM``.
"""
FILTERS = ("submit_filter", "qsub_filter", "torque_submitfilter")
"""File names of a submit filter. By default, qsub looks for the last two."""
script = sys.argv[0].rpartition("/")[2]
may_have_request = any(
    word in argument or len(argument) > TRUNCATED_FROM for argument in sys.argv[1:] for word in REQUEST_WORDS
)
