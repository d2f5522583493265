"""Does SmolLM2-135M follow a system prompt? Greedy answers with and without three of them, and how many obey.

python -m studies.smollm2.follows
"""

from collections.abc import Callable

import torch

from studies.smollm2.weights import find_gguf, load_gguf

#: A system prompt, and whether an answer obeys it.
SYSTEMS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "capitals": ("Answer only in capital letters.", lambda answer: answer.upper() == answer),
    "one word": ("Answer with one single word and nothing else.", lambda answer: len(answer.split()) == 1),
    "greeting": ("Begin every answer with the word Certainly.", lambda answer: answer.startswith("Certainly")),
}
QUESTIONS = (
    *("What is the capital of France?", "How many legs has a spider?", "Name a fruit that is yellow."),
    *("What colour is the sky on a clear day?", "Who wrote Hamlet?", "What do bees make?"),
    *("What is 2 + 3?", "Which planet is closest to the sun?", "What is the opposite of hot?"),
    *("In which season does snow fall?", "What animal says moo?", "What is frozen water called?"),
)


@torch.no_grad()
def main() -> None:
    model, tokenizer = load_gguf(find_gguf())
    tokenizer.padding_side = "left"

    def answers(system: str) -> list[str]:
        start = [{"role": "system", "content": system}] if system else []
        turns = [[*start, {"role": "user", "content": question}] for question in QUESTIONS]
        options = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
        inputs = tokenizer.apply_chat_template(turns, **options)
        made = model.generate(**inputs, max_new_tokens=16, do_sample=False)
        return tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    plain = answers("")
    for name, (system, obeys) in SYSTEMS.items():
        told = answers(system)
        counts = [sum(obeys(answer.strip()) for answer in given) for given in (plain, told)]
        print(f"{name}: {counts[0]} of {len(QUESTIONS)} without, {counts[1]} with; for example {told[0]!r}", flush=True)


if __name__ == "__main__":
    main()
