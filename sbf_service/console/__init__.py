"""The web console: pages for browsers, rendered by the server.

The pages call the functions of the API's routes, so a user has the same rights in the console as in the API.
"""
