"""What is computed: the shapes of one paged decode-attention problem, validated once and then trusted."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn")
FP8 = "float8_e4m3fn"  # of the Open Compute Project: 4 bits of exponent, 3 of mantissa, NaN but no infinity
LAYOUTS = ("NHD", "HND", "packed")
MAX_INT = 2**31 - 1


@dataclass(frozen=True)
class Problem:
    """One decode step: every sequence of a batch attends with one query token to its own paged K/V cache.

    Attributes:
        query_heads: query heads per sequence.
        kv_heads: key/value heads per sequence; divides ``query_heads`` (grouped-query attention).
        head_dim: length of one head's vector.
        page_size: tokens in one page of the cache.
        context_lengths: cached tokens of each sequence, 0 allowed; its length is the batch size.
        dtype: of the cache, one of ``DTYPES``; ``query_dtype`` is that of query and output.
        layout: of a cache page, one of ``LAYOUTS``; see ``layouts``.
        key_scale, value_scale: what a stored fp8 key or value is multiplied by; 1 for every other dtype.
        name: shown in tables and file names.

    Raises:
        ValueError: a field is out of range; the message names the field, its value and what is allowed.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    context_lengths: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "NHD"
    name: str = "custom"
    key_scale: float = 1.0
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        for field in ("query_heads", "kv_heads", "head_dim", "page_size"):
            object.__setattr__(self, field, _whole(field, getattr(self, field), least=1))
        lengths = tuple(_whole("context_lengths", length, least=0) for length in self.context_lengths)
        object.__setattr__(self, "context_lengths", lengths)
        if self.query_heads % self.kv_heads:
            raise ValueError(
                f"query_heads={self.query_heads} is no whole multiple of kv_heads={self.kv_heads}: "
                "every key/value head must serve the same number of query heads"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r}: allowed are {', '.join(DTYPES)}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout={self.layout!r}: allowed are {', '.join(LAYOUTS)}")
        for field in ("key_scale", "value_scale"):
            scale = getattr(self, field)
            if not (isinstance(scale, (int, float)) and math.isfinite(scale) and scale > 0):
                raise ValueError(f"{field}={scale!r} must be a positive number")
            if scale != 1 and self.dtype != FP8:
                raise ValueError(f"{field}={scale}: only a cache of {FP8} is scaled; {self.dtype} needs 1")
        chunk = 16 // self.itemsize
        if self.layout == "packed" and self.head_dim % chunk:
            raise ValueError(
                f"head_dim={self.head_dim}: the packed layout takes multiples of {chunk} in {self.dtype}"
            )

    @property
    def batch(self) -> int:
        """Sequences in the batch."""
        return len(self.context_lengths)

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.query_heads // self.kv_heads

    @property
    def pages_per_sequence(self) -> tuple[int, ...]:
        """Pages that each sequence's context fills, the last one perhaps partly."""
        return tuple(-(-length // self.page_size) for length in self.context_lengths)

    @property
    def max_pages(self) -> int:
        """Columns of the block table: the pages of the longest sequence, at least one."""
        return max((1, *self.pages_per_sequence))

    @property
    def scale(self) -> float:
        """Factor on every score, 1/sqrt(head_dim) (Vaswani et al. 2017, section 3.2.1)."""
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the cache."""
        return storage_dtype(self.dtype).itemsize

    @property
    def query_dtype(self) -> str:
        """Of query and output: the cache's, or float16 beside an fp8 cache, whose queries stay exact."""
        return "float16" if self.dtype == FP8 else self.dtype

    @property
    def kv_bytes(self) -> int:
        """Bytes of all valid keys and values, each counted once per sequence that reads it."""
        return 2 * sum(self.context_lengths) * self.kv_heads * self.head_dim * self.itemsize

    @property
    def minimum_bytes(self) -> int:
        """Bytes that must cross the memory bus at least: K/V, query, output and the used table entries."""
        itemsize = storage_dtype(self.query_dtype).itemsize
        vectors = 2 * self.batch * self.query_heads * self.head_dim * itemsize
        return self.kv_bytes + vectors + 4 * (sum(self.pages_per_sequence) + self.batch)

    def bandwidth(self, seconds: float) -> float:
        """Bytes per second of a kernel that takes so long: `minimum_bytes` over its time."""
        return self.minimum_bytes / seconds

    def replace(self, **changes: object) -> Problem:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        lengths = self.context_lengths
        span = (
            f"{min(lengths)}..{max(lengths)}" if len(set(lengths)) > 1 else str(lengths[0] if lengths else 0)
        )
        return (
            f"{self.name}: batch {self.batch}, {self.query_heads}/{self.kv_heads} heads, "
            f"head_dim {self.head_dim}, page {self.page_size}, context {span}, {self.dtype}"
            + ("" if self.layout == "NHD" else f", {self.layout}")
        )


def storage_dtype(name: str) -> np.dtype:
    """NumPy's dtype of a name in ``DTYPES``; ``ml_dtypes`` has those that NumPy lacks."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _whole(field: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{field}={value!r} must be a whole number")
    if not least <= value <= MAX_INT:
        raise ValueError(f"{field}={value} must lie between {least} and {MAX_INT}")
    return int(value)


PRESETS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem(4, 2, 64, 16, (40, 17), name="tiny"),
        # empty, one token, one page, a partial last page, the longest
        Problem(8, 2, 128, 16, (0, 1, 16, 389, 512), name="ragged"),
        # the first source document: only the mean of its context lengths is known
        Problem(32, 8, 128, 16, (2400,) * 64, name="seed"),
        # the second source document
        Problem(24, 4, 256, 16, (100_000,), dtype="float16", name="long"),
    )
}


def find_problem(name: str) -> Problem:
    """The preset called ``name``.

    Raises:
        ValueError: there is none; the message lists the presets.
    """
    if name not in PRESETS:
        raise ValueError(f"problem {name!r}: the presets are {', '.join(PRESETS)}")
    return PRESETS[name]
