"""Makes `oracle` and `cases` importable from the tests of this folder, and fixes how hypothesis draws."""

import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("method", derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile("method")
torch.set_num_threads(1)
