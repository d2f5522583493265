"""A run that ends half-way through no fault of its settings."""


class Interrupted(OSError):
    """Something that the run depends on is gone. Checkpoints are whole, so it can be resumed; the command line says
    how."""
