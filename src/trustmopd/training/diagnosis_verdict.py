"""What the scores of a diagnosis say: does displacement put each domain's own teacher in the lead?"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from trustmopd.runs.schemas import DomainDiagnosis, ReferenceDiagnosis


def judge(
    domains: Sequence[DomainDiagnosis], teachers: Collection[str], score: str = "displacement"
) -> tuple[bool | None, str]:
    """Whether these teachers are separated from all others, and why. A domain is separated if its own teacher scores
    highest there, by more than noise, and leads on most of its rollouts. Judged are the teachers' own domains, and
    those that they lead."""
    whole = not domains or {*teachers} == {*domains[0].score}
    pool = "this pool" if whole else " and ".join(f"'{name}'" for name in teachers)
    labelled = [domain for domain in domains if domain.leads is not None]
    matched = [domain for domain in labelled if {domain.domain, domain.leader} & set(teachers)]
    if not matched:
        return None, (
            f"No prompt has the name of a teacher ({', '.join(teachers)}) as its domain, so it is unknown where it "
            f"should lead. Label some prompts (domain column) with teachers' names to see whether {score} separates "
            "them. Training needs no labels."
        )
    for domain in matched:
        own = domain.domain
        rival = max((name for name in domain.score if name != own), key=domain.score.__getitem__)
        scores = {name: f"{domain.score[name]:.2f}" for name in (own, rival)}
        if abs(domain.score[rival] - domain.score[own]) < _noise((domain, rival), (domain, own)):
            return None, (
                f"Not decided: on '{own}' prompts '{rival}' scores {scores[rival]} and '{own}' {scores[own]}, and "
                f"{domain.rollouts} rollouts are too few to tell them apart. Use more; if the scores stay this close, "
                "expect little gain over allocation uniform."
            )
        if domain.leader != own:
            return False, (
                f"{score.capitalize()} does not separate {pool}: on '{own}' prompts teacher '{rival}' scores "
                f"{scores[rival]} against {scores[own]} of '{own}', so trust would follow the wrong teacher there. "
                "Expect little or no gain over allocation uniform. The usual cause is a specialist that moved far from "
                "its reference outside its domain."
            )
        if domain.leads is not None and domain.leads <= 0.5:
            return False, (
                f"{score.capitalize()} separates {pool} only on average: '{own}' scores highest on its own prompts "
                f"({scores[own]}), but leads on {domain.leads:.0%} of their rollouts. Compare with allocation "
                "uniform before a long run."
            )
    lead = ", ".join(f"{domain.leads:.0%} of '{domain.domain}'" for domain in matched)
    return (
        True,
        f"{score.capitalize()} separates {pool}: each domain's own teacher scores highest there, and leads on "
        f"{lead} rollouts.",
    )


def moved_everywhere(domains: Sequence[DomainDiagnosis], teachers: Collection[str]) -> str:
    """Names the teachers that are displaced elsewhere as far as on their own prompts; nothing if there are none."""
    labelled = {domain.domain: domain for domain in domains if domain.leads is not None}
    said = []
    for name in (name for name in teachers if name in labelled and len(labelled) > 1):
        home = labelled[name]
        away = max((each for each in labelled.values() if each is not home), key=lambda each: each.score[name])
        farther, noise = away.score[name] - home.score[name], _noise((home, name), (away, name))
        if farther > -noise:
            how = "farther" if farther > noise else "about as far"
            said.append(
                f" '{name}' moved {how} from its reference on '{away.domain}' prompts ({away.score[name]:.2f}) "
                f"{'than' if farther > noise else 'as'} on its own ({home.score[name]:.2f}), so by itself its "
                "displacement says little about where it is good."
            )
    return "".join(said)


def judge_views(health: Mapping[str, float]) -> Iterator[str]:
    """Of two views, the one under which a teacher finds the responses likelier, by more than two standard errors, is
    likelier to be right: in a format that it does not know, it expects other ones."""
    for name in (metric.split("/")[1] for metric in health if metric.startswith("view/") and metric.endswith("/nats")):
        nats, gain, error = (health[f"view/{name}/{what}"] for what in ("nats", "gain", "error"))
        right = "Its own is" if gain > 2 * error else "The student's is" if gain < -2 * error else "Neither is"
        yield (
            f"'{name}' under its own view is {nats:.3f} nats a token from itself under the student's, and finds the "
            f"student's responses likelier by {gain:.3f} ± {error:.3f}. {right} more likely to be right."
        )


def _noise(*scores: tuple[DomainDiagnosis, str]) -> float:
    """Two standard errors of the difference of two mean scores."""
    return 2 * math.hypot(*(domain.spread[name] / math.sqrt(domain.rollouts) for domain, name in scores))


def judge_references(references: Sequence[ReferenceDiagnosis]) -> tuple[bool | None, str]:
    """The pool's verdict, by reference where there are several: it separates if each of them does."""
    if len(references) == 1:
        return references[0].separates, references[0].verdict
    found = [reference.separates for reference in references]
    separates = False if False in found else None if None in found else True
    return separates, "\n".join(
        f"Measured from {each.source} ({', '.join(each.teachers)}; {each.distance:.2f} nats from the student): "
        f"{each.verdict}"
        for each in references
    )
