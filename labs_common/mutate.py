"""Small changes to PTX and CUDA texts, for fuzzing: what is nearly right finds most."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_PTX_STATEMENT = re.compile(r"^\s+(@!?%p\d+\s+)?[a-z][\w.]*[ \t].*;", re.M)
_PTX_REGISTER = re.compile(r"%[a-z]+\d+")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"(?<![\w.%])-?\d+(?![\w.])")
_OPERATORS = {
    **{"<": ("<=", ">", "=="), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=", "<")},
    **{
        "!=": ("==",),
        "+": ("-", "*", "^"),
        "-": ("+", "/"),
        "*": ("/", "%", "+"),
        "/": ("*", "%"),
        "%": ("/", "&"),
    },
    **{
        "&&": ("||",),
        "||": ("&&",),
        "&": ("|", "&&"),
        "^": ("&", "+"),
        "<<": (">>",),
        ">>": ("<<",),
        "=": ("+=",),
    },
}
_OPERATOR = re.compile(
    r"(?<=\s)(" + "|".join(re.escape(o) for o in sorted(_OPERATORS, key=len, reverse=True)) + r")(?=\s)"
)
_EDGES = (
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    4095,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
_PTX_EDGES = (*_EDGES, 2**40, 2**63, 2**64 - 1, 2**64, -(2**63))
_STATEMENTS = (
    "__syncthreads();",
    "if (threadIdx.x % 2) __syncthreads();",
    "if (threadIdx.x == 5) return;",
    "return;",
    "while (true) {}",
    "for (int z = 0; z < 1000000; ++z) __syncthreads();",
    'asm volatile("trap;");',
    "__syncwarp(0x0f0fu);",
    "*(volatile int*)(threadIdx.x * 4096ull) = 1;",
    "{ volatile int big[300]; big[threadIdx.x * 7] = 1; }",
    "assert(threadIdx.x < 30);",
    'printf("%d\\n", threadIdx.x);',
    'asm volatile("bar.sync 1, 64;");',
    'asm volatile("exit;");',
    "(void)__shfl_sync(0xffffffffu, 1, 40);",
    "__nanosleep(100);",
)
_PTX_STATEMENTS = (
    "\tbar.sync \t0;",
    "\tret;",
    "\texit;",
    "\ttrap;",
    "\tmembar.gl;",
    "\tbar.sync \t16;",
    "\tbra.uni \tNOWHERE;",
    "\t.loc\t9 9 9",
    "{",
    "}",
    "\t.reg .b32 %q<4>;",
    "\t.shared .align 4 .b8 more[64];",
    "\tcall.uni nobody, ();",
    "\tnanosleep.u32 \t20;",
    "\tbrkpt;",
)

Mutator = Callable[[random.Random, str], str]


def mutate_ptx(rng: random.Random, text: str) -> str:
    """One to four changes to a PTX text."""
    return _several(rng, text, _PTX)


def mutate_cuda(rng: random.Random, text: str) -> str:
    """One to three changes to a CUDA text."""
    return _several(rng, text, _CUDA, most=3)


def random_text(rng: random.Random, vocabulary: list[str]) -> str:
    """Bytes, printable characters, or words of a vocabulary behind the head of a PTX text."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 400)).decode("latin-1")
    if kind == 1:
        return "".join(
            chr(rng.randrange(32, 127)) if rng.random() < 0.9 else "\n" for _ in range(rng.randrange(1, 600))
        )
    words = " ".join(rng.choice(vocabulary) for _ in range(rng.randrange(1, 200)))
    return f".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k() {{\n{words}\n}}\n"


def _several(rng: random.Random, text: str, mutators: tuple[Mutator, ...], most: int = 4) -> str:
    for _ in range(rng.randrange(1, most + 1)):
        for _ in range(5):  # a change that finds nothing to change is tried as another one
            changed = rng.choice(mutators)(rng, text)
            if changed != text:
                text = changed
                break
    return text


def _pick(rng: random.Random, found: list[re.Match[str]]) -> re.Match[str] | None:
    return rng.choice(found) if found else None


def _replaced(text: str, match: re.Match[str] | None, by: str) -> str:
    return text if match is None else text[: match.start()] + by + text[match.end() :]


# ---- PTX


def _ptx_statement(rng: random.Random, text: str) -> str:
    """Delete a statement, double it, move it elsewhere, or put in another one."""
    found = list(_PTX_STATEMENT.finditer(text))
    one, other = _pick(rng, found), _pick(rng, found)
    if one is None:
        return text
    how = rng.randrange(4)
    if how == 0:
        return _replaced(text, one, "")
    if how == 1:
        return _replaced(text, one, f"{one[0]}\n{one[0]}")
    if how == 2:
        return _replaced(text, one, f"{other[0]}\n{one[0]}")
    return _replaced(text, one, f"{rng.choice(_PTX_STATEMENTS)}\n{one[0]}")


def _ptx_register(rng: random.Random, text: str) -> str:
    found = list(_PTX_REGISTER.finditer(text))
    one = _pick(rng, found)
    if one is None:
        return text
    alike = [other for other in found if other[0].rstrip("0123456789") == one[0].rstrip("0123456789")]
    return _replaced(text, one, rng.choice(alike if rng.random() < 0.85 else found)[0])


def _ptx_modifier(rng: random.Random, text: str) -> str:
    """Another word in place of a part of an instruction's name, drop it, or add one."""
    found = list(re.finditer(r"(?<=[a-z0-9])\.[a-z][a-z0-9]*(?=[.\s])", text))
    one = _pick(rng, found)
    if one is None:
        return text
    how = rng.random()
    if how < 0.15:
        return _replaced(text, one, "")
    word = rng.choice(found)[0]
    return _replaced(text, one, one[0] + word if how < 0.25 else word)


def _ptx_opcode(rng: random.Random, text: str) -> str:
    found = list(re.finditer(r"(?<=\t)[a-z][a-z0-9]*(?=[.\s;])", text))
    one = _pick(rng, found)
    return text if one is None else _replaced(text, one, rng.choice(found)[0])


def _ptx_guard(rng: random.Random, text: str) -> str:
    one = _pick(rng, list(re.finditer(r"@!?(?=%p)", text)))
    if one is not None and rng.random() < 0.6:
        return _replaced(text, one, "@" if one[0] == "@!" else "@!")
    statement = _pick(rng, list(re.finditer(r"(?<=\n\t)(?=[a-z])", text)))
    return _replaced(text, statement, f"@{rng.choice(['', '!'])}%p{rng.randrange(1, 4)} ")


def _ptx_number(rng: random.Random, text: str) -> str:
    return _replaced(text, _pick(rng, list(_NUMBER.finditer(text))), str(rng.choice(_PTX_EDGES)))


def _ptx_label(rng: random.Random, text: str) -> str:
    found = list(re.finditer(r"\$L_+BB\w+", text))
    one = _pick(rng, found)
    return text if one is None else _replaced(text, one, rng.choice(found)[0])


def _characters(rng: random.Random, text: str) -> str:
    """Change, drop or put in a few characters, or cut the text short."""
    if not text or rng.random() < 0.1:
        return text[: rng.randrange(len(text) + 1)]
    at = rng.randrange(len(text))
    return (
        text[:at]
        + rng.choice(["", ";", "}", "{", "0", ",", "%", "-", "\0", chr(rng.randrange(32, 300))])
        + text[at + rng.randrange(3) :]
    )


_PTX: tuple[Mutator, ...] = (
    *(_ptx_statement, _ptx_statement, _ptx_register, _ptx_register, _ptx_modifier, _ptx_modifier),
    *(_ptx_opcode, _ptx_guard, _ptx_number, _ptx_number, _ptx_label, _characters),
)


# ---- CUDA


def _cuda_operator(rng: random.Random, text: str) -> str:
    one = _pick(rng, list(_OPERATOR.finditer(text)))
    return text if one is None else _replaced(text, one, rng.choice(_OPERATORS[one[0]]))


def _cuda_number(rng: random.Random, text: str) -> str:
    one = _pick(rng, list(_NUMBER.finditer(text)))
    if one is None:
        return text
    near = int(one[0]) + rng.choice((-1, 1))
    return _replaced(text, one, str(near if rng.random() < 0.5 else rng.choice(_EDGES)))


def _cuda_word(rng: random.Random, text: str) -> str:
    found = list(_WORD.finditer(text))
    one = _pick(rng, found)
    return text if one is None else _replaced(text, one, rng.choice(found)[0])


def _cuda_line(rng: random.Random, text: str) -> str:
    """Delete a line, double it, or swap it with the next."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    how = rng.randrange(3)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(at, lines[at])
    else:
        lines[at : at + 2] = reversed(lines[at : at + 2])
    return "\n".join(lines)


def _cuda_statement(rng: random.Random, text: str) -> str:
    found = list(re.finditer(r";$", text, re.M))
    one = _pick(rng, found)
    return text if one is None else _replaced(text, one, f"; {rng.choice(_STATEMENTS)}")


def _cuda_guard(rng: random.Random, text: str) -> str:
    one = _pick(rng, list(re.finditer(r"^ +(?=[a-z].*;)", text, re.M)))
    return (
        text
        if one is None
        else _replaced(text, one, f"{one[0]}if (threadIdx.x & {rng.choice((1, 4, 16, 32))}) ")
    )


_CUDA: tuple[Mutator, ...] = (
    *(_cuda_operator, _cuda_operator, _cuda_number, _cuda_number, _cuda_word, _cuda_line, _cuda_line),
    *(_cuda_statement, _cuda_statement, _cuda_guard, _characters),
)
