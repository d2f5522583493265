"""Where trust went, from the files of finished runs. No model is loaded.

`readers/` read a run's files; `statistics/` compute numbers of one run (`summary.py`) and of several (`comparison.py`);
`tables/` and `figures/` show them; `page/` makes the report and the token viewer.
"""
