"""virtcloud: private layer-2 networks, with virtual machines on them, across several sites.

This package is what every machine imports: the model, the client, the agent, the command line and the lab.
The service that owns all clusters is the package ``sbf_service``.
"""
