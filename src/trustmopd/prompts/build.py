"""From a config to a prompt set: read the pools, screen them, fill the quotas, compose."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from trustmopd.prompts.build_config import Category, DataConfig
from trustmopd.prompts.compose import DERIVATION, donors, with_block
from trustmopd.prompts.corpora import Pool, Row, read_pool
from trustmopd.prompts.decontaminate import Screening, decontaminate
from trustmopd.prompts.ngrams import words_of
from trustmopd.prompts.quotas import Bucket, Need, apportion, bucket_of, fill, shuffled


@dataclass(frozen=True)
class Place:
    """One prompt to make: its category, what it needs of a source row, how long it will be, the block that follows
    and the row that gives the block."""

    category: str
    need: Need
    length: Bucket
    block: str | None = None
    giver: Row | None = None


class Match(NamedTuple):
    """The row that a removed one repeats: where it is from, as pools.math or comparison.aime25, and its id there."""

    source: str
    id: str


@dataclass(frozen=True)
class PromptSet:
    config: DataConfig
    records: list[dict[str, Any]]
    categories: list[str]  # of each record
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
    places = [place for name, category in config.categories.items() for place in _places(config, name, category, pools)]
    rows = _choose(config, places, pools, screenings)
    records = [_record(config.categories[place.category], place, row) for place, row in zip(places, rows, strict=True)]
    return PromptSet(config, records, [place.category for place in places], pools, comparison, screenings)


def _screen(
    config: DataConfig, pools: dict[str, Pool], comparison: dict[str, Pool], progress: bool
) -> dict[str, Screening[Match]]:
    """All candidate pools in one pass, in the order of the config: a later pool repeats nothing of an earlier one."""
    rule = config.decontamination
    rows = [(name, place, row) for name in config.candidate_pools for place, row in enumerate(pools[name].rows)]
    others = [(f"comparison.{name}", row) for name, pool in comparison.items() for row in pool.rows]
    found = decontaminate(
        [row.text for _, _, row in rows],
        [row.text for _, row in others],
        parents=[row.parent for _, _, row in rows],
        ngram=rule.ngram,
        threshold=rule.threshold,
        within=rule.within,
        progress=progress,
    )
    screenings = {name: Screening[Match]([], [], []) for name in config.candidate_pools}
    for index in found.kept:
        name, place, _ = rows[index]
        screenings[name].kept.append(place)
    for removal, matched in zip(found.removed, found.matched, strict=True):
        name, place, _ = rows[removal.index]
        screenings[name].removed.append(removal._replace(index=place))
        cross = removal.rule.startswith("cross")
        other, row = others[matched] if cross else (f"pools.{rows[matched][0]}", rows[matched][2])
        screenings[name].matched.append(Match(other, row.source_id))
    return screenings


def _places(config: DataConfig, name: str, category: Category, pools: dict[str, Pool]) -> Iterator[Place]:
    """The places of one category, with what each asks of its row."""
    edges = config.length_edges
    if category.blocks:
        for giver, length in _givers(config, name, category, pools[category.blocks].rows):
            block = giver.block or ""
            yield Place(name, Need(length=length.without(len(words_of(block)))), length, block, giver)
        return
    block_words = len(words_of(DERIVATION)) if category.derivation else 0
    for (constraints, length), count in _cells(category, pools, edges).items():
        need = Need(constraints, length.without(block_words))
        yield from [Place(name, need, length, DERIVATION if category.derivation else None)] * count


def _givers(config: DataConfig, name: str, category: Category, rows: list[Row]) -> Iterator[tuple[Row, Bucket]]:
    """The rows whose blocks are copied, in the proportions that are asked for, and how long each composed prompt is to
    be. A row gives again only when all of its cell have given."""
    without, rows = len(rows), donors(rows)
    without -= len(rows)
    matched = category.match if category.like else []
    by_number, by_length = category.constraints is not None or "constraints" in matched, "length" in matched
    cells: dict[tuple[int | None, Bucket], list[Row]] = {}
    for row in shuffled(rows, config.seed, f"blocks/{name}", (row.source_id for row in rows)):
        length = bucket_of(row.words, config.length_edges) if by_length else Bucket()
        cells.setdefault((len(row.constraints) if by_number else None, length), []).append(row)
    asked = [(None, category.count)] if category.constraints is None else category.constraints.items()
    for number, count in asked:
        if not count:
            continue
        weights = {cell: len(there) for cell, there in cells.items() if number in (None, cell[0])}
        there = sum(weights.values())
        if count > there and not (there and category.reuse_blocks):
            many = "" if number is None else f" with {number} constraint{'s' * (number != 1)}"
            raise ValueError(
                f"category {name!r} needs {count} constraint blocks{many}, and pool {category.blocks!r} has {there}: "
                f"short by {count - there} ({without} of its rows have no block). Lower the count, "
                + ("or set reuse_blocks." if there else "or look at the pool's block_after or columns.block.")
            )
        for cell, share in apportion(count, weights).items():
            for place in range(share):
                yield cells[cell][place % len(cells[cell])], cell[1]


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
    config: DataConfig, places: list[Place], pools: dict[str, Pool], screenings: dict[str, Screening[Match]]
) -> list[Row]:
    """A row for each place: all categories of a pool choose together, so that none takes what another needs."""
    chosen: list[Row | None] = [None] * len(places)
    short: Counter[tuple[str, int | None, Bucket]] = Counter()
    for name in config.candidate_pools:
        rows = [pools[name].rows[place] for place in screenings[name].kept]
        rows = shuffled(rows, config.seed, f"rows/{name}", (row.source_id for row in rows))
        asking = [place for place, each in enumerate(places) if config.categories[each.category].pool == name]
        found = fill([places[place].need for place in asking], [(row.words, len(row.constraints)) for row in rows])
        for place, row in zip(asking, found, strict=True):
            if row is None:
                short[places[place].category, places[place].need.constraints, places[place].length] += 1
            else:
                chosen[place] = rows[row]
    if short:
        raise ValueError(_shortage(config, places, pools, screenings, short))
    return [row for row in chosen if row is not None]


def _shortage(
    config: DataConfig,
    places: list[Place],
    pools: dict[str, Pool],
    screenings: dict[str, Screening[Match]],
    short: Counter[tuple[str, int | None, Bucket]],
    most: int = 4,
) -> str:
    wanted = Counter((place.category, place.need.constraints, place.length) for place in places)
    lines = []
    for key, missing in short.most_common(most):
        category, number, length = key
        many = "" if number is None else f", {number} constraint{'s' * (number != 1)}"
        pool = config.categories[category].pool
        together = _together([place.block for place in places if place.category == category and place.length == length])
        lines.append(
            f"{category!r}{many}, {length}{together if length != Bucket() else ''}: {wanted[key]} wanted of pool "
            f"{pool!r}, short by {missing}"
        )
    asked = Counter(config.categories[place.category].pool for place in places)
    lacking = sorted({config.categories[category].pool for category, _, _ in short})
    sizes = ", ".join(f"{asked[pool]} of the {len(screenings[pool].kept)} in {pool!r}" for pool in lacking)
    screened = "".join(_screened(pool, pools[pool], screenings[pool]) for pool in lacking)
    more = f"; and {len(short) - most} more buckets" if len(short) > most else ""
    less = "match less (`match`, `length_edges`), " if any(length != Bucket() for _, _, length in short) else ""
    return (
        f"the quotas cannot be filled: {'; '.join(lines)}{more} (all categories together ask for {sizes}). "
        f"{screened}Lower a count, {less}or add rows to the pool."
    )


def _together(blocks: list[str | None]) -> str:
    """What the length of a composed prompt counts, and how much of it the blocks take."""
    words = sorted({len(words_of(block)) for block in blocks if block})
    if not words:
        return ""
    span = f"{words[0]} to {words[-1]}" if len(words) > 1 else words[0]
    return f" of problem and block together (the block has {span})"


def _screened(name: str, pool: Pool, found: Screening[Match]) -> str:
    if not found.removed:
        return ""
    first, match = found.removed[0], found.matched[0]
    rules = ", ".join(f"{rule} {count}" for rule, count in found.counts.items() if count)
    return (
        f"{len(found.removed)} of the {len(pool.rows)} rows of {name!r} were removed by screening ({rules}), the first "
        f"id {pool.rows[first.index].source_id!r}, which matched {first.matched_text[:60]!r} "
        f"({match.source}, id {match.id!r}). "
    )


def _record(category: Category, place: Place, row: Row) -> dict[str, Any]:
    giver = place.giver
    constraints = (*row.constraints, *(giver.constraints if giver else ()))
    return {
        "id": f"{place.category}/{row.source_id}",
        "prompt": with_block(row.messages, place.block) if place.block else row.messages,
        "domain": category.capabilities[0] if len(category.capabilities) == 1 else None,
        "capabilities": category.capabilities,
        "source": row.source,
        "source_id": row.source_id,
        "constraints": [constraint._asdict() for constraint in constraints],
        "block_source": giver.source if giver else None,
        "block_source_id": giver.source_id if giver else None,
    }
