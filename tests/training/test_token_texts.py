"""The text of a token is what it adds to a text, whatever the tokenizer's decoder does at the start of one."""

import pytest
import tiny
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trustmopd.training.step.records import TokenTexts

pytestmark = pytest.mark.unit

TEXTS = {"▁": " ", "a": "a", "▁a": " a", "▁the": " the", "the": "the", "<0xE2>": "\ufffd", "<s>": "<s>", "▁▁": "  "}


def llama_like() -> PreTrainedTokenizerFast:
    """With the decoder that Llama 2, Mistral and Gemma tokenizers have: the first space of a text is its own."""
    vocab = {token: place for place, token in enumerate(["<unk>", *TEXTS])}
    core = Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>")


def byte_level() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE({"Ġ": 0, "a": 1, "Ġa": 2, ",": 3, "Ġ,": 4, "â": 5}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=True)


def test_leading_spaces_are_kept_where_the_decoder_strips_a_texts_first() -> None:
    tokenizer = llama_like()
    texts = TokenTexts(tokenizer)
    for token, text in TEXTS.items():
        assert texts[tokenizer.convert_tokens_to_ids(token)] == text
    ids = tokenizer.convert_tokens_to_ids(["▁the", "▁a", "the", "▁▁", "a"])
    assert "".join(texts[each] for each in ids).removeprefix(" ") == tokenizer.decode(ids)


def test_byte_level_tokens_are_as_they_decode_alone_without_tidying() -> None:
    texts = TokenTexts(byte_level())
    assert [texts[token] for token in range(6)] == [" ", "a", " a", ",", " ,", "\ufffd"]


def test_characters_are_themselves() -> None:
    tokenizer = tiny.tokenizer()
    texts = TokenTexts(tokenizer)
    assert [texts[token] for token in range(tiny.VOCAB)] == [tokenizer.decode([t]) for t in range(tiny.VOCAB)]
