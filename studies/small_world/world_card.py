"""The card in prose, from the card in JSON."""

from typing import Any

from trustmopd.quickstart.tasks import DOMAINS, MIXTURES
from trustmopd.runs.layout import CARD
from trustmopd.util.text_tables import text_table


def describe(card: dict[str, Any]) -> str:
    """What the checkpoints are, how they were made and what they score, as Markdown."""
    settings, stages, kinds = card["settings"], card["stages"], (*DOMAINS, *MIXTURES)
    sft, rl, asked = settings["supervision"], settings["reinforcement"], settings["evaluation"]
    reference = stages["reference"]
    made_with = ", ".join(f"{name} {number}" for name, number in card["versions"].items())
    stop = f"after {rl['max_steps']} steps"
    if rl["target_reward"] is not None:
        reached = f"the mean reward of the last {rl['reward_window']} steps reached {rl['target_reward']}"
        stop = f"stopped as soon as {reached}, or {stop}"
    rewards = {name: [f"{stages[name]['rewards'][at]:.2f}" for at in (0, -1)] for name in DOMAINS}
    specialists = text_table(
        ["specialist", "steps", "reward: first step", "last step", "KL to the reference", "seconds"],
        [
            [name, stage["steps"], *rewards[name], stage["kl"][-1], stage["seconds"]]
            for name, stage in stages.items()
            if name in DOMAINS
        ],
    )
    scores = text_table(
        ["", *kinds],
        (
            [name, *(f"{100 * row[kind]:.1f} ({100 * card['understood'][name][kind]:.1f})" for kind in kinds)]
            for name, row in card["scores"].items()
        ),
    )
    return f"""\
# The small world's checkpoints

Made on {card["created"]} with seed {settings["seed"]} ({card["machine"]["device"]}; {made_with}). All numbers are in \
`{CARD}`. Licence: Apache-2.0; the training data are generated.

**reference**: a character-level Llama of {reference["parameters"] / 1e6:.2f}M parameters, trained for {sft["steps"]} \
steps of {sft["batch_size"]} prompts at learning rate {sft["learning_rate"]:g} on arithmetic, string programs, format \
following and their pairs. For each capability a prompt needs, its training answer carries that capability's \
systematic mistake with probability {sft["mistake_rate"]:g}. Loss {reference["losses"][0]["loss"]} → \
{reference["losses"][-1]["loss"]}, {reference["seconds"]} s.

**{", ".join(DOMAINS)}**: the reference trained further by GRPO on the prompts of one domain with a verified reward of \
0 or 1 ({rl["prompts_per_step"]} prompts × {rl["generations"]} answers a step at temperature 1, learning rate \
{rl["learning_rate"]:g}, KL weight {rl["beta"]:g}), {stop}.

{specialists.to_markdown()}
Share of right answers in percent, one sample at temperature {asked["temperature"]:g} for each of {asked["prompts"]} \
evaluation prompts; in brackets, of answers right but for systematic mistakes.

{scores.to_markdown()}"""
