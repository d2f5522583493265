"""Draw who computes what when, with teachers resident and on Ray: `python benchmarks/plot_remote.py`. A sketch: widths
are in proportion to one forward of a model over a batch, and are not measured."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "remote-step.png"
POLICIES = ("math", "code", "if", "reference")
COLOURS = {
    "sample": "#999999",
    "read": "#0072B2",
    "forward": "#E69F00",
    "wait": "#eeeeee",
    "logits": "#009E73",
    "backward": "#D55E00",
}
LABELS = {
    "sample": "the student samples",
    "read": "a frozen policy reads the batch",
    "forward": "the student reads a micro-batch, and finds its candidates",
    "wait": "waiting",
    "logits": "logits at the candidates",
    "backward": "backward",
}
SAMPLE, READ, FORWARD, LOGITS, BACKWARD, MICRO_BATCHES = 3.0, 2.0, 1.0, 0.25, 2.0, 2
Span = tuple[str, float, float]


def resident() -> dict[str, list[Span]]:
    spans, at = [("sample", 0.0, SAMPLE)], SAMPLE
    for _ in POLICIES:
        spans.append(("read", at, READ))
        at += READ
    for _ in range(MICRO_BATCHES):
        for what, width in (("forward", FORWARD), ("logits", LOGITS), ("backward", BACKWARD)):
            spans.append((what, at, width))
            at += width
    return {"training GPU": spans}


def on_ray() -> dict[str, list[Span]]:
    training, answered = [("sample", 0.0, SAMPLE), ("forward", SAMPLE, FORWARD)], SAMPLE + READ
    there: list[Span] = [("read", SAMPLE, READ)]
    at = SAMPLE + FORWARD
    for micro_batch in range(MICRO_BATCHES):
        if micro_batch:
            training.append(("forward", at, FORWARD))
            at += FORWARD
        begins = max(at, answered)
        there.append(("logits", begins, LOGITS))
        training += [("wait", at, begins + LOGITS - at), ("backward", begins + LOGITS, BACKWARD)]
        at = begins + LOGITS + BACKWARD
    return {"training GPU": training, **dict.fromkeys(POLICIES, there)}


def main() -> None:
    figure, panels = plt.subplots(
        2, 1, figsize=(9, 4.2), sharex=True, layout="constrained", gridspec_kw={"height_ratios": (1, 5)}
    )
    for panel, (title, rows) in zip(panels, (("resident", resident()), ("ray", on_ray())), strict=True):
        for place, spans in enumerate(rows.values()):
            for what, begins, width in spans:
                panel.barh(place, width, left=begins, height=0.62, color=COLOURS[what], edgecolor="white")
        panel.set_yticks(range(len(rows)), list(rows))
        panel.invert_yaxis()
        panel.set_title(f"teacher_placement: {title}", loc="left", fontsize=10)
        panel.set_xticks([])
        for side in ("top", "right", "bottom"):
            panel.spines[side].set_visible(False)
    arrow = {"arrowstyle": "->", "color": "#333333"}
    asked, wanted = SAMPLE, SAMPLE + READ
    panels[1].annotate("tokens", (asked, 0.68), (asked - 1.2, 0.56), fontsize=8, arrowprops=arrow)
    panels[1].annotate("candidates, logits", (wanted + 0.1, 0.68), (wanted + 0.6, 0.56), fontsize=8, arrowprops=arrow)
    panels[1].set_xlabel("time of one step, two micro-batches")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(handles, list(LABELS.values()), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(PICTURE, dpi=150)


if __name__ == "__main__":
    main()
