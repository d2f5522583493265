"""One token for each character, as a fast tokenizer that loads like any other."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

ROLES = ["<user>", "<assistant>"]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>", *ROLES]
CHARACTERS = [chr(code) for code in range(32, 127)]
VOCAB_SIZE = len(SPECIAL) + len(CHARACTERS)
# One token of markup for each turn: in so short a dialogue each further one would cost several percent.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<eos>"
    "{% else %}<user>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=ROLES,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
