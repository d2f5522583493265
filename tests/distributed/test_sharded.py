"""Teachers that are spread over the processes say what whole ones say."""

import json
from pathlib import Path

import pytest
import sharded
from processes import launch

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("processes", [2, 4])
def test_sharded_teachers_answer_bit_for_bit_as_resident_ones_from_their_share_of_the_weights(
    processes: int, tmp_path: Path
) -> None:
    launch([sharded.__file__, str(tmp_path), "32"], processes=processes, logs=tmp_path)
    found = [json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(processes)]
    for by_rank in zip(*found, strict=True):
        assert by_rank[0]["asked"] == {"math": 0, "code": 5, "reference": 5}  # three passes where others make fewer
        for each in by_rank:
            assert each["equal"]
            assert each["fingerprints"] == by_rank[0]["fingerprints"]
            whole, kept = each["parameters"]["resident"], each["parameters"]["sharded"]
            # Heads, and embeddings tied to them, stay whole: a tenth of these models, a third where they are untied.
            assert whole / processes <= kept < 0.5 * whole * (1 + 1 / processes)
