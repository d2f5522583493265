"""From a config to a prompt set: read the pools, screen them, fill the quotas, compose. A composed prompt is a source
problem followed by a constraint block, copied verbatim, or by the one derivation block."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Slot:
    """One prompt to make: its category, what it needs of a source row, how long it will be, the block that follows
    and the row that gives the block."""

    category: str
    need: Need
    length: Bucket
    block: str | None = None
    giver: PoolRow | None = None

    @property
    def cell(self) -> tuple[str, int | None, Bucket]:
        """What a shortage is counted by."""
        return self.category, self.need.constraints, self.length


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


def build(config: DataConfig, *, progress: bool = False) -> PromptSet:
    """The prompt set that a config describes: a function of its sources and its seed alone."""
    candidates = config.candidate_pools
    pools = {
        name: read_pool(f"pools.{name}", config.pools[name], answered=name not in candidates, progress=progress)
        for name in config.used_pools
    }
    for name, category in config.categories.items():
        size = len(pools[category.pool].rows)
        if category.count > size:
            raise ValueError(
                f"categories.{name}.count = {category.count}: pool {category.pool!r} has {size} rows, short by "
                f"{category.count - size}. Lower the count, or add rows to the pool."
            )
    comparison = {
        name: read_pool(f"comparison.{name}", source, progress=progress) for name, source in config.compared.items()
    }
    screenings = _screen(config, pools, comparison, progress)
    slots = [slot for name, category in config.categories.items() for slot in _slots(config, name, category, pools)]
    rows = _choose(config, slots, pools, screenings)
    records = [_record(config.categories[slot.category], slot, row) for slot, row in zip(slots, rows, strict=True)]
    return PromptSet(config, records, pools, comparison, screenings)


def _screen(
    config: DataConfig, pools: dict[str, Pool], comparison: dict[str, Pool], progress: bool
) -> dict[str, Screening[Match]]:
    """All candidate pools in one pass, in the order of the config: a later pool repeats nothing of an earlier one."""
    how = config.decontamination
    rows = [(name, number, row) for name in config.candidate_pools for number, row in enumerate(pools[name].rows)]
    others = [(f"comparison.{name}", row) for name, pool in comparison.items() for row in pool.rows]
    screened = decontaminate(
        [row.text for _, _, row in rows],
        [row.text for _, row in others],
        parents=[row.parent for _, _, row in rows],
        ngram=how.ngram,
        threshold=how.threshold,
        within=how.within,
        progress=progress,
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
            block = giver.block or ""
            yield Slot(name, Need(length=length.without(len(words_of(block)))), length, block, giver)
        return
    block_words = len(words_of(DERIVATION)) if category.derivation else 0
    for (constraints, length), count in _cells(category, pools, config.length_edges).items():
        need = Need(constraints, length.without(block_words))
        yield from [Slot(name, need, length, DERIVATION if category.derivation else None)] * count


def _givers(config: DataConfig, name: str, category: Category, pool: Pool) -> Iterator[tuple[PoolRow, Bucket]]:
    """The rows whose blocks are copied, in the proportions that are asked for, and how long each composed prompt is to
    be. A row gives again only when all of its cell have given."""
    donors = pool.donors
    matched = category.match if category.like else []
    by_number, by_length = category.constraints is not None or "constraints" in matched, "length" in matched
    cells: dict[tuple[int | None, Bucket], list[PoolRow]] = {}
    for row in shuffled(donors, config.seed, f"blocks/{name}", (row.source_id for row in donors)):
        length = bucket_of(row.words, config.length_edges) if by_length else Bucket()
        cells.setdefault((len(row.constraints) if by_number else None, length), []).append(row)
    asked = [(None, category.count)] if category.constraints is None else category.constraints.items()
    for number, count in asked:
        if not count:
            continue
        weights = {cell: len(members) for cell, members in cells.items() if number in (None, cell[0])}
        available = sum(weights.values())
        if count > available and not (available and category.reuse_blocks):
            raise ValueError(
                f"category {name!r} needs {count} constraint blocks{_constraints(' with', number)}, and pool "
                f"{category.blocks!r} has {available}: short by {count - available} ({len(pool.rows) - len(donors)} of "
                "its rows have no block). Lower the count, "
                + ("or set reuse_blocks." if available else "or look at the pool's block_after or columns.block.")
            )
        for cell, share in apportion(count, weights).items():
            for turn in range(share):
                yield cells[cell][turn % len(cells[cell])], cell[1]


def _cells(category: Category, pools: dict[str, Pool], edges: list[int]) -> dict[tuple[int | None, Bucket], int]:
    """How many prompts of each number of constraints and length bucket."""
    if category.like is None:
        if category.constraints is None:
            return {(None, Bucket()): category.count}
        return {(number, Bucket()): count for number, count in category.constraints.items()}
    by_number, by_length = ("constraints" in category.match, "length" in category.match)
    matched = Counter(
        (len(row.constraints) if by_number else None, bucket_of(row.words, edges) if by_length else Bucket())
        for row in pools[category.like].rows
    )
    if category.constraints is None:
        return apportion(category.count, matched)
    return {
        (number, length): share
        for number, count in category.constraints.items()
        for (_, length), share in apportion(count, matched).items()
    }


def _choose(
    config: DataConfig, slots: list[Slot], pools: dict[str, Pool], screenings: dict[str, Screening[Match]]
) -> list[PoolRow]:
    """A row for each slot: all categories of a pool choose together, so that none takes what another needs."""
    chosen: dict[int, PoolRow] = {}
    short: Counter[tuple[str, int | None, Bucket]] = Counter()
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
    short: Counter[tuple[str, int | None, Bucket]],
    most: int = 4,
) -> str:
    wanted = Counter(slot.cell for slot in slots)
    lines = []
    for cell, missing in short.most_common(most):
        category, number, length = cell
        together = _together([slot.block for slot in slots if slot.category == category and slot.length == length])
        lines.append(
            f"{category!r}{_constraints(',', number)}, {length}{together if length != Bucket() else ''}: "
            f"{wanted[cell]} wanted of pool {config.categories[category].pool!r}, short by {missing}"
        )
    asked = Counter(config.categories[slot.category].pool for slot in slots)
    lacking = sorted({config.categories[category].pool for category, _, _ in short})
    sizes = ", ".join(f"{asked[pool]} of the {len(screenings[pool].kept)} in {pool!r}" for pool in lacking)
    screened = "".join(_screened(pool, pools[pool], screenings[pool]) for pool in lacking)
    more = f"; and {len(short) - most} more buckets" if len(short) > most else ""
    less = "match less (`match`, `length_edges`), " if any(length != Bucket() for _, _, length in short) else ""
    return (
        f"the quotas cannot be filled: {'; '.join(lines)}{more} (all categories together ask for {sizes}). "
        f"{screened}Lower a count, {less}or add rows to the pool."
    )


def _constraints(before: str, number: int | None) -> str:
    return "" if number is None else f"{before} {number} constraint{'s' * (number != 1)}"


def _together(blocks: Sequence[str | None]) -> str:
    """What the length of a composed prompt counts, and how much of it the blocks take."""
    words = sorted({len(words_of(block)) for block in blocks if block})
    if not words:
        return ""
    span = f"{words[0]} to {words[-1]}" if len(words) > 1 else words[0]
    return f" of problem and block together (the block has {span})"


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
