"""The split of a dataset's file, as its name tells."""

import pytest

from trustmopd.prompts.reading.sources import is_of, split_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("train.jsonl", "train"),
        ("Train.JSONL", "train"),
        ("train_v1.jsonl", "train"),
        ("train-1.jsonl", "train"),
        ("my train (1).csv", "train"),
        ("gsm8k_test.jsonl.gz", "test"),
        ("test2.jsonl", "test"),  # LiveCodeBench's
        ("cv_fold0_dev.csv", "dev"),
        ("dev-set.jsonl", "dev"),
        ("trainset.csv", "trainset"),
        ("testing.json", "testing"),
        ("valid1.csv", "valid"),
        ("train-00000-of-00002.parquet", "train"),
        ("train-00000-of-00002-1a2b.parquet", "train"),
        ("gsm8k-train-00000-of-00002.parquet", "train"),
        ("train_sft-00000-of-00002.parquet", "train_sft"),
        ("use_with_caution-00000-of-00001.parquet", "use_with_caution"),
        ("part-00000-of-00002.jsonl", "part"),
        ("test_data-part-00000-of-00002.jsonl", "test"),
        ("train_dev.csv", "train+dev"),
        ("val_of_train_v2.csv", "val+train"),
        ("contest.jsonl", None),
        ("testbed.jsonl", None),
        ("latest.json", None),
        ("trainer.csv", None),
        ("values.csv", None),
        ("devices.csv", None),
        ("prompts.parquet", None),
    ],
)
def test_the_split_that_a_file_name_tells(name: str, told: str | None) -> None:
    assert split_of(name) == told


@pytest.mark.parametrize(
    ("told", "split", "same"),
    [
        ("train", "train", True),
        ("training", "Train", True),
        ("val", "validation", True),
        ("validation", "val", True),
        ("train_sft", "train", True),
        ("train_sft", "train_sft", True),
        ("train_gen", "train_sft", False),
        ("train", "train_sft", False),
        ("dev", "validation", False),
        ("train+dev", "train", False),
        ("train+dev", "dev", False),
        ("val_of_train", "train", False),
        ("use_with_caution", "use_with_caution", True),
        ("use_with_caution", "train", False),
    ],
)
def test_a_split_that_is_asked_for_is_found_by_its_kind(told: str, split: str, same: bool) -> None:
    assert is_of(told, split) is same
