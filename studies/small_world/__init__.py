"""The paper's comparison in the small world. Start with `comparison.py`; `build_world.py` makes the world."""
