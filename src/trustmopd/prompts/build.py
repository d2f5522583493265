"""From a config to a prompt set: read the pools, screen them, fill the quotas, compose. A composed prompt is a source
problem followed by a constraint block, copied verbatim, or by the one derivation block."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trustmopd.prompts.build_config import Category, DataConfig
from trustmopd.prompts.corpora import Pool, PoolRow, read_pool
from trustmopd.prompts.decontaminate import Removal, Screening, decontaminate
from trustmopd.prompts.ngrams import words_of
from trustmopd.prompts.quotas import Bucket, Need, apportion, bucket_of, fill, shuffled
from trustmopd.prompts.reading.messages import Messages

#: The paper's wording, the same for every mathematics–code prompt.
DERIVATION = (
    "Alongside your implementation, derive the answer mathematically: state the closed-form expression or recurrence "
    "your algorithm is computing, justify it, and give its complexity. Put the final expression in \\boxed{}."
)
_BETWEEN = "\n\n"
_NAMED = 4  # buckets of a shortage that are named


@dataclass(frozen=True)
class Slot:
    """One prompt to make: its category, how it will be, the block that follows and the row that gives the block."""

    category: str
    wanted: Need
    block: str = ""
    giver: PoolRow | None = None

    @property
    def need(self) -> Need:
        """What is asked of its source row."""
        return replace(self.wanted, length=self.wanted.length.without(len(words_of(self.block))))

    @property
    def cell(self) -> tuple[str, Need]:
        """What a shortage is counted by."""
        return self.category, self.wanted


class Match(NamedTuple):
    """The row that a removed one repeats: where it is from, as pools.math or comparison.aime25, and its id there."""

    source: str
    id: str


@dataclass(frozen=True)
class PromptSet:
    config: DataConfig
    records: list[dict[str, Any]]
    pools: dict[str, Pool]
    comparison: dict[str, Pool]
    screenings: dict[str, Screening[Match]]  # by candidate pool; indices are rows of it


def build(config: DataConfig) -> PromptSet:
    """The prompt set that a config describes: a function of its sources and its seed alone."""
    candidates = config.candidate_pools
    pools = {
        name: read_pool(f"pools.{name}", config.pools[name], answered=name not in candidates)
        for name in config.used_pools
    }
    for name, category in config.categories.items():
        size = len(pools[category.pool].rows)
        if category.count > size:
            raise ValueError(
                f"categories.{name}.count = {category.count}: pool {category.pool!r} has {size} rows, short by "
                f"{category.count - size}. Lower the count, or add rows to the pool."
            )
    comparison = {name: read_pool(f"comparison.{name}", source) for name, source in config.compared.items()}
    screenings = _screen(config, pools, comparison)
    slots = [slot for name, category in config.categories.items() for slot in _slots(config, name, category, pools)]
    rows = _choose(config, slots, pools, screenings)
    records = [_record(config.categories[slot.category], slot, row) for slot, row in zip(slots, rows, strict=True)]
    return PromptSet(config, records, pools, comparison, screenings)


def _screen(config: DataConfig, pools: dict[str, Pool], comparison: dict[str, Pool]) -> dict[str, Screening[Match]]:
    """All candidate pools in one pass, in the order of the config: a later pool repeats nothing of an earlier one."""
    rows = [(name, number, row) for name in config.candidate_pools for number, row in enumerate(pools[name].rows)]
    others = [(f"comparison.{name}", row) for name, pool in comparison.items() for row in pool.rows]
    screened = decontaminate(
        [row.text for _, _, row in rows],
        [row.text for _, row in others],
        parents=[row.parent for _, _, row in rows],
        **config.decontamination.model_dump(),
    )
    screenings = {name: Screening[Match]([], []) for name in config.candidate_pools}
    for index in screened.kept:
        name, number, _ = rows[index]
        screenings[name].kept.append(number)
    for index, rule, text, similarity, matched in screened.removed:
        name, number, _ = rows[index]
        source, row = others[matched] if rule.startswith("cross") else (f"pools.{rows[matched][0]}", rows[matched][2])
        screenings[name].removed.append(Removal(number, rule, text, similarity, Match(source, row.source_id)))
    return screenings


def _slots(config: DataConfig, name: str, category: Category, pools: dict[str, Pool]) -> Iterator[Slot]:
    """The slots of one category, with what each asks of its row."""
    if category.blocks:
        for giver, length in _givers(config, name, category, pools[category.blocks]):
            yield Slot(name, Need(length=length), giver.block or "", giver)
        return
    cells = Counter([Need()])
    if category.like:
        cells = Counter(_cell(row, config) for row in pools[category.like].rows)
    for wanted, count in apportion(category.count, cells).items():
        yield from [Slot(name, wanted, DERIVATION if category.derivation else "")] * count


def _cell(row: PoolRow, config: DataConfig) -> Need:
    return Need(len(row.constraints), bucket_of(row.words, config.length_edges))


def _givers(config: DataConfig, name: str, category: Category, pool: Pool) -> Iterator[tuple[PoolRow, Bucket]]:
    """The rows whose blocks are copied, in the proportions that are asked for, and how long each composed prompt is to
    be."""
    donors = pool.donors
    if category.count > len(donors):
        raise ValueError(
            f"category {name!r} needs {category.count} constraint blocks, and pool {category.blocks!r} has "
            f"{len(donors)}: short by {category.count - len(donors)} ({len(pool.rows) - len(donors)} of its rows have "
            "no block). Lower the count, or look at the pool's block_after or columns.block."
        )
    cells: dict[Need, list[PoolRow]] = {}
    for row in shuffled(donors, config.seed, f"blocks/{name}", (row.source_id for row in donors)):
        cells.setdefault(_cell(row, config) if category.like else Need(), []).append(row)
    for cell, share in apportion(category.count, {cell: len(rows) for cell, rows in cells.items()}).items():
        yield from ((row, cell.length) for row in cells[cell][:share])


def _choose(
    config: DataConfig, slots: list[Slot], pools: dict[str, Pool], screenings: dict[str, Screening[Match]]
) -> list[PoolRow]:
    """A row for each slot: all categories of a pool choose together, so that none takes what another needs."""
    chosen: dict[int, PoolRow] = {}
    short: Counter[tuple[str, Need]] = Counter()
    for name in config.candidate_pools:
        rows = [pools[name].rows[number] for number in screenings[name].kept]
        rows = shuffled(rows, config.seed, f"rows/{name}", (row.source_id for row in rows))
        asking = [number for number, slot in enumerate(slots) if config.categories[slot.category].pool == name]
        filled = fill([slots[number].need for number in asking], [(row.words, len(row.constraints)) for row in rows])
        for number, row in zip(asking, filled, strict=True):
            if row is None:
                short[slots[number].cell] += 1
            else:
                chosen[number] = rows[row]
    if short:
        raise ValueError(_shortage(config, slots, pools, screenings, short))
    return [chosen[number] for number in range(len(slots))]


def _shortage(
    config: DataConfig,
    slots: list[Slot],
    pools: dict[str, Pool],
    screenings: dict[str, Screening[Match]],
    short: Counter[tuple[str, Need]],
) -> str:
    wanted = Counter(slot.cell for slot in slots)
    lines = []
    for cell, missing in short.most_common(_NAMED):
        category, need = cell
        composed = need.length != Bucket() and any(slot.block for slot in slots if slot.cell == cell)
        together = " of problem and block together" if composed else ""
        lines.append(
            f"{category!r}, {need}{together}: {wanted[cell]} wanted of pool {config.categories[category].pool!r}, "
            f"short by {missing}"
        )
    asked = Counter(config.categories[slot.category].pool for slot in slots)
    lacking = sorted({config.categories[category].pool for category, _ in short})
    sizes = ", ".join(f"{asked[pool]} of the {len(screenings[pool].kept)} in {pool!r}" for pool in lacking)
    screened = "".join(_screened(pool, pools[pool], screenings[pool]) for pool in lacking)
    more = f"; and {len(short) - _NAMED} more buckets" if len(short) > _NAMED else ""
    less = "match wider buckets (`length_edges`), " if any(need.length != Bucket() for _, need in short) else ""
    return (
        f"the quotas cannot be filled: {'; '.join(lines)}{more} (all categories together ask for {sizes}). "
        f"{screened}Lower a count, {less}or add rows to the pool."
    )


def _screened(name: str, pool: Pool, screening: Screening[Match]) -> str:
    if not screening.removed:
        return ""
    first = screening.removed[0]
    rules = ", ".join(f"{rule} {count}" for rule, count in screening.counts.items() if count)
    return (
        f"{len(screening.removed)} of the {len(pool.rows)} rows of {name!r} were removed by screening ({rules}), the "
        f"first id {pool.rows[first.index].source_id!r}, which matched {first.matched_text[:60]!r} "
        f"({first.matched.source}, id {first.matched.id!r}). "
    )


def _record(category: Category, slot: Slot, row: PoolRow) -> dict[str, Any]:
    giver = slot.giver
    constraints = (*row.constraints, *(giver.constraints if giver else ()))
    return {
        "id": f"{slot.category}/{row.source_id}",
        "prompt": with_block(row.messages, slot.block) if slot.block else row.messages,
        "domain": category.capabilities[0] if len(category.capabilities) == 1 else None,
        "capabilities": category.capabilities,
        "source": row.source,
        "source_id": row.source_id,
        "constraints": [constraint._asdict() for constraint in constraints],
        "block_source": giver.source if giver else None,
        "block_source_id": giver.source_id if giver else None,
    }


def with_block(messages: Messages, block: str) -> Messages:
    """The prompt with a block below the user's last message."""
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    composed = [dict(message) for message in messages]
    composed[last]["content"] += _BETWEEN + block
    return composed
