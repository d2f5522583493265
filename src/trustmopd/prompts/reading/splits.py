"""Which split of a dataset a file holds, by its name: train rows must not be scored, nor test rows trained on."""

import re

_WORD = re.compile(r"(?<![a-z])(train|val|dev|test)(?:ing|set|id|idation)?(?![a-z])")
_SHARD = re.compile(r"(\w+)-\d{5}-of-\d{5}(?!\d)")


def split_of(name: str) -> str | None:
    """The split in a file name: train for gsm8k_train_v1.jsonl; on shards, as the Hub has them, any word is a split. A
    name with two words, as train_dev.csv, is of neither: its split is train+dev."""
    words = "+".join(dict.fromkeys(found[0] for found in _WORD.finditer(name.lower())))
    shard = _SHARD.search(name.lower())
    if shard and (is_known(shard[1]) or not words):  # and not train_data-part-00000-of-00002
        return shard[1]
    return words or None


def is_of(name_split: str, split: str) -> bool:
    """Whether a file's split is the one that is asked for: training is train, validation is val, and train_sft train,
    but not the other way round."""
    kinds = {found[1] for found in _WORD.finditer(name_split)}
    asked = _WORD.fullmatch(split.lower())
    return name_split == split.lower() or (asked is not None and kinds == {asked[1]})


def is_known(name_split: str) -> bool:
    return _WORD.search(name_split) is not None
