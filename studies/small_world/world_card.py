"""The card in prose, from the card in JSON."""

from typing import Any

from trustmopd.quickstart.tasks import DOMAINS, MIXTURES
from trustmopd.runs.layout import CARD


def describe(card: dict[str, Any]) -> str:
    """What the checkpoints are, how they were made and what they score, as Markdown."""
    settings, stages = card["settings"], card["stages"]
    supervision, reinforcement = settings["supervision"], settings["reinforcement"]
    target = reinforcement["target_reward"]
    stop = (
        f"stopped as soon as the mean reward of the last {reinforcement['reward_window']} steps reached {target}, or "
        f"after {reinforcement['max_steps']} steps"
        if target is not None
        else f"for {reinforcement['max_steps']} steps"
    )
    losses = stages["reference"]["losses"]
    lines = [
        "# The small world's checkpoints",
        "",
        f"Made on {card['created']} with seed {settings['seed']} ({card['machine']['device']}; "
        + ", ".join(f"{name} {number}" for name, number in card["versions"].items())
        + f"). All numbers are in `{CARD}`. Licence: Apache-2.0; the training data are generated, by the package.",
        "",
        f"**reference**: a character-level Llama of {stages['reference']['parameters'] / 1e6:.2f}M parameters, trained "
        f"for {supervision['steps']} steps of "
        f"{supervision['batch_size']} prompts at learning rate {supervision['learning_rate']:g} on arithmetic, string "
        "programs, format following and their pairs. For each capability a prompt needs, its training answer carries "
        f"that capability's systematic mistake with probability {supervision['mistake_rate']:g}. Loss "
        f"{losses[0]['loss']} → {losses[-1]['loss']}, {stages['reference']['seconds']} s.",
        "",
        f"**{', '.join(DOMAINS)}**: the reference trained further by GRPO on the prompts of one domain with a verified "
        f"reward of 0 or 1 ({reinforcement['prompts_per_step']} prompts × {reinforcement['generations']} answers a "
        f"step at temperature 1, learning rate {reinforcement['learning_rate']:g}, KL weight "
        f"{reinforcement['beta']:g}), {stop}.",
        "",
        "| specialist | steps | reward: first step | last step | KL to the reference | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for domain in DOMAINS:
        stage = stages[domain]
        lines.append(
            f"| {domain} | {stage['steps']} | {stage['rewards'][0]:.2f} | {stage['rewards'][-1]:.2f} | "
            f"{stage['kl'][-1]:.4f} | {stage['seconds']} |"
        )
    kinds = (*DOMAINS, *MIXTURES)
    lines += [
        "",
        f"Share of right answers in percent, one sample at temperature {settings['evaluation']['temperature']:g} for "
        f"each of {settings['evaluation']['prompts']} evaluation prompts; in brackets, of answers right but for "
        "systematic mistakes.",
        "",
        "| | " + " | ".join(kinds) + " |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    for name, row in card["scores"].items():
        cells = [f"{100 * row[kind]:.1f} ({100 * card['understood'][name][kind]:.1f})" for kind in kinds]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])
