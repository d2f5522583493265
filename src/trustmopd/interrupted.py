"""A run that ends half-way through no fault of its settings."""


class Interrupted(OSError):
    """Something that the run depends on is gone. Checkpoints that were saved are whole; the command line says how to
    continue from them."""
