"""OpenPBS: the server hook and the MoM hook (``hooks``), their installer, and the check of an installation."""
