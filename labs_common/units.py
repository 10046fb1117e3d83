"""Nsight Compute's units and number texts: everything is brought to one base unit, nothing is guessed.

Base units: nsecond, byte, byte/second, hz, cycle, %, inst, register/thread, byte/block … and "" for a pure
number. Prefixes are decimal, as Nsight Compute's are: 16,384 bytes print as 16.38 Kbyte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

_NANOSECONDS = {
    **dict.fromkeys(("nsecond", "ns", "nanosecond"), Decimal(1)),
    **dict.fromkeys(("usecond", "us", "µs", "microsecond"), Decimal(10) ** 3),
    **dict.fromkeys(("msecond", "ms", "millisecond"), Decimal(10) ** 6),
    **dict.fromkeys(("second", "s", "sec"), Decimal(10) ** 9),
}
_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_WORDS = """byte sector request wavefront tag packet inst issue op flop branch cycle hz sample pass
warp thread block cluster register barrier SM TPC"""
_COUNTED = tuple(_WORDS.split())
_SPELLINGS = {
    **{name.lower(): name for name in _COUNTED},
    **{name.lower() + "s": name for name in _COUNTED},
    "branches": "branch",
    "passes": "pass",
    "instruction": "inst",
    "instructions": "inst",
}
_DIMENSIONLESS = {"", "none", "(none)", "ratio"}


class UnitError(ValueError):
    """A unit that is not in the table; never treated as a base unit."""


def _counted(term: str, unit: str) -> tuple[Decimal, str]:
    """Factor and base name of a term such as Kbyte, Ghz or inst."""
    if term.lower() in _SPELLINGS:
        return Decimal(1), _SPELLINGS[term.lower()]
    prefix, rest = term[:1], term[1:]
    if prefix in _PREFIXES and rest.lower() in _SPELLINGS:
        return Decimal(10) ** _PREFIXES[prefix], _SPELLINGS[rest.lower()]
    raise UnitError(
        f"unit {unit!r} is unknown: expected %, a time (ns, us, ms, second), a count such as byte or inst "
        f"with an optional prefix {'/'.join(p for p in _PREFIXES if p)}, or one of those per another"
    )


def base_unit(unit: str) -> tuple[Decimal, str]:
    """Factor to multiply with, and the base unit, of a unit as Nsight Compute writes it.

    Raises:
        UnitError: the unit is not known.
    """
    text = unit.strip()
    if text.lower() in _DIMENSIONLESS:
        return Decimal(1), ""
    if text in ("%", "pct"):
        return Decimal(1), "%"
    if text in _NANOSECONDS:
        return _NANOSECONDS[text], "nsecond"
    if "/" not in text:
        return _counted(text, unit)
    above, below = text.split("/", 1)
    factor, name = (Decimal(1), "%") if above == "%" else _counted(above, unit)
    if below in _NANOSECONDS:
        per_second = factor * Decimal(10) ** 9 / _NANOSECONDS[below]
        return per_second, "hz" if name == "cycle" else f"{name}/second"
    divisor, per = _counted(below, unit)
    return factor / divisor, f"{name}/{per}"


def to_base(value: Decimal | float | int | str, unit: str) -> tuple[float, str]:
    """A value in its base unit; the product is taken in decimal, so 119.98 ms is 119980000 ns exactly.

    Raises:
        UnitError: the unit is not known.
    """
    factor, base = base_unit(unit)
    if isinstance(value, float) and value != value:
        return value, base
    exact = (
        value if isinstance(value, Decimal) else Decimal(repr(value) if isinstance(value, float) else value)
    )
    return float(exact * factor), base


_NUMBER = re.compile(r"[+-]?(\d[\d.,]*|\.\d+)([eE][+-]?\d+)?")
_ABSENT = {"", "n/a", "na", "nan", "-nan", "(null)", "-"}


def is_absent(text: str) -> bool:
    """Whether a report's value says that nothing was measured: empty, n/a, nan."""
    return text.strip().lower() in _ABSENT


def is_number(text: str) -> bool:
    """Whether a text has the form of a number, with or without separators."""
    return _NUMBER.fullmatch(text.strip()) is not None


def decimal_mark(texts: Iterable[str]) -> str | None:
    """The decimal mark that the number texts of one report prove, or None when nothing proves one.

    A mark that occurs twice in a number separates thousands; of two different marks the last is the decimal
    one; a mark is decimal that is not followed by exactly three digits, or follows a zero or more than three
    digits.

    Raises:
        ValueError: two numbers of the report prove different marks.
    """
    proof: dict[str, str] = {}
    for text in (t.strip() for t in texts):
        if not is_number(text):
            continue
        marks = [c for c in text if c in ".,"]
        if not marks:
            continue
        last, digits = marks[-1], re.split(r"[eE]", text)[0]
        if len(set(marks)) == 2:
            mark = last
        elif len(marks) > 1:
            mark = "." if last == "," else ","
        elif _groups_thousands(digits, last):
            continue
        else:
            mark = last
        proof.setdefault(mark, text)
    if len(proof) == 2:
        raise ValueError(
            f"numbers of one report contradict each other: {proof['.']!r} has a decimal point, "
            f"{proof[',']!r} a decimal comma"
        )
    return next(iter(proof), None)


def _groups_thousands(digits: str, mark: str) -> bool:
    """Whether the one mark in a number could separate thousands."""
    return re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}\{mark}\d{{3}}", digits) is not None


def parse_number(text: str, mark: str | None = None) -> Decimal:
    """The number in a report's text, given the decimal mark that the report proves (`decimal_mark`).

    Args:
        text: such as "12,319,469", "61.84" or "1.5e+06".
        mark: "." or ","; None when the report proves neither, and then both "1,234" and "1.234" are refused,
            as Nsight Compute prints numbers in the style of the machine that it runs on.

    Raises:
        ValueError: not a number, or its meaning depends on an unknown decimal mark.
    """
    stripped = text.strip()
    if not is_number(stripped):
        raise ValueError(f"{text!r} is not a number")
    if mark is None:
        found = next((c for c in stripped if c in ".,"), ".")
        if _groups_thousands(stripped, found):
            raise ValueError(
                f"{text!r} is ambiguous: thousands or a fraction, and no other number of this report tells; "
                "print it again with LC_ALL=C, or say decimal='.' or decimal=','"
            )
        mark = decimal_mark([stripped]) or "."
    thousands = "," if mark == "." else "."
    whole = re.split(rf"[{mark}eE]", stripped)[0]
    if thousands in stripped and not re.fullmatch(rf"[+-]?\d{{1,3}}(\{thousands}\d{{3}})+", whole):
        raise ValueError(f"{text!r} has {thousands!r} where no thousands separator can stand")
    try:
        return Decimal(stripped.replace(thousands, "").replace(mark, "."))
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a number") from error
