"""Torque: the scripts that its MoMs and its qsub run (``scripts``), and their installer."""
