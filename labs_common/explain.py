"""A profile in words: what limits each kernel, by stated rules, and what changed since the stage before.

The rules look at Nsight Compute's throughput figures, each a percentage of what the unit could do. The first
rule that holds names the limiter; a figure that is absent fulfils no rule.

==================  ======================================================================================
redundant_loads     LSU >= BUSY and within TIE points of compute, while DRAM <= IDLE: hardly any of what is
                    loaded is new
redundant_work      compute >= BUSY while DRAM <= IDLE: the units are busy, and hardly any new data arrives
dram                DRAM >= FULL
lsu                 load/store instructions >= BUSY, and within TIE points of the whole compute figure
issue               issue slots >= BUSY, and within TIE points of the whole compute figure
compute             compute >= FULL
l1, l2              that cache >= FULL
dram_leaning        DRAM >= BUSY, no other unit above it by more than TIE points
leaning             compute >= BUSY, or a cache: the busiest unit is named
latency             neither compute nor memory reaches BUSY: warps wait, and too few others are ready
unknown             the figures that the rules need are absent
==================  ======================================================================================

A cache's own figure counts only where the memory figure as a whole is BUSY too, or absent: it holds traffic
within the cache (on an H200, between the halves of L2) that Nsight Compute's memory figure leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labs_common import metric_names as names
from labs_common.chart_style import Group, groups, kernel_labels, kernels_of, number, shown_unit
from labs_common.derive import STALL_SHARE, stall_shares
from labs_common.metrics import ABSENT, Metrics, group_launches, one, select, stage_totals, value

BUSY = 60.0  # percent; below it Nsight Compute's own rules speak of latency
FULL = 80.0  # percent; above it they speak of a unit near its peak
IDLE = 10.0  # percent of DRAM throughput: next to nothing
LEANS = 50.0  # percent from which a latency-bound kernel is said to lean on its busiest unit
OFTEN = 20.0  # percent of warp samples from which a second reason to wait is told
TIE = 1.0  # points: two figures that close are one
SAME_BYTES = 0.05  # share by which DRAM-active cycles may differ and still be the same bytes
REAL = 1.1  # ratio of times from which a difference is real
OCCUPANCY_STEP = 10.0  # points
FEW_WARPS = 50.0  # percent of an SM's warps
FEW_WAVES = 1.0

_TITLES = {
    "redundant_loads": "LSU-bound on redundant work",
    "redundant_work": "issue-bound on redundant work",
    "dram": "DRAM-bound",
    "lsu": "LSU-bound",
    "issue": "issue-bound",
    "compute": "compute-bound",
    "l1": "bound by the L1 cache",
    "l2": "bound by the L2 cache",
    "dram_leaning": "leaning on DRAM",
    "latency": "latency-bound",
    "unknown": "not known",
}

# What a warp waits for at Nsight Compute's most frequent stall reasons.
_WAITS = {
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory or a shuffle",
    "lg_throttle": "the queue of global memory instructions",
    "mio_throttle": "the queue of shared memory instructions",
    "math_pipe_throttle": "an arithmetic pipe",
    "barrier": "its block's barrier",
    "wait": "the fixed latency of its last instruction",
    "not_selected": "its turn, though ready",
    "no_instructions": "instructions from the cache",
    "imc_miss": "constants",
    "drain": "its last stores",
}


@dataclass(frozen=True)
class Evidence:
    """One figure that a statement rests on: canonical metric, value in its base unit."""

    metric: str
    value: float
    unit: str

    def __str__(self) -> str:
        unit, factor = shown_unit(self.unit)
        return f"{names.label(self.metric)} {number(self.value / factor)} {unit}".rstrip()


@dataclass(frozen=True)
class Limiter:
    """What limits a kernel: one of the module's rules, in words, with its evidence."""

    kernel: str
    rule: str
    title: str  # the rule as an adjective, such as "DRAM-bound"
    sentence: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Change:
    """What changed since an earlier stage: a kind, the stage it is compared with, and a sentence.

    Kinds: faster, slower, same_time, same_bytes, lower_occupancy_yet_faster, registers, limiter, merge.
    """

    kind: str
    since: str
    sentence: str


@dataclass(frozen=True)
class Explanation:
    """One stage of one group of figures (GPU, source, tool, problem) in words."""

    stage: str
    group: Group
    limiters: tuple[Limiter, ...]
    changes: tuple[Change, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it, the limiters first."""
        return (
            *(limiter.sentence for limiter in self.limiters),
            *(change.sentence for change in self.changes),
        )

    def __str__(self) -> str:
        return f"{self.stage or 'kernels'} ({self.group.label}): " + " ".join(self.sentences)


def explain(frame: Metrics) -> list[Explanation]:
    """What limits every kernel of a table, and what changed from stage to stage of the same group.

    Several launches of a kernel are grouped first (`group_launches`). Groups are never compared with each
    other.

    Raises:
        MetricsError: no kernel.
    """
    whole = group_launches(select(frame, line=None))
    explained = []
    for group in groups(whole[whole["kernel"] != ""]):
        mine = select(whole, **group.where)
        labels = dict(zip(kernels_of(mine), kernel_labels(kernels_of(mine)), strict=True))
        before: list[Explanation] = []
        for stage in dict.fromkeys(s for s, _ in labels):
            rows = select(mine, stage=stage)
            limiters = tuple(
                limiter_of(select(rows, kernel=kernel), label.replace("\n", " "))
                for (of, kernel), label in labels.items()
                if of == stage
            )
            changes = tuple(_changes(mine, stage, limiters, before)) if stage else ()
            before.append(Explanation(stage, group, limiters, changes))
        explained += before
    return explained


def limiter_of(rows: Metrics, label: str = "") -> Limiter:
    """What limits one kernel, from its whole-kernel rows.

    Args:
        rows: one kernel, one launch or grouped launches.
        label: what the sentence calls it; by default its name.
    """
    kernel = str(rows["kernel"].iloc[0])
    figures = {
        "compute": names.COMPUTE_PCT,
        "memory": names.MEMORY_PCT,
        "DRAM": names.DRAM_PCT,
        "LSU": names.LSU_PCT,
        "issue": names.ISSUE_PCT,
        "L1": names.L1_PCT,
        "L2": names.L2_PCT,
    }
    v = {short: value(rows, metric) for short, metric in figures.items()}
    rule = _rule(v)
    used = {
        "redundant_loads": ("LSU", "compute", "DRAM"),
        "redundant_work": ("compute", "DRAM"),
        "dram": ("DRAM", "compute"),
        "lsu": ("LSU", "compute", "DRAM"),
        "issue": ("issue", "compute", "DRAM"),
        "compute": ("compute", "DRAM"),
        "l1": ("L1", "DRAM"),
        "l2": ("L2", "DRAM"),
        "dram_leaning": ("DRAM", "compute"),
        "leaning": ("compute", "L1", "L2", "DRAM"),
        "latency": ("compute", "memory", "DRAM"),
        "unknown": (),
    }[rule]
    evidence = [Evidence(figures[s], v[s], "%") for s in used if v[s] == v[s]]
    name = label or kernel
    if rule == "unknown":
        missing = [s for s in ("compute", "DRAM") if v[s] != v[s]]
        row = one(rows, figures[missing[0]])
        reason = ABSENT if row is None else row["reason"]
        return Limiter(
            kernel,
            rule,
            _TITLES[rule],
            f"{name}: the limiter is not known, {missing[0]} throughput: {reason}.",
            (),
        )
    busiest, share = _busiest(v)
    title = f"leaning on {busiest}" if rule == "leaning" else _TITLES[rule]
    sentence = f"{name} is {title}" + _detail(rule, v)
    if rule == "latency" and share >= LEANS:
        sentence = f"{name} is {title}, leaning on {busiest} ({number(share)} %)" + _detail(rule, v)
    if rule in ("latency", "leaning"):
        more = list(_waiting(rows))
        evidence += [e for e, _ in more]
        sentence += "".join(f"; {text}" for _, text in more)
    return Limiter(kernel, rule, title, sentence + f" ({', '.join(map(str, evidence))}).", tuple(evidence))


def _rule(v: dict[str, float]) -> str:
    if v["compute"] != v["compute"] or v["DRAM"] != v["DRAM"]:
        return "unknown"
    caches = {} if v["memory"] < BUSY else {"l1": v["L1"], "l2": v["L2"]}
    full_cache = next((name for name, amount in caches.items() if amount >= FULL), None)
    busiest = max(x for x in (v["compute"], v["DRAM"], *caches.values()) if x == x)
    loads = v["LSU"] >= BUSY and v["LSU"] >= v["compute"] - TIE
    if v["compute"] >= BUSY and v["DRAM"] <= IDLE:
        return "redundant_loads" if loads else "redundant_work"
    if v["DRAM"] >= FULL:
        return "dram"
    if loads:
        return "lsu"
    if v["issue"] >= BUSY and v["issue"] >= v["compute"] - TIE:
        return "issue"
    if v["compute"] >= FULL:
        return "compute"
    if full_cache:
        return full_cache
    if v["DRAM"] >= BUSY and v["DRAM"] >= busiest - TIE:
        return "dram_leaning"
    return "leaning" if busiest >= BUSY else "latency"


def _busiest(v: dict[str, float]) -> tuple[str, float]:
    """The unit with the highest figure, and that figure."""
    units = {"compute": v["compute"], "the L1 cache": v["L1"], "the L2 cache": v["L2"], "DRAM": v["DRAM"]}
    name = max((unit for unit, amount in units.items() if amount == amount), key=lambda unit: units[unit])
    return name, units[name]


def _detail(rule: str, v: dict[str, float]) -> str:
    return {
        "redundant_loads": ": it loads all the time while DRAM stands nearly idle: most loads are repeated",
        "redundant_work": ": its units are busy while DRAM stands nearly idle: most work is repeated",
        "dram": ": memory delivers nearly what it can; only fewer bytes or better hidden latency can help",
        "lsu": ": load and store instructions are its busiest pipe, ahead of arithmetic and of DRAM",
        "issue": ": its schedulers are busier than any pipe or DRAM; fewer instructions a byte would help",
        "compute": ": its arithmetic units are near their peak",
        "l1": ": that cache is near its peak while DRAM is not",
        "l2": ": that cache is near its peak while DRAM is not",
        "dram_leaning": f": DRAM is its busiest unit, {number(FULL - v['DRAM'])} points below full",
        "leaning": ": busy, but not full",
        "latency": f": neither compute nor memory reaches {number(BUSY)} % of its peak; warps mostly wait",
    }[rule]


def _waiting(rows: Metrics) -> Iterator[tuple[Evidence, str]]:
    """What a kernel that fills no unit waits for, as far as the profile tells."""
    waves = value(rows, names.WAVES)
    if waves < FEW_WAVES:
        yield Evidence(names.WAVES, waves, ""), "its grid does not fill the GPU once"
    theoretical, achieved = (value(rows, m) for m in (names.THEORETICAL_OCCUPANCY, names.ACHIEVED_OCCUPANCY))
    if theoretical <= FEW_WARPS:
        yield Evidence(names.THEORETICAL_OCCUPANCY, theoretical, "%"), "at most half of the SM's warps fit"
    if achieved < FEW_WARPS:
        yield Evidence(names.ACHIEVED_OCCUPANCY, achieved, "%"), "few warps are there to hide the waiting"
    shares = rows[rows["metric"].str.startswith(STALL_SHARE)]
    if shares.empty:
        shares = stall_shares(rows)
    waiting = shares[shares["metric"] != f"{STALL_SHARE}selected"].sort_values("value", ascending=False)
    for rank, row in enumerate(waiting.head(2).itertuples()):
        if rank == 0 or row.value >= OFTEN:
            reason = str(row.metric).removeprefix(STALL_SHARE)
            what = _WAITS.get(reason, reason.replace("_", " "))
            text = f"its warps wait most often for {what}" if rank == 0 else f"then for {what}"
            yield Evidence(str(row.metric), float(row.value), "%"), text


def _changes(
    frame: Metrics, stage: str, limiters: tuple[Limiter, ...], before: list[Explanation]
) -> Iterator[Change]:
    totals = stage_totals(select(frame, metric=[names.TIME, names.DRAM_ACTIVE_CYCLES, names.DRAM_PCT]))
    yield from _merge_share(frame, stage, limiters)
    if not before:
        return
    previous = before[-1].stage
    here, there = (select(totals, stage=s) for s in (stage, previous))
    ratio = value(there, names.TIME) / value(here, names.TIME)
    if ratio == ratio:
        yield _time_change(ratio, previous)
    yield from _same_bytes(totals, stage, [b.stage for b in before])
    occupancy = [_main(frame, s, names.ACHIEVED_OCCUPANCY) for s in (previous, stage)]
    if ratio >= REAL and occupancy[0] - occupancy[1] >= OCCUPANCY_STEP:
        text = (
            f"It is faster at lower occupancy: {number(occupancy[0])} to {number(occupancy[1])} % achieved."
        )
        yield Change("lower_occupancy_yet_faster", previous, text)
    registers = [_main(frame, s, names.REGISTERS) for s in (previous, stage)]
    if registers[0] == registers[0] and registers[1] == registers[1] and registers[0] != registers[1]:
        text = f"Registers per thread go from {number(registers[0])} to {number(registers[1])}."
        yield Change("registers", previous, text)
    rules = [before[-1].limiters[0], limiters[0]]
    if rules[0].rule != rules[1].rule and "unknown" not in (rules[0].rule, rules[1].rule):
        text = f"The limiter moves: {rules[0].title} before, {rules[1].title} now."
        yield Change("limiter", previous, text)


def _main(frame: Metrics, stage: str, metric: str) -> float:
    """A metric of the stage's first kernel, the one that does its work."""
    rows = select(frame, stage=stage)
    return value(rows, metric, kernel=rows["kernel"].iloc[0])


def _time_change(ratio: float, previous: str) -> Change:
    if ratio >= REAL:
        return Change(
            "faster", previous, f"It takes {number(ratio)} times less time than {previous} in this profile."
        )
    if ratio <= 1 / REAL:
        return Change("slower", previous, f"It takes {number(1 / ratio)} times as long as {previous}.")
    text = (
        f"Its time is that of {previous} within a factor of {number(REAL)}, too near for one profile to tell."
    )
    return Change("same_time", previous, text)


def _same_bytes(totals: Metrics, stage: str, earlier: list[str]) -> Iterator[Change]:
    """Whether the same DRAM activity took less time than in the last stage before that has the figure."""
    here = select(totals, stage=stage)
    cycles, time = value(here, names.DRAM_ACTIVE_CYCLES), value(here, names.TIME)
    for other in reversed(earlier):
        there = select(totals, stage=other)
        before, time_before = value(there, names.DRAM_ACTIVE_CYCLES), value(there, names.TIME)
        if before != before:
            continue
        if abs(cycles / before - 1) <= SAME_BYTES and time_before / time >= REAL:
            shares = [value(side, names.DRAM_PCT) for side in (there, here)]
            text = (
                f"The same bytes in less time: {number(cycles / 1e6)} million DRAM-active cycles, as in "
                f"{other} ({number(before / 1e6)} million), in {number(time_before / time)} times less time"
            )
            if shares[0] == shares[0] and shares[1] == shares[1]:
                text += (
                    f", so DRAM throughput of the whole stage goes from {number(shares[0])} to "
                    f"{number(shares[1])} %"
                )
            yield Change("same_bytes", other, text + ".")
        return


def _merge_share(frame: Metrics, stage: str, limiters: tuple[Limiter, ...]) -> Iterator[Change]:
    if len(limiters) < 2:
        return
    rows = select(frame, stage=stage)
    times = [value(rows, names.TIME, kernel=limiter.kernel) for limiter in limiters]
    if all(t == t for t in times):
        share = 100 * sum(times[1:]) / sum(times)
        text = f"Its second kernel takes {number(share)} % of the stage's {number(sum(times) / 1e6)} ms."
        yield Change("merge", stage, text)


def explain_text(frame: Metrics) -> str:
    """`explain` as text, a paragraph for each stage and group."""
    return "\n\n".join(map(str, explain(frame)))
