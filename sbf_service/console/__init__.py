"""The web console: pages for browsers, rendered by the server.

The pages call the functions of the API's routes, so users have the same rights as in the API.
"""
