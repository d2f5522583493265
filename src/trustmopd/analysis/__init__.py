"""Where trust went, from the files of finished runs: statistics, figures, tables, the token viewer, the report.

It reads run directories and loads no model. Start with `run.py` (what a run left) and `summary.py` (what follows).
"""
