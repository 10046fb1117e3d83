"""The hidden problems that a kernel is graded on: every class of known mistake, drawn from a secret seed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from labs_common.inputs import Inputs, make_inputs
from labs_common.layouts import from_nhd, to_nhd
from labs_common.plans import Device
from labs_common.problem import FP8, Problem
from labs_common.stages import Stage

Typed = Callable[[Problem], Problem]  # a problem in the number format that a stage is taught with


@dataclass(frozen=True)
class Case:
    """One hidden problem.

    Attributes:
        kind: short name of its class; the rubric's weights and the reports go by it.
        title: what the class asks of a kernel. It names no hidden value, for students read it.
        problem: shapes.
        calls: the inputs of each launch, in order; the module's state lives from one to the next.
        far: whether the second half of the pages lies 2^31 elements away from the first.
        weights: the dtype that softmax weights may be rounded to.
        options: of the stage's plan, where it is not the one that the problem has by default.
    """

    kind: str
    title: str
    problem: Problem
    calls: tuple[Inputs, ...]
    far: bool = False
    weights: str = "float32"
    options: Mapping[str, int] = field(default_factory=dict)


# A context is cut into this many parts, or parts this long: so that short ones are merged from several too.
SPLITS, PARTITION_TOKENS = 3, 32
UNCUT = ("plain", "long")  # classes that are planned as any other problem of their size

TITLES = {
    "plain": "whole pages, head_dim 64 or 128",
    "partial_page": "contexts that end within a page; NaN behind their end",
    "empty": "empty contexts and contexts of one token in the batch",
    "head_dim": "a head_dim that is neither 64 nor 128",
    "wide_head": "a head_dim above 128",
    "group": "a group of query heads whose size is no power of two",
    "page_size": "pages that do not have 16 tokens",
    "table": "shared pages, a table wider than the contexts, and nonsense in its unused entries",
    "needle": "one token with nearly all the weight, where kernels lose tokens",
    "extreme": "scores far beyond what exp can take without subtracting the maximum",
    "long": "long and short contexts in one batch, at the edges of splits",
    "far": "a cache of more than 2^31 elements",
    "large_group": "more than eight query heads to a key/value head",
    "half": "float16 inputs and output, with fp32 accumulation",
    "single": "float32 inputs and output, which tensor cores do not take",
    "bfloat16": "bfloat16 inputs and output",
    "fp8": "a cache of 8-bit numbers, whose keys and values each have a scale",
    "layout": "the stage's other cache layouts",
}


def grading_cases(stage: Stage, seed: str, device: Device | None = None) -> tuple[Case, ...]:
    """The hidden problems of a stage.

    Args:
        stage: problems that it does not take are left out.
        seed: secret of the grading run; the same for every student.
        device: whose limits the stage's plans keep.
    """
    makers = (_plain, _partial_page, _empty, _head_dim, _wide_head, _group, _large_group, _page_size, _table,
              _needle, _extreme, _long, _far, _half, _single, _bfloat16, _fp8, _layout)  # fmt: skip
    cases: list[Case] = []
    for maker in makers:
        kind = maker.__name__[1:]
        made = maker(kind, generator(seed, stage.id, kind), stage.typed)
        taken = (case for case in made if stage.supports(case.problem, device) is None)
        cases += taken if kind == "layout" else itertools.islice(taken, 1)
    return tuple(
        dataclasses.replace(
            case, weights=stage.weights(case.problem), options=_options(stage, case, device or Device())
        )
        for case in cases
    )


def _options(stage: Stage, case: Case, device: Device) -> dict[str, int]:
    numbers = stage.plan(case.problem, device).numbers
    if case.kind in UNCUT:
        return {}
    if "splits" in numbers:
        return {"splits": SPLITS}
    return {"partition_tokens": PARTITION_TOKENS} if "partitions" in numbers else {}


def generator(seed: str, *names: str) -> np.random.Generator:
    """Random numbers that follow from the secret and the names alone."""
    digest = hashlib.sha256("\0".join((seed, *names)).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


def structure_problem(stage: Stage, seed: str, device: Device | None = None) -> Case:
    """The problem on which a kernel's structure is counted: larger, so that loops outweigh prologues."""
    random = generator(seed, stage.id, "structure")
    dtype = "float16" if "float16" in stage.dtypes else "float32"
    lengths = tuple(
        int(n) for n in random.permutation([random.integers(500, 600), random.integers(200, 255)])
    )
    problem = Problem(8, 2, 128, 16, lengths, dtype=dtype, name="structure")
    return Case(
        "structure",
        "the counts behind the structure marks",
        problem,
        _random_calls(problem, random, 1),
        weights=stage.weights(problem),
    )


def _random_calls(problem: Problem, random: np.random.Generator, count: int) -> tuple[Inputs, ...]:
    return tuple(make_inputs(problem, int(random.integers(2**63))) for _ in range(count))


def _case(kind: str, problem: Problem, calls: tuple[Inputs, ...], far: bool = False) -> Case:
    return Case(kind, TITLES[kind], problem.replace(name=kind), calls, far)


def _simple(kind: str, random: np.random.Generator, problem: Problem, calls: int = 1) -> list[Case]:
    return [_case(kind, problem, _random_calls(problem, random, calls))]


def _lengths(random: np.random.Generator, low: int, high: int, count: int) -> tuple[int, ...]:
    return tuple(int(n) for n in random.integers(low, high, count))


def _one_after_another(random: np.random.Generator, values: Iterable[int]) -> Iterator[int]:
    """The values in random order, each drawn when it is asked for."""
    left = list(values)
    while left:
        value = int(random.choice(left))
        left.remove(value)
        yield value


# Every maker gives problems of its class, of which a stage is graded on the first that it takes.


def _plain(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    # No two are equal: a kernel that takes one length for all, or the table's width, is wrong on every seed.
    lengths = tuple(16 * int(n) for n in random.choice(np.arange(2, 7), 3, replace=False))
    problem = typed(Problem(8, 2, int(random.choice([64, 128])), 16, lengths))
    return _simple(kind, random, problem, calls=3)


def _partial_page(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    lengths = (
        int(random.integers(33, 47)),
        int(random.integers(2, 15)),
        17 + 16 * int(random.integers(1, 4)),
    )
    return _simple(kind, random, typed(Problem(4, 2, 128, 16, lengths)), calls=2)


def _empty(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    lengths = random.permutation([0, 1, 16, 0, int(random.integers(20, 60))])
    return _simple(kind, random, typed(Problem(4, 2, 64, 16, tuple(int(n) for n in lengths))))


def _head_dim(kind: str, random: np.random.Generator, typed: Typed) -> Iterator[Case]:
    for dim in _one_after_another(random, (24, 40, 72, 80, 96, 104, 120)):
        yield from _simple(kind, random, typed(Problem(4, 2, dim, 16, _lengths(random, 18, 50, 2))))


def _wide_head(kind: str, random: np.random.Generator, typed: Typed) -> Iterator[Case]:
    for dim in _one_after_another(random, (160, 192, 224, 256)):
        yield from _simple(kind, random, typed(Problem(4, 2, dim, 16, _lengths(random, 18, 50, 2))))


def _group(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    size, heads = int(random.choice([3, 5, 6, 7])), int(random.choice([2, 3]))
    return _simple(kind, random, typed(Problem(size * heads, heads, 64, 16, _lengths(random, 18, 50, 2))))


def _large_group(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    """In 16 bits, and so for the stages that hold a group's heads in registers, eight at a time.

    An odd group has no equal halves: the last set of heads is shorter.
    """
    size = int(random.choice([9, 11, 13, 15]))
    return _simple(kind, random, Problem(size, 1, 64, 16, _lengths(random, 18, 50, 2), dtype="float16"))


def _page_size(kind: str, random: np.random.Generator, typed: Typed) -> Iterator[Case]:
    for size in _one_after_another(random, (8, 24, 32)):
        lengths = _lengths(random, size + 1, 4 * size, 2)
        yield from _simple(kind, random, typed(Problem(4, 2, 128, size, lengths)))


def _table(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    """More columns than any context needs, all behind the used ones nonsense; the first page is shared."""
    problem = typed(Problem(4, 2, 64, 16, _lengths(random, 20, 70, 3)))
    (inputs,) = _random_calls(problem, random, 1)
    pages = len(inputs.key_cache)
    extra = random.choice(
        np.array([-1, pages, 10**6, -(2**31)], np.int32), (problem.batch, int(random.integers(2, 6)))
    )
    tables = np.ascontiguousarray(np.concatenate([inputs.block_tables, extra], axis=1))
    return [_case(kind, problem, (dataclasses.replace(inputs, block_tables=tables),))]


def _needle(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    """In every sequence one token outweighs the others: the last, the first of a page, a split's edge."""
    places = [(45, 44), (33, 32), (32, 31), (40, 15), (35, 0), (273, 256), (260, 255), (270, 269)]
    chosen = random.permutation(len(places) - 3)[:3]
    pairs = [places[i] for i in chosen] + places[-3:]
    problem = typed(Problem(4, 2, 64, 16, tuple(length for length, _ in pairs)))
    (inputs,) = _random_calls(problem, random, 1)
    query = inputs.query.astype(np.float64).reshape(problem.batch, problem.kv_heads, problem.group_size, -1)
    shared = random.standard_normal((problem.batch, problem.kv_heads, 1, problem.head_dim))
    # The heads of a group agree on what they look for.
    query = (shared + 0.2 * query).astype(inputs.query.dtype)
    key, value = (a.copy() for a in to_nhd(problem, inputs.key_cache, inputs.value_cache))
    first_pages = set()
    for row, (_, token) in enumerate(pairs):
        page, slot = inputs.block_tables[row, token // problem.page_size], token % problem.page_size
        if token < problem.page_size and page in first_pages:
            continue  # a shared page has one needle
        first_pages.add(int(inputs.block_tables[row, 0]))
        key[page, slot] = 1.5 * shared[row, :, 0]
    key, value = from_nhd(problem, key, value)
    query = np.ascontiguousarray(query.reshape(inputs.query.shape))
    return [
        _case(kind, problem, (dataclasses.replace(inputs, query=query, key_cache=key, value_cache=value),))
    ]


def _extreme(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    """Scores of some hundreds to 10^5: negative in one sequence, rising in another, falling in a third."""
    (first,) = _lengths(random, 5, 15, 1)
    first += first % 8 == 0  # a whole tile has no token behind its last one
    lengths = (int(first), *_lengths(random, 20, 30, 1), *_lengths(random, 8, 15, 1))
    problem = typed(Problem(4, 2, 128, 16, lengths))  # two of a page or more would share their first one
    (inputs,) = _random_calls(problem, random, 1)
    query = np.full_like(inputs.query, 40.0)
    key, value = (a.copy() for a in to_nhd(problem, inputs.key_cache, inputs.value_cache))
    for row, length in enumerate(problem.context_lengths):
        for token in range(length):
            page, slot = inputs.block_tables[row, token // 16], token % 16
            key[page, slot] = (-48.0, 0.01 * token, 0.01 * (length - token))[row]
            value[page, slot] += np.float32(token)
    key, value = from_nhd(problem, key, value)
    scale = 1.0 if random.integers(2) else 0.5
    return [
        _case(
            kind,
            problem,
            (dataclasses.replace(inputs, query=query, key_cache=key, value_cache=value, scale=scale),),
        )
    ]


def _long(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    edge = int(random.choice([512, 768]))
    lengths = [1, 15, 16, edge - 1, edge, edge + 1, int(random.integers(900, 1100))]
    chosen = tuple(int(n) for n in random.permutation(lengths))
    return _simple(kind, random, typed(Problem(4, 2, 64, 16, chosen)))


def _far(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    problem = typed(Problem(4, 2, 128, 16, _lengths(random, 40, 60, 2)))
    return [_case(kind, problem, _random_calls(problem, random, 1), far=True)]


def _half(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    lengths = (int(random.integers(300, 400)), int(random.integers(20, 40)))
    return _simple(kind, random, Problem(12, 2, 128, 16, lengths, dtype="float16"))


def _single(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    problem = Problem(8, 2, 128, 16, _lengths(random, 18, 90, 2))
    return _simple(kind, random, problem) if typed(problem) != problem else []


def _bfloat16(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    """Of eight key/value heads, so that a warp of stages 08 and 09 has no other warp in its set."""
    return _simple(kind, random, Problem(16, 8, 64, 16, _lengths(random, 18, 90, 2), dtype="bfloat16"))


def _fp8(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    """Of six key/value heads, so that blocks of stages 08 and 09 have several groups of two sets of heads.

    Contexts of different length, so that equal runs cut some of them.
    """
    page_size = int(random.choice([8, 16, 32]))
    key_scale, value_scale = (float(n) for n in random.uniform(0.3, 3.0, 2))
    problem = Problem(
        12,
        6,
        128,
        page_size,
        (*_lengths(random, page_size + 1, 50, 1), *_lengths(random, 100, 140, 1)),
        dtype=FP8,
        key_scale=key_scale,
        value_scale=value_scale,
    )
    return _simple(kind, random, problem)


def _layout(kind: str, random: np.random.Generator, typed: Typed) -> list[Case]:
    cases = []
    for layout in ("HND", "packed"):
        problem = typed(Problem(4, 2, 128, 16, _lengths(random, 18, 50, 2), layout=layout))
        cases += _simple(kind, random, problem)
    return cases
