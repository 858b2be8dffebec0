"""OpenPBS: the server hook and the MoM hook (``hooks``), their installer, and a check of the installation."""
