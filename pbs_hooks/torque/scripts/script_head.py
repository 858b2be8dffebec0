"""The first lines of every script. They accept jobs without a request before any other module is loaded."""

import sys

REQUEST_WORDS = ("vcluster=", "net=")
TRUNCATED_FROM = 900
"""A list of resources with more characters may lack the request. The same value as ``script_call.TRUNCATED_FROM``."""
FILTERS = ("submit_filter", "qsub_filter", "torque_submitfilter")
"""File names of a submit filter. By default, qsub looks for the last two."""
script = sys.argv[0].rpartition("/")[2]
may_have_request = any(
    word in argument or len(argument) > TRUNCATED_FROM for argument in sys.argv[1:] for word in REQUEST_WORDS
)
