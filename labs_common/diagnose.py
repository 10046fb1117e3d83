"""Names what is wrong with a kernel: what the checks found, a known fault, or where its output is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labs_common.engines import POISON, Engine, SimulatorEngine, unwritten
from labs_common.fault_model import RIGHT, SLACK, Case, Modelled, fits, work_of
from labs_common.faults import FAULTS, Fault, probe_models
from labs_common.plans import Device, Plan
from labs_common.probes import WEIGHTS, Probe, probes_of
from labs_common.problem import Problem
from labs_common.simt.errors import Fault as EngineFault
from labs_common.simt.errors import Finding, LaunchError, SimulationError
from labs_common.source import CutError, Source, regions
from labs_common.stages import Stage

# Where each topic shows in a kernel's text; the first match after the kernel's signature is named.
_LOOK = {
    "pages": r"\bvalid\s*=|<\s*context\b|<\s*valid\b|\bcontext\b.*page_size",
    "heads": r"\bkv_head\s*=|group_size",
    "scores": r"warp_sum\s*\(|transpose_sum\s*<|\bscore(\[\w+\])?\s*[+*]?=(?!\s*0)",
    "softmax": r"exp2?f?\s*\(",
    "splits": r"splits",
    "merge": r"exp2?f?\s*\(",
}
_ATTEND = r"\battend\s*\("  # where a header has the arithmetic
_RING = r"\bPageRing\s*<"  # which is told for which key/value head it copies
# Where there is no such line of the author's own: where addresses are made.
_LOOK_ELSE = {
    "pages": rf"cache_offset\s*\(|(key|value)_cache|{_RING}",
    "heads": r"cache_offset\s*\(|head",
    "scores": _ATTEND,
    "softmax": _ATTEND,
    "merge": r"partials\.part\s*\[.*=(?!=)",  # the pair that the merge weighs by
}
_TABLE = r"physical_page\s*\(|block_tables"
_LOOK_FAULT = {
    **dict.fromkeys(
        (
            "table_ignored",
            "table_taken_as_contiguous",
            "table_of_sequence_0",
            "first_page_repeated",
            "pages_reversed",
        ),
        _TABLE,
    ),
    **dict.fromkeys(("heads_before_slots", "slot_0_repeated"), r"cache_offset\s*\(|key_cache"),
    **dict.fromkeys(
        ("keys_and_values_swapped", "keys_from_values"), r"(key|value)_cache|copy_(keys|values)\s*<"
    ),
    "values_from_keys": r"\bvalue\w*\b.*_cache|value_cache|copy_values\s*<",
    "length_of_sequence_0": r"context_lengths",
    "query_of_group_first": r"query_offset\s*\(",
    "query_of_sequence_0": r"query_offset\s*\(",
    "unscaled": rf"\bscore(\[\w+\])?\s*\*?=(?!\s*0)|{_ATTEND}",
    "scaled_twice": rf"problem\.scale|head_dim\b.*score|score.*head_dim|{_ATTEND}",
    **dict.fromkeys(("kv_head_0", "next_kv_head"), rf"\bkv_head\s*=|\bfirst_row\s*\(|{_RING}"),
    "max_starts_at_zero": r"(running_max|running)\s*=",
    "max_not_kept": r"running_max\s*=\s*new_max|fmaxf\s*\(",
    "sum_not_rescaled": r"running_sum\s*[+*]?=(?!\s*0)",
    **dict.fromkeys(
        ("first_chunk_repeated", "neighbouring_chunks"), r"\bchunk\s*=|=.*(keys|key_shared)\s*\["
    ),
    "first_chunk_of_keys_repeated": r"=.*(keys|key_shared)\s*\[",
    "first_chunk_of_values_repeated": r"=.*(values|value_shared)\s*\[|, value\[",
    "first_chunk_of_values_only": r"accumulator\[",
    "first_tile_repeated": r"cache_offset\s*\(",
    "tiles_not_rescaled": r"weighted\[\w+\]\[\w+\]\s*[+*]?=",
    **dict.fromkeys(
        ("tile_sums_not_rescaled", "tiles_rescale_nothing"), r"\bsum(\[\w+\])?\s*[+*]?=|combine\s*\("
    ),
    "weights_by_tile_maximum": r"exp2?f?\s*\(\s*(score|weight)\b",
    "tail_in_maximum": r"-INFINITY|fmaxf\s*\(",
    "weights_not_turned": r"\bpack\s*\(",
    "values_not_turned": r"load_matrices\s*<\s*\w+\s*>\s*\(\s*value",
    "keys_turned": r"load_matrices\s*<\s*\w+\s*>\s*\(\s*key",
    **dict.fromkeys(("keys_in_order", "tiles_in_order"), r"load_\w+\s*<\s*\w+\s*>\s*\(\s*key"),
    "values_in_order": r"load_\w+\s*<\s*\w+\s*>\s*\(\s*value",
    **dict.fromkeys(
        ("tail_not_masked", "tail_mask_off_by_one", "last_token_of_parts_skipped"),
        r"\bvalid\s*=|\battend\s*\(",
    ),
    **dict.fromkeys(
        ("combine_adds_sums", "combine_scales_nothing", "combine_scales_sums_only"),
        r"scale_a|fmaxf\s*\(|\.sum\b",
    ),
    "accumulator_not_rescaled": r"accumulator(\[\w+\])?\s*[+*]?=(?!\s*(0|zero))",
    **dict.fromkeys(("sum_not_divided", "empty_context"), r"/\s*running_sum|1\.0f\s*/|inverse\s*=|output\["),
    **dict.fromkeys(("splits_overlap", "split_one_page_short"), r"pages_per_split|last_page"),
    "split_rounded_down": r"/\s*splits|pages_per_split",
    "divided_in_the_split": r"partials\.(output|values)",
    **dict.fromkeys(
        ("merge_adds_unweighted", "merge_adds_sums_unweighted", "merge_adds_values_unweighted"),
        r"\bweight\s*=|running_sum\s*[+*]?=(?!\s*0)",
    ),
}
_NO_ANSWER = "There is no answer yet"
_SIZES = {
    "head_dim": "head_dim",
    "group_size": "the number of query heads to a key/value head",
    "page_size": "the number of tokens in a page",
}
_ONLY_THERE = {
    "extreme": "scores are as far from 0 as 160 and -160",
    "long": "a warp has several tiles of a partition or segment, and a block goes on to another segment",
    "long of segments": "several warps share the tokens of a segment, a warp has several tiles of it, and a "
    "block goes on to another segment",
    "poisoned": "what does not belong to the problem is NaN, such as slots past the end: it is read",
}
_IN_MERGE = {"sum_not_divided", "empty_context"}
_IN_FIRST_KERNEL = {"divided_in_the_split"}

_REMEDIES = {
    "racecheck": "Two warps use the same word of shared memory with no barrier between them, and one writes. "
    "A __syncthreads() is missing: after writing what others read, or before writing over it again",
    "ring": "Two warps use the same place of a ring. Either the rings overlap (a warp's begins at "
    "warp * RING_SLOTS * TILE_CHUNKS), or a __syncthreads() is missing before something takes their place",
    "initcheck": "Memory is read that nobody has written",
    "partials": "Partial results are read that nobody has written: they are not written, or into other rows "
    "than the merge reads",
    "shared": "Shared memory is read where nobody has stored or copied anything: it is another tile's or "
    "another warp's place, or who copies walks over tiles and warps in another way than who reads",
    "wait": "Either nothing waits for that copy before its place is used, or the copy was started too early, "
    "into a place still in use: in a ring, released before its tile was used",
    "memcheck": "The kernel leaves its arrays",
    "synccheck": "Threads that must come together do not: some of them skip a barrier or a warp exchange",
}


_SCRATCH = ("(part)", "(values)")  # the arrays of partial results, as a finding names them
_WRITES_PARTIAL = re.compile(r"partials\.(part|values)\s*\[.*=(?!=)|\bwrite_partials\s*\(")
_MISALIGNED = "The address of an access is a multiple of its size: 16 bytes for a float4 or uint4"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a kernel, for a person.

    Attributes:
        fault: name of a fault in ``faults.FAULTS``, or of the check that found something; None for a wrong
            output that no known fault gives.
        topic: part of the computation, one of ``faults.TOPICS``; None where unknown.
        sentence: all of it in words.
        problem: name of the problem that batch, head and page belong to; None where there is no output.
        batch, head: the first wrong sequence and query head; None where unknown.
        page: first logical page that is read wrongly; None where no page is, or unknown.
        line: of the kernel's file, where to look; None where unknown.
    """

    fault: str | None
    topic: str | None
    sentence: str
    problem: str | None = None
    batch: int | None = None
    head: int | None = None
    page: int | None = None
    line: int | None = None

    def __str__(self) -> str:
        return self.sentence


def run_probes(
    source: Source, stage: Stage, engine: Engine
) -> tuple[dict[str, np.ndarray], tuple[Finding, ...]]:
    """Run a kernel on every probe that its stage takes.

    Returns:
        The outputs by probe, without those of probes it did not finish; and all that the checks found.
    """
    if stage.fixes_shapes and isinstance(engine, SimulatorEngine):
        engine = engine.interpreting()
    outputs: dict[str, np.ndarray] = {}
    findings: list[Finding] = []
    for probe in probes_of(stage, engine.device).values():
        plan = probe.plan(stage, engine.device)
        try:
            outcome = engine.run(stage, probe.problem, probe.inputs(), source, plan, metrics=False)
        except EngineFault as error:
            findings.append(error.finding.reworded(source.readable))
        except (LaunchError, SimulationError):
            continue
        else:
            outputs[probe.name] = outcome.output
            findings += [finding.reworded(source.readable) for finding in outcome.findings]
    return outputs, tuple(findings)


def no_answer(diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis says that there is nothing yet to be judged."""
    return diagnosis.sentence.startswith(_NO_ANSWER)


def diagnose_kernel(
    source: Source,
    stage: Stage,
    engine: Engine,
    findings: Sequence[Finding] = (),
    answered: bool = False,
) -> Diagnosis | None:
    """Run a kernel on the probes and name what is wrong with it.

    Args:
        source: the kernel.
        stage: in whose place it runs.
        engine: where it runs.
        findings: what the checks have found already; they come first.
        answered: whether some other problem's output has numbers, so that there is an answer.

    Returns:
        None where nothing is wrong on any probe.
    """
    outputs, more = run_probes(source, stage, engine)
    found = diagnose(outputs, stage, engine.device, source)
    findings = (*findings, *more)
    if found and no_answer(found) and answered:
        begin = "In the small problems of the diagnosis there is no answer, though elsewhere there is one"
        found = replace(found, sentence=found.sentence.replace(_NO_ANSWER, begin, 1))
    if found and no_answer(found) and {one.tool for one in findings} == {"initcheck"}:
        return found  # a merge that reads what nobody has written yet says no more than that
    return _after_finding(findings[0], found, source, stage) if findings else found


def diagnose(
    outputs: Mapping[str, np.ndarray],
    stage: Stage,
    device: Device | None = None,
    source: Source | None = None,
) -> Diagnosis | None:
    """Name the fault that gives these outputs.

    A fault is named only if the outputs of all probes are those of its model, and of no other fault's.
    Anything else is described by what is seen: which sequences, heads and dimensions, which tokens.

    Args:
        outputs: by the name of the probe, ``[batch, query_heads, head_dim]``.
        stage: whose kernel it is; its plan says how work is cut.
        device: that the plans are for.
        source: the kernel's text, for the line.

    Returns:
        None where all outputs are right.
    """
    models = probe_models(stage, device)
    wrong = [name for name, output in outputs.items() if not fits(output, models[name]["right"])]
    if not wrong:
        return None
    probes = probes_of(stage, device)
    probe = next(probe for probe in probes.values() if probe.name in wrong)
    explains = [
        fault
        for fault in FAULTS
        if fault.name in models[probe.name]
        and all(fits(output, models[name][fault.name]) for name, output in outputs.items())
    ]
    right, output = models[probe.name]["right"], np.asarray(outputs[probe.name], np.float64)
    if len(explains) != 1:
        return _pattern(outputs, models, probe, probes, explains, stage, device)
    fault = explains[0]
    case = Case(probe.problem, probe.inputs(), work_of(probe.problem, probe.plan(stage, device)))
    batch, head = _first_wrong(output, right)
    page = _first_page(case, fault, batch)
    place = f"batch {batch}, head {head}"
    if page is not None:
        table = case.inputs.block_tables[batch]
        place += f", page {page}"
        if page < probe.problem.pages_per_sequence[batch]:
            place += f" (physical page {table[page]})"
    sentence = (
        f"The output is what comes out when {fault.says}. It shows in {_describe(probe.problem)}: {place}."
    )
    line = _line(fault, source, stage) if source else None
    if line is not None:
        sentence += f" Look at {source.name}, line {line}: {source.text.splitlines()[line - 1].strip()}"
    return Diagnosis(
        fault.name, _topic(fault, source, stage), sentence, probe.problem.name, batch, head, page, line
    )


def _describe(problem: Problem) -> str:
    lengths = ", ".join(str(length) for length in problem.context_lengths)
    return f"“{problem.name}” (contexts of {lengths} tokens, pages of {problem.page_size})"


def _first_wrong(output: np.ndarray, right: Modelled) -> tuple[int, int]:
    rows = _wrong(output, right).any(axis=2)
    batch, head = np.argwhere(rows)[0]
    return int(batch), int(head)


def _wrong(output: np.ndarray, right: Modelled) -> np.ndarray:
    """Which elements are wrong, ``[batch, query_heads, head_dim]`` of bool."""
    size = np.abs(right.output).max(axis=2, keepdims=True)
    with np.errstate(invalid="ignore"):
        return ~(np.abs(output - right.output) <= right.slack * size)


def _first_page(case: Case, fault: Fault, batch: int) -> int | None:
    """First logical page of a sequence that the fault leaves out, adds, or reads from elsewhere."""

    def read(rules) -> dict[int, tuple[int, int]]:
        length = rules.length(case, batch)
        tokens = np.concatenate([np.empty(0, int), *rules.cut(case, length)]).astype(int)
        pages = rules.page(case, batch, tokens // case.problem.page_size, length)
        return dict(
            zip(
                tokens.tolist(),
                zip(pages.tolist(), rules.slot(case, tokens).tolist(), strict=True),
                strict=True,
            )
        )

    right, faulty = read(RIGHT), read(fault.rules)
    length = RIGHT.length(case, batch)
    if fault.rules.tail_rows and length:
        return (length - 1) // case.problem.page_size
    differ = [token for token in right.keys() | faulty.keys() if right.get(token) != faulty.get(token)]
    return min(differ) // case.problem.page_size if differ else None


def _merge_line(lines: Sequence[str], stage: Stage) -> int | None:
    return next((i for i, line in enumerate(lines) if f"{stage.entry}_merge" in line), None)


def _topic(fault: Fault, source: Source | None, stage: Stage) -> str:
    """Part of the computation that a fault is in: what happens at the end is the merge's, if there is one."""
    has_merge = source is not None and _merge_line(_code(source.text), stage) is not None
    return "merge" if has_merge and fault.name in _IN_MERGE else fault.topic


def _given(stage: Stage) -> set[str]:
    """The lines of code that every author is given: what stands outside the solution regions."""
    source = stage.source()
    lines = _code(source.text)
    try:
        spans = regions(source)
    except CutError:
        return set()
    inside = {number for begin, end in spans for number in range(begin, end + 1)}
    return {line.strip() for number, line in enumerate(lines) if number not in inside} if spans else set()


def _line(fault: Fault, source: Source, stage: Stage) -> int | None:
    """Line of the source, from 1, that most likely has a fault; None where nothing looks like it.

    Lines that stand as they were given are not at fault and never named.
    """
    lines = _code(source.text)
    start, end = 0, len(lines)
    merge, given = _merge_line(lines, stage), _given(stage)
    if merge is not None:
        in_merge = (fault.topic == "merge" and fault.name not in _IN_FIRST_KERNEL) or fault.name in _IN_MERGE
        start, end = (merge, end) if in_merge else (0, merge)
    if start == 0:
        start = next((i for i, line in enumerate(lines) if re.search(rf"{stage.entry}\s*\(", line)), 0)
    look_else = _LOOK_ELSE.get(fault.topic)
    on_table = _LOOK_FAULT.get(fault.name) == _TABLE
    by_topic = (look_else, _LOOK[fault.topic]) if on_table else (_LOOK[fault.topic], look_else)
    for pattern in (_LOOK_FAULT.get(fault.name), *by_topic):
        # The kernel first, then the functions before it.
        found = [
            i + 1
            for i in (*range(start, end), *range(start))
            if pattern and re.search(pattern, lines[i]) and lines[i].strip() not in given
        ]
        if found:
            return found[0]
    return None


def _code(text: str) -> list[str]:
    """The lines without comments; as many as before."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)
    return [line.split("//")[0] for line in text.splitlines()]


def diagnose_finding(finding: Finding, source: Source, stage: Stage) -> Diagnosis:
    """What a finding of the checks means, without a run on the probes."""
    return _after_finding(finding, None, source, stage)


def _after_finding(finding: Finding, found: Diagnosis | None, source: Source, stage: Stage) -> Diagnosis:
    """A finding in words, then the fault that the numbers show, if any."""
    sentence = f"{finding}. {_remedy(finding, source)}".rstrip(". ") + "."
    line = _own_line(finding, source)
    places = [line] if line is not None else []
    if _reads_partials(finding):
        given, lines = _given(stage), _code(source.text)
        writes = [
            i for i, one in enumerate(lines, 1) if _WRITES_PARTIAL.search(one) and one.strip() not in given
        ]
        if writes:
            places = [one for one in places if lines[one - 1].strip() not in given] + writes[:1]
            line = places[0]
    texts = source.text.splitlines()
    told = [f"line {one}: {texts[one - 1].strip()}" for one in places]
    if told:
        sentence += f" Look at {source.name}, {', and at '.join(told)}"
    if found is None or found.fault is None:
        return Diagnosis(finding.tool, None, sentence, line=line)
    return Diagnosis(
        found.fault,
        found.topic,
        f"{sentence} {found.sentence}",
        found.problem,
        found.batch,
        found.head,
        found.page,
        line or found.line,
    )


def _remedy(finding: Finding, source: Source) -> str:
    """What a finding means for who wrote the kernel, in the words of the kernel's file."""
    if finding.kind.startswith("Missing wait"):
        return _REMEDIES["wait"]
    if finding.kind.startswith("Uninitialized __shared__"):
        return _REMEDIES["shared"]
    if "misaligned" in finding.message:
        return _MISALIGNED
    if _reads_partials(finding):
        return _REMEDIES["partials"]
    remedy = _REMEDIES.get(finding.tool, "")
    if finding.tool == "racecheck" and Path(finding.file).name == "page_ring.cuh":
        remedy = _REMEDIES["ring"]
    if finding.tool == "memcheck" and (array := re.search(r"\((\w+)\)$", finding.message)):
        remedy += f", the nearest of which is {array[1]}"
    waits = re.search(r"void (wait_for_\w+)\(", source.text)  # a barrier that the file has a name for
    return remedy.replace("__syncthreads()", f"{waits[1]}()") if waits else remedy


def _reads_partials(finding: Finding) -> bool:
    """Whether a merge reads scratch memory that nobody has written: the writes are wrong, not the reads."""
    return finding.kind.startswith("Uninitialized __global__") and finding.message.endswith(_SCRATCH)


def _own_line(finding: Finding, source: Source) -> int | None:
    """The innermost line of a finding within the author's regions, else within the author's file.

    A header's or a helper's line is not the author's; the line that called it is.
    """
    sites = ((finding.file, finding.line), *finding.callers)
    last = source.text.count("\n") + 1  # a file may number its lines by a #line of its own
    own = [line for file, line in sites if 0 < line <= last and Path(file).name == source.name]
    try:
        spans = regions(source)
    except CutError:
        spans = []
    written = (line for line in own if any(begin < line - 1 < end for begin, end in spans))
    return next(written, own[-1] if own else None)


# ---- what is seen, where no known fault fits ---------------------------------------------------------------


def _pattern(
    outputs: Mapping[str, np.ndarray],
    models: Mapping[str, Mapping[str, Modelled]],
    probe: Probe,
    probes: Mapping[str, Probe],
    explains: Sequence[Fault],
    stage: Stage,
    device: Device | None,
) -> Diagnosis:
    """Which sequences, heads, dimensions and tokens are wrong, without a guess at why."""
    output, right = np.asarray(outputs[probe.name], np.float64), models[probe.name]["right"]
    batch, head = _first_wrong(output, right)
    if all(_is_empty(np.asarray(one, np.float64)) for one in outputs.values()):
        begin = _no_answer(outputs, probe, stage, device)
    elif explains:
        begin = f"The output fits {len(explains)} known faults: {'; or '.join(f.says for f in explains)}."
    else:
        begin = "The output is wrong in a way that no single known fault explains."
    seen = [describe_wrong(output, right.output, probe.problem, right.slack)]
    page = None
    if WEIGHTS.name in outputs:
        told, page = _weights_seen(
            probes[WEIGHTS.name].problem,
            np.asarray(outputs[WEIGHTS.name], np.float64),
            models[WEIGHTS.name]["right"],
        )
        if told and probe.name != WEIGHTS.name:
            told[0] = f"in “{probes[WEIGHTS.name].problem.name}” {told[0]}"
        seen += told
    seen += by_cuts(probe.problem, probe.plan(stage, device), np.asarray(outputs[probe.name]), right)
    fine = [
        p for p in probes.values() if p.name in outputs and fits(outputs[p.name], models[p.name]["right"])
    ]
    if fine:
        seen.append(f"right in {', '.join(f'“{p.problem.name}”' for p in fine)}")
    sentence = f"{begin} Seen: {'; '.join(seen)}."
    if fine and len(fine) == len(outputs) - 1:
        sentence += _set_apart(probe, fine, stage, device)
    return Diagnosis(None, None, sentence, probe.problem.name, batch, head, page)


def kinds_of_sequences(problem: Problem, plan: Plan) -> list[str]:
    """Of each sequence whether the plan leaves it whole, cuts it, or has nothing for it as it is empty."""
    segments = plan.tables["segments"] if "segments" in plan.tables else np.zeros((0, 8), int)
    kinds = []
    for row, length in enumerate(problem.context_lengths):
        pieces = segments[segments[:, 0] == row, 5].max(initial=0)
        kinds.append("empty" if not length else "cut" if pieces > 1 else "whole")
    return kinds


def by_cuts(problem: Problem, plan: Plan, output: np.ndarray, right: Modelled) -> list[str]:
    """How whole, cut and empty sequences fare, where a plan has segments and they fare differently.

    Of a kernel that is half written it says which half: who writes whole sequences is another than who
    writes those that were cut.
    """
    if "segments" not in plan.tables or output.dtype.itemsize not in POISON:
        return []
    never = unwritten(output).all(axis=(1, 2))
    numbers = np.asarray(output, np.float64)
    wrong, finite = _wrong(numbers, right).any(axis=(1, 2)), np.isfinite(numbers).all(axis=(1, 2))
    kinds, fares = np.array(kinds_of_sequences(problem, plan)), {}
    for kind in ("whole", "cut", "empty"):
        rows = kinds == kind
        if not rows.any():
            continue
        fares[kind] = (
            "never written"
            if never[rows].all()
            else "right"
            if not wrong[rows].any()
            else "not finite"
            if not finite[rows].any()
            else "wrong"
        )
    if not set(fares.values()) - {"right", "wrong"} and len(set(fares.values())) < 2:
        return []
    return [", ".join(f"{kind} sequences are {how}" for kind, how in fares.items())]


def _no_answer(outputs: Mapping[str, np.ndarray], probe: Probe, stage: Stage, device: Device | None) -> str:
    """Why all is NaN or 0: nothing is written, NaN is computed, or no token is summed."""
    begin = _NO_ANSWER
    written = [~unwritten(np.asarray(output)) for output in outputs.values()]
    if not any(one.any() for one in written):
        return f"{begin}: the output is never written."
    merges = len(probe.plan(stage, device).launches) > 1
    if merges and all(one.all() for one in written) and any(np.isnan(o).any() for o in outputs.values()):
        # In a stage without a merge an empty kernel computes NaN too: 0/0.
        return (
            f"{begin}: NaN is computed. A part without a token has the maximum -INFINITY, and -INFINITY minus"
            " -INFINITY is NaN: see what exp(own maximum - common maximum) gives where two such parts meet."
        )
    return f"{begin}: all is NaN or 0. The output is not written, or no token is summed."


def _set_apart(probe: Probe, fine: Sequence[Probe], stage: Stage, device: Device | None) -> str:
    """What the one problem that is wrong has, and none that is right."""
    plan = probe.plan(stage, device)
    if probe.name == "long" and "segments" in plan.tables:
        return f" Only there {_ONLY_THERE['long of segments']}."
    if probe.name in _ONLY_THERE:
        return f" Only there {_ONLY_THERE[probe.name]}."
    said = []
    for name, words in _SIZES.items():
        size = getattr(probe.problem, name)
        if size not in (others := {getattr(one.problem, name) for one in fine}):
            said.append(f"{words} is {size} (else {_ranges(sorted(others))})")
    if not said:
        return ""
    chunks = int(plan.defines.get("CHUNKS_PER_LANE", 1))
    lanes = f", so that a lane has {chunks} chunks, c = 0 to {chunks - 1}" if chunks > 1 else ""
    return f" Only there {', '.join(said)}{lanes}."


def _is_empty(output: np.ndarray) -> bool:
    return not (np.isfinite(output) & (output != 0)).any()


def describe_wrong(output: np.ndarray, expected: np.ndarray, problem: Problem, slack: float = SLACK) -> str:
    """Which sequences, query heads and dimensions of an output are wrong, in words.

    Args:
        output, expected: ``[batch, query_heads, head_dim]``.
        problem: what was computed.
        slack: what is not yet wrong, of a row's largest element.
    """
    output = np.asarray(output, np.float64)
    wrong = _wrong(output, Modelled(expected, np.zeros(expected.shape, np.int8), slack))
    axes = (("batch", (1, 2)), ("head", (0, 2)), ("dimension", (0, 1)))
    parts = []
    for name, others in axes:
        which = wrong.any(axis=others)
        if which.all():
            parts.append(f"every {name}")
        else:
            parts.append(f"{name} {_ranges(np.flatnonzero(which))} of {len(which)}")
    kinds = []
    if np.isnan(output[wrong]).all():
        kinds.append("all NaN")
    elif not np.isfinite(output[wrong]).all():
        kinds.append("some not finite")
    elif (output[wrong] == 0).all():
        kinds.append("all 0")
    says = f"wrong in “{problem.name}” are {', '.join(parts)}"
    return f"{says} ({kinds[0]})" if kinds else says


def _weights_seen(problem: Problem, output: np.ndarray, right: Modelled) -> tuple[list[str], int | None]:
    """What the probe of weights shows of the first wrong row; and the first page with a wrong weight."""
    if fits(output, right):
        return [], None
    batch, head = _first_wrong(output, right)
    weights, expected = output[batch, head], right.output[batch, head]
    size = problem.page_size
    length = problem.context_lengths[batch]
    where = f"batch {batch}, head {head} ({length} tokens)"
    if not np.isfinite(weights).all():
        return [f"the weights of {where} are not finite"], None
    tokens = np.arange(len(weights))
    missing = tokens[(weights == 0) & (expected > 1e-6)]
    extra = tokens[(np.abs(weights) > 1e-6) & (tokens >= length)]
    told = []
    if missing.size == length > 0:
        told.append(f"no token of {where} has a weight")
    elif missing.size:
        slots = _slots(missing, length, size)
        told.append(
            f"tokens {_ranges(missing)} of {where} have no weight, page {missing[0] // size} first{slots}"
        )
    if extra.size:
        told.append(f"tokens {_ranges(extra)}, past the end of {where}, have a weight")
    counted = (expected > 0) & (weights != 0)
    if counted.sum() > 1:
        ratio = weights[counted] / expected[counted]
        if np.ptp(ratio) < 2 * right.slack * np.abs(ratio).max():
            if abs(ratio[0] - 1) > 2 * right.slack:
                told.append(f"the other weights are right up to a common factor of {ratio[0]:.4g}")
        else:
            told.append("the weights of its tokens have wrong ratios")
            off = np.abs(ratio / np.median(ratio) - 1) > 1e-2
            if off.sum() <= len(off) / 2:
                heavy = tokens[counted][off & (ratio > np.median(ratio))]
                light = tokens[counted][off & (ratio < np.median(ratio))]
                told += [
                    f"tokens {_ranges(some)} weigh too {much} beside the others{_slots(some, length, size)}"
                    for much, some in (("much", heavy), ("little", light))
                    if some.size
                ]
    total = weights.sum()
    if abs(total - (length > 0)) > 1e-3:
        told.append(f"its weights add up to {total:.4g}")
    bad = np.flatnonzero(np.abs(weights - expected) > right.slack * max(expected.max(), 1e-30))
    return told, int(bad[0] // size) if bad.size else None


def _slots(tokens: np.ndarray, length: int, page_size: int) -> str:
    """Says so where tokens are some slots of every page, or all tokens of some pages."""
    everything = np.arange(length)
    for name, of in (
        ("slots {} of every page", lambda t: t % page_size),
        ("all of pages {}", lambda t: t // page_size),
    ):
        which = np.unique(of(tokens))
        if 0 < len(tokens) == np.isin(of(everything), which).sum() < length and length > page_size:
            return f" ({name.format(_ranges(which))})"
    return ""


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: 0, 2 to 5, 9."""
    runs: list[list[int]] = []
    for number in (int(number) for number in numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
