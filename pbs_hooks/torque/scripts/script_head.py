"""The first lines of every script for Torque.

If the arguments cannot contain a request for a cluster or network, the script ends without loading other modules. A
submit filter always loads the other modules.
"""

import sys

REQUEST_WORDS = ("vcluster=", "net=")
TRUNCATED_FROM = 900
"""If a list of resources has more characters than this value, Torque may have dropped the request from the list.

The value is the same as ``script_call.TRUNCATED_FROM``.
"""
FILTERS = ("submit_filter", "qsub_filter", "torque_submitfilter")
"""File names of a submit filter. By default, qsub looks for the last two."""
script = sys.argv[0].rpartition("/")[2]
may_have_request = any(
    word in argument or len(argument) > TRUNCATED_FROM for argument in sys.argv[1:] for word in REQUEST_WORDS
)
