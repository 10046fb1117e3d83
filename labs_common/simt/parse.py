"""PTX text -> `Module`: what the text says, with every name resolved, and nothing decided about execution.

`parse(text)` is the one entry. Registers are numbered within their function, nested scopes included;
labels become instruction numbers; `.loc` chains become tuples of `Frame`, innermost first. Any text either
parses or raises `PtxError` with the PTX line. `program.build` takes it from there.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace

from .errors import PtxError, UnsupportedError

TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "tf32": 4, "b128": 16, "pred": 1},
    **{"e4m3": 1, "e5m2": 1, "e4m3x2": 2, "e5m2x2": 2, "u16x2": 4, "s16x2": 4},
}
SPACES = ("reg", "shared", "local", "param", "const", "global")


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of a source position; function is the (mangled) inlined function, "" for the kernel itself."""

    file: str
    line: int
    column: int
    function: str = ""


Location = tuple[Frame, ...]  # innermost first; the rest is where each was inlined; () where there is no .loc


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register; index numbers it within its function (after `program.build`: the program)."""

    index: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. kind "int": a Python int as written; "f32"/"f64": the bit pattern of that type."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, parameter or function, plus bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only special register such as %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset]; base is a Register, a Symbol (offset 0) or None for an absolute address."""

    base: Register | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """{a, b, ...}"""

    elements: tuple


@dataclass(frozen=True, slots=True)
class Group:
    """(a, b, ...) of a call."""

    elements: tuple


@dataclass(frozen=True, slots=True)
class Pair:
    """first|second, the two results of setp and shfl."""

    first: Register | Sink
    second: Register | Sink


@dataclass(frozen=True, slots=True)
class Negated:
    """!predicate as a source."""

    register: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """_ : a result that nobody reads."""


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target; index is the number of the instruction it stands before."""

    name: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class Targets:
    """The label list of brx.idx."""

    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One PTX instruction. name "ld.global.v4.f32" = opcode "ld" + modifiers ("global", "v4", "f32").

    guard is None or (predicate register, negated). line is the line of the PTX text.
    """

    name: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple
    guard: tuple[Register, bool] | None
    location: Location
    line: int

    @property
    def types(self) -> tuple[str, ...]:
        """The modifiers that are scalar types, in order: (result type, source type...) as PTX has them."""
        return tuple(m for m in self.modifiers if m in TYPE_BYTES)

    @property
    def source(self) -> tuple[str, int] | None:
        """(file, line) of the innermost frame, or None."""
        return (self.location[0].file, self.location[0].line) if self.location else None

    def __str__(self) -> str:
        guard = f"@{'!' if self.guard[1] else ''}{self.guard[0].name} " if self.guard else ""
        return f"{guard}{self.name}"


@dataclass(frozen=True)
class Variable:
    """A parameter or a .shared/.local/.const/.global/.param variable. size in bytes; 0 with extern: dynamic.

    data is None (not initialised) or the initial bytes; relocations are (byte offset, symbol name, addend)
    whose 8-byte generic addresses are added when the module is loaded.
    """

    name: str
    space: str
    type: str
    size: int
    align: int
    extern: bool = False
    data: bytes | None = None
    relocations: tuple[tuple[int, str, int], ...] = ()
    is_array: bool = False


@dataclass
class Function:
    """A kernel (`entry`) or a device function; the Symbol operand of a call in its body names another."""

    name: str
    entry: bool
    line: int
    params: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction] = field(default_factory=list)
    declared_only: bool = False
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)  # maxntid, reqntid, minnctapersm ...


@dataclass
class Module:
    """A whole PTX text. variables are module-level ones by name; functions include extern declarations."""

    version: str
    target: str
    functions: dict[str, Function]
    variables: dict[str, Variable]
    files: dict[int, str]

    @property
    def entries(self) -> list[str]:
        """The kernels' names in text order."""
        return [f.name for f in self.functions.values() if f.entry and not f.declared_only]


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/)
      |(?P<newline>\n)
      |(?P<string>"(?:\\.|[^"\\\n])*")
      |(?P<number>0[fF][0-9a-fA-F]{8}(?!\w)|0[dD][0-9a-fA-F]{16}(?!\w)|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
          |\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+U?)
      |(?P<word>[%.]?[A-Za-z_$%](?:[\w$.%]|::(?=\w))*)
      |(?P<punct>[][{}()<>,;:+\-!|@=*~])""",
    re.VERBOSE | re.DOTALL,
)

_SPECIAL = re.compile(
    r"%(?:(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyzw]|cluster_ctarank"
    r"|cluster_nctarank|is_explicit_cluster|laneid|warpid|nwarpid|smid|nsmid|gridid|lanemask_(?:eq|le|lt|ge|gt)"
    r"|clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi|pm\d|pm\d_64|envreg\d+|total_smem_size"
    r"|dynamic_smem_size|aggr_smem_size|reserved_smem_offset_\w+|current_graph_exec)"
)
_UNKNOWN_SPECIAL = re.compile(r"%(?:is_explicit_cluster|pm\d|envreg|aggr_smem|reserved_smem|current_graph)")
_LINKING = (".visible", ".extern", ".weak", ".common")
_DIRECTIVES = ("maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg")
_MAX_REGISTERS = 1_000_000  # of one function; a bound for junk such as %r<999999999>


class _Tokens:
    """A cursor over the tokens of a text: (kind, text, line)."""

    def __init__(self, text: str):
        self.items: list[tuple[str, str, int]] = []
        line, at, end = 1, 0, len(text)
        while at < end:
            match = _TOKEN.match(text, at)
            if not match:
                raise PtxError(f"unexpected character {text[at]!r}", line)
            kind = match.lastgroup
            if kind == "newline":
                line += 1
            elif kind == "space":
                line += match.group().count("\n")
            elif match.group()[0] == "." and kind == "word":  # ".reg.b32" is two directives
                self.items.extend((kind, f".{part}", line) for part in match.group()[1:].split("."))
            else:
                self.items.append((kind, match.group(), line))
            at = match.end()
        self.items.append(("end", "end of text", line))
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        return self.items[min(self.at + ahead, len(self.items) - 1)][1]

    def kind(self, ahead: int = 0) -> str:
        return self.items[min(self.at + ahead, len(self.items) - 1)][0]

    @property
    def line(self) -> int:
        return self.items[self.at][2]

    def next(self) -> str:
        kind, text, line = self.items[self.at]
        if kind == "end":
            raise PtxError("the text ends in the middle of a statement", line)
        self.at += 1
        return text

    def accept(self, text: str) -> bool:
        if self.peek() == text and self.kind() != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise PtxError(f"expected {text!r}, found {self.peek()!r}", self.line)

    def word(self, what: str) -> str:
        if self.kind() != "word":
            raise PtxError(f"expected {what}, found {self.peek()!r}", self.line)
        return self.next()

    def integer(self, what: str) -> int:
        negative = self.accept("-")
        if self.kind() != "number":
            raise PtxError(f"expected {what}, found {self.peek()!r}", self.line)
        line = self.line
        value = _number(self.next(), line)
        if value.kind != "int":
            raise PtxError(f"expected {what}, found a floating-point literal", line)
        return -value.value if negative else value.value

    def skip_statement(self) -> None:
        while not self.accept(";"):
            self.next()


def _number(text: str, line: int) -> Immediate:
    lower = text.lower()
    if lower.startswith("0f") and len(text) == 10:
        return Immediate(int(text[2:], 16), "f32")
    if lower.startswith("0d") and len(text) == 18:
        return Immediate(int(text[2:], 16), "f64")
    if "x" not in lower and ("." in text or "e" in lower):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    digits = lower.rstrip("u")
    try:
        if digits.startswith("0") and len(digits) > 1 and digits[1].isdigit():
            value = int(digits, 8)
        else:
            value = int(digits, 0)
    except ValueError:
        raise PtxError(f"bad number {text!r}", line) from None
    if value >= 1 << 64:
        raise PtxError(f"the number {text} does not fit 64 bits", line)
    return Immediate(value)


def _negate(value: Immediate) -> Immediate:
    if value.kind == "int":
        return Immediate(-value.value)
    return Immediate(value.value ^ (1 << (31 if value.kind == "f32" else 63)), value.kind)


class _Scope:
    """Names of one `{ }`: registers, variables (their unique name) and labels (their instruction number)."""

    def __init__(self, parent: _Scope | None):
        self.parent = parent
        self.registers: dict[str, Register] = {}
        self.ranges: dict[str, tuple[int, str]] = {}  # "%r" of %r<20> -> (count, type)
        self.variables: dict[str, str] = {}
        self.labels: dict[str, int] = {}
        self.targets: dict[str, tuple[tuple[str, ...], int]] = {}

    def find(self, table: str, name: str):
        scope = self
        while scope is not None:
            value = getattr(scope, table).get(name)
            if value is not None:
                return value
            scope = scope.parent
        return None


class _Parser:
    def __init__(self, text: str):
        text = text.rstrip("\0")
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            raise PtxError("the text contains a NUL character; is this a cubin?", line)
        self.tokens = _Tokens(text)
        self.module = Module("", "", {}, {}, {})
        self.name = ""  # of the instruction whose operands are being read
        self.strings: dict[str, str] = {}  # $L__info_stringN -> its text, from .section .debug_str
        self.location: tuple | None = (
            None  # raw chain: ((file number, line, column, string label, offset), ...)
        )
        self.recent_locations: dict[tuple[int, int, int], tuple] = {}
        self.pending: list[tuple[Function, list]] = []  # raw locations per instruction; files follow the code

    # ---- module level

    def parse(self) -> Module:
        tokens = self.tokens
        while tokens.kind() != "end":
            self.module_statement()
        if not self.module.version:
            raise PtxError("there is no .version directive: this is not PTX", 1)
        for function, raw in self.pending:
            cache: dict[tuple | None, Location] = {None: ()}
            for i, chain in enumerate(raw):
                if chain not in cache:
                    cache[chain] = tuple(self.frame(*step) for step in chain)
                function.body[i] = replace(function.body[i], location=cache[chain])
        return self.module

    def frame(self, file: int, line: int, column: int, label: str, offset: int) -> Frame:
        text = self.strings.get(label, "") if label else ""
        return Frame(self.module.files.get(file, f"file {file}"), line, column, text[offset:].split("\0")[0])

    def module_statement(self) -> None:
        tokens = self.tokens
        line = tokens.line
        word = tokens.word("a directive")
        if word == ".version":
            if tokens.kind() != "number":
                raise PtxError(f"expected a version number, found {tokens.peek()!r}", line)
            self.module.version = tokens.next()
        elif word == ".target":
            self.module.target = tokens.word("a target")
            while tokens.accept(","):
                tokens.word("a target")
        elif word == ".address_size":
            if tokens.integer("an address size") != 64:
                raise UnsupportedError("only .address_size 64 is simulated", line)
        elif word == ".file":
            self.file_directive()
        elif word == ".section":
            self.section()
        elif word == ".pragma":
            tokens.skip_statement()
        elif word == ".alias":
            raise UnsupportedError(".alias is not simulated", line)
        elif word in _LINKING or word in (".entry", ".func", ".const", ".global", ".shared", ".local"):
            extern = False
            while word in _LINKING:
                extern |= word == ".extern"
                word = tokens.word("a directive")
            if word in (".entry", ".func"):
                self.function(word == ".entry", extern, line)
            elif word[1:] in SPACES and word not in (".reg", ".param", ".local"):
                for variable in self.variables(word[1:], extern, None):
                    known = self.module.variables.get(variable.name)
                    if known is None or known.extern or known.size == 0:
                        self.module.variables[variable.name] = variable
            else:
                raise PtxError(f"{word!r} cannot stand here", line)
        else:
            raise PtxError(f"unknown directive {word!r}", line)

    def file_directive(self) -> None:
        tokens = self.tokens
        number = tokens.integer("a file number")
        if tokens.kind() != "string":
            raise PtxError(f"expected a file name, found {tokens.peek()!r}", tokens.line)
        self.module.files[number] = tokens.next()[1:-1]
        while tokens.accept(","):
            tokens.integer("a timestamp or size")

    def section(self) -> None:
        """`.section name { ... }`: only .debug_str is read, for the names of inlined functions."""
        tokens = self.tokens
        tokens.word("a section name")
        tokens.expect("{")
        label, bytes_of = "", bytearray()
        while not tokens.accept("}"):
            if tokens.kind() == "word" and tokens.peek(1) == ":":
                self.strings[label] = bytes_of.decode("utf-8", "replace")
                label, bytes_of = tokens.next(), bytearray()
                tokens.next()
            elif tokens.peek() == ".b8":
                tokens.next()
                while tokens.kind() == "number":
                    bytes_of.append(tokens.integer("a byte") & 0xFF)
                    if not tokens.accept(","):
                        break
            else:
                tokens.next()
        self.strings[label] = bytes_of.decode("utf-8", "replace")

    # ---- variables

    def type_and_align(self) -> tuple[str, int, int]:
        """(.align n | .vN | .attribute(...))* .type -> type, alignment (0: natural), vector length."""
        tokens = self.tokens
        align, vector = 0, 1
        while True:
            line = tokens.line
            word = tokens.word("a type")
            if word == ".align":
                align = tokens.integer("an alignment")
                if align < 1 or align & (align - 1) or align > 1 << 16:
                    raise PtxError(f"the alignment {align} is no power of two", line)
            elif word in (".v2", ".v4"):
                vector = int(word[2:])
            elif word == ".attribute":
                while not tokens.accept(")"):
                    tokens.next()
            elif word[1:] in TYPE_BYTES and word[0] == ".":
                return word[1:], align, vector
            else:
                raise PtxError(f"unknown type {word!r}", line)

    def variables(self, space: str, extern: bool, scope: _Scope | None) -> list[Variable]:
        """The declarators after a space directive, up to the semicolon."""
        tokens = self.tokens
        type_, align, vector = self.type_and_align()
        result = []
        while True:
            line = tokens.line
            name = tokens.word("a variable name")
            count, is_array, open_ended = 1, False, False
            if tokens.accept("<"):
                raise UnsupportedError(f"a parameterised variable {name}<n> is not simulated", line)
            while tokens.accept("["):
                is_array = True
                if tokens.accept("]"):
                    open_ended, count = True, 0
                else:
                    count *= tokens.integer("an array length")
                    tokens.expect("]")
            width = TYPE_BYTES[type_] * vector
            if count < 0 or count * width > 1 << 40:
                raise PtxError(f"the size of {name} is out of range", line)
            data, relocations = None, []
            if tokens.accept("="):
                data, relocations = self.initialiser(type_, line)
                if open_ended:
                    count = -(-len(data) // width)
                if len(data) > count * width:
                    raise PtxError(f"{name} has more initial values than elements", line)
                data = data.ljust(count * width, b"\0")
            result.append(
                Variable(
                    name,
                    space,
                    type_,
                    count * width,
                    align or width,
                    extern,
                    data,
                    tuple(relocations),
                    is_array,
                )
            )
            if not tokens.accept(","):
                break
        tokens.expect(";")
        return result

    def initialiser(self, type_: str, line: int) -> tuple[bytes, list[tuple[int, str, int]]]:
        tokens = self.tokens
        width = TYPE_BYTES[type_]
        out, relocations = bytearray(), []

        def scalar() -> None:
            if tokens.kind() == "word":
                name = tokens.next()
                if name == "generic":
                    tokens.expect("(")
                    name = tokens.word("a variable name")
                    tokens.expect(")")
                addend = tokens.integer("an offset") if tokens.accept("+") else 0
                if width != 8:
                    raise UnsupportedError("an address as initial value must be 8 bytes wide", line)
                relocations.append((len(out), name, addend))
                out.extend(bytes(8))
                return
            negative = tokens.accept("-")
            if tokens.kind() != "number":
                raise PtxError(f"expected an initial value, found {tokens.peek()!r}", tokens.line)
            value = _number(tokens.next(), line)
            value = _negate(value) if negative else value
            out.extend(bits_of(value, type_, line).to_bytes(width, "little"))

        def braces() -> None:
            while True:
                if tokens.accept("{"):
                    braces()
                else:
                    scalar()
                if not tokens.accept(","):
                    break
            tokens.expect("}")

        if tokens.accept("{"):
            braces()
        else:
            scalar()
        return bytes(out), relocations

    # ---- functions

    def parameters(self) -> list[Variable]:
        """( .param .type name[n], ... ) of a function head; offsets follow C's layout rule, see `layout`."""
        tokens = self.tokens
        result: list[Variable] = []
        if tokens.accept(")"):
            return result
        while True:
            line = tokens.line
            space = tokens.word("a parameter")
            if space not in (".param", ".reg"):
                raise PtxError(f"expected .param, found {space!r}", line)
            if space == ".reg":
                raise UnsupportedError("parameters in registers are not simulated", line)
            align = 0
            while tokens.peek() == ".align":
                tokens.next()
                align = tokens.integer("an alignment")
            type_, align2, vector = self.type_and_align()
            if tokens.accept(".ptr"):
                while tokens.kind() == "word" and tokens.peek().startswith("."):
                    if tokens.next() == ".align":
                        tokens.integer("an alignment")
            name = tokens.word("a parameter name")
            width, is_array = TYPE_BYTES[type_] * vector, False
            if tokens.accept("["):
                is_array = True
                count = 0 if tokens.peek() == "]" else tokens.integer("an array length")
                tokens.expect("]")
            else:
                count = 1
            align = align or align2 or width
            if align < 1 or align & (align - 1) or count < 0 or count * width > 1 << 20:
                raise PtxError(f"the parameter {name} has a bad size or alignment", line)
            result.append(Variable(name, "param", type_, count * width, align, is_array=is_array))
            if not tokens.accept(","):
                break
        tokens.expect(")")
        return result

    def function(self, entry: bool, extern: bool, line: int) -> None:
        tokens = self.tokens
        returns = self.parameters() if tokens.accept("(") else []
        name = tokens.word("a function name")
        function = Function(name, entry, line, returns=returns)
        if tokens.accept("("):
            function.params = self.parameters()
        while tokens.kind() == "word":
            here = tokens.line
            word = tokens.next()
            if word == ".noreturn":
                continue
            if word[1:] in _DIRECTIVES:
                values = [tokens.integer("a number")]
                while tokens.accept(","):
                    values.append(tokens.integer("a number"))
                function.directives[word[1:]] = tuple(values)
            elif word == ".pragma":
                tokens.skip_statement()
            elif word in (".explicitcluster", ".maxclusterrank", ".reqnctapercluster"):
                raise UnsupportedError(f"{word} of {name}: clusters are not simulated", here)
            else:
                raise PtxError(f"unknown directive {word!r} at function {name}", tokens.line)
        known = self.module.functions.get(name)
        if tokens.accept(";"):
            function.declared_only = True
            if known is None:
                self.module.functions[name] = function
            return
        if extern:
            raise PtxError(f"the extern function {name} has a body", line)
        if known is not None and not known.declared_only:
            raise PtxError(f"the function {name} is defined twice", line)
        self.module.functions[name] = function
        tokens.expect("{")
        self.body(function)

    def body(self, function: Function) -> None:
        tokens = self.tokens
        self.scope = _Scope(None)
        self.current, self.raw, fixups = function, [], []
        self.location = None
        self.recent_locations = {}
        for variable in (*function.params, *function.returns):
            self.scope.variables[variable.name] = variable.name
        while True:
            line = tokens.line
            if tokens.accept("}"):
                if self.scope.parent is None:
                    break
                self.scope = self.scope.parent
            elif tokens.accept("{"):
                self.scope = _Scope(self.scope)
            elif tokens.accept(";"):
                pass
            elif tokens.kind() == "word" and tokens.peek(1) == ":":
                self.label(function, line)
            elif tokens.peek().startswith(".") and tokens.kind() == "word":
                self.body_directive(function, line)
            else:
                fixups.append((self.instruction(function, line), self.scope))
        for i, scope in fixups:
            instruction = function.body[i]
            if any(isinstance(o, Label | Targets) for o in instruction.operands):
                operands = tuple(self.resolve(o, scope, instruction) for o in instruction.operands)
                function.body[i] = replace(instruction, operands=operands)
        self.pending.append((function, self.raw))

    def resolve(self, operand, scope: _Scope, instruction: Instruction):
        if isinstance(operand, Label):
            index = scope.find("labels", operand.name)
            if index is None:
                raise PtxError(f"the label {operand.name} is not defined", instruction.line)
            return Label(operand.name, index)
        if isinstance(operand, Targets):
            known = scope.find("targets", operand.labels[0].name)
            if known is None:
                raise PtxError(f"no .branchtargets {operand.labels[0].name}", instruction.line)
            return Targets(tuple(self.resolve(Label(n), scope, instruction) for n in known[0]))
        return operand

    def label(self, function: Function, line: int) -> None:
        tokens = self.tokens
        name = tokens.next()
        tokens.expect(":")
        if name in self.scope.labels:
            raise PtxError(f"the label {name} is defined twice", line)
        if tokens.peek() == ".branchtargets":
            tokens.next()
            names = [tokens.word("a label")]
            while tokens.accept(","):
                names.append(tokens.word("a label"))
            tokens.expect(";")
            self.scope.targets[name] = (tuple(names), line)
        elif tokens.peek() in (".callprototype", ".calltargets"):
            raise UnsupportedError("calls through a function pointer are not simulated", line)
        else:
            self.scope.labels[name] = len(function.body)

    def body_directive(self, function: Function, line: int) -> None:
        tokens = self.tokens
        word = tokens.next()
        if word == ".loc":
            self.loc()
        elif word == ".reg":
            self.registers(function, line)
        elif word == ".pragma":
            tokens.skip_statement()
        elif word == ".file":
            self.file_directive()
        elif word[1:] in SPACES or word in _LINKING:
            extern = False
            while word in _LINKING:
                extern |= word == ".extern"
                word = tokens.word("a state space")
            if word[1:] not in SPACES:
                raise PtxError(f"expected a state space, found {word!r}", line)
            for variable in self.variables(word[1:], extern, self.scope):
                if variable.name in self.scope.variables:
                    raise PtxError(f"the variable {variable.name} is declared twice", line)
                unique = variable.name
                if unique in function.variables or self.scope.find("variables", unique):
                    unique = f"{variable.name}@{len(function.variables)}"
                self.scope.variables[variable.name] = unique
                function.variables[unique] = replace(variable, name=unique)
        else:
            raise PtxError(f"unknown directive {word!r}", line)

    def loc(self) -> None:
        """`.loc file line column [, function_name label[+offset], inlined_at file line column]`

        The position named by inlined_at was itself given by an earlier .loc, whose chain continues this one.
        """
        tokens = self.tokens
        key = tuple(tokens.integer("a number of .loc") for _ in range(3))
        label, offset, parent = "", 0, ()
        while tokens.accept(","):
            word = tokens.word("function_name or inlined_at")
            if word == "function_name":
                label = tokens.word("a label")
                offset = tokens.integer("an offset") if tokens.accept("+") else 0
            elif word == "inlined_at":
                at = tuple(tokens.integer("a number of inlined_at") for _ in range(3))
                parent = self.recent_locations.get(at) or ((*at, "", 0),)
            else:
                raise PtxError(f"unknown attribute {word!r} of .loc", tokens.line)
        if len(parent) > 100:
            parent = parent[:100]
        self.location = ((*key, label, offset), *parent)
        self.recent_locations[key] = self.location

    def registers(self, function: Function, line: int) -> None:
        tokens = self.tokens
        type_, _, vector = self.type_and_align()
        if vector != 1:
            raise UnsupportedError("vector registers are not simulated", line)
        while True:
            name = tokens.word("a register name")
            if tokens.accept("<"):
                count = tokens.integer("a register count")
                tokens.expect(">")
                if not 0 <= count <= _MAX_REGISTERS:
                    raise PtxError(f"{count} registers {name}: out of range", line)
                self.scope.ranges[name] = (count, type_)
            else:
                self.scope.registers[name] = self.new_register(function, name, type_)
            if not tokens.accept(","):
                break
        tokens.expect(";")

    def new_register(self, function: Function, name: str, type_: str) -> Register:
        register = Register(len(function.registers), name, type_)
        function.registers.append(register)
        return register

    def find_register(self, name: str) -> Register | None:
        """The register of this name; one of a range %r<n> comes into being at its first use."""
        scope = self.scope
        stem = name.rstrip("0123456789")
        suffix = name[len(stem) :]
        while scope is not None:
            found = scope.registers.get(name)
            if found is not None:
                return found
            # "%r10" may belong to the range "%r" or, with digits in the stem, to "%r1"
            for cut in range(len(suffix)):
                base, number = name[: len(stem) + cut], suffix[cut:]
                known = scope.ranges.get(base)
                if known and (number == "0" or number[0] != "0") and int(number) < known[0]:
                    scope.registers[name] = self.new_register(self.current, name, known[1])
                    return scope.registers[name]
            scope = scope.parent
        return None

    # ---- instructions

    def instruction(self, function: Function, line: int) -> int:
        tokens = self.tokens
        guard = None
        if tokens.accept("@"):
            negated = tokens.accept("!")
            name = tokens.word("a predicate")
            register = self.find_register(name)
            if register is None or register.type != "pred":
                raise PtxError(f"{name} is no predicate register", line)
            guard = (register, negated)
        name = tokens.word("an instruction")
        self.name = name
        opcode, *modifiers = name.split(".")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", opcode) or not all(modifiers):
            raise PtxError(f"{name!r} is no instruction", line)
        operands = []
        if not tokens.accept(";"):
            while True:
                operands.append(self.operand(opcode, len(operands)))
                if not tokens.accept(","):
                    break
            tokens.expect(";")
        function.body.append(Instruction(name, opcode, tuple(modifiers), tuple(operands), guard, (), line))
        self.raw.append(self.location)
        return len(function.body) - 1

    def operand(self, opcode: str, position: int):
        tokens = self.tokens
        line = tokens.line
        if tokens.accept("{"):
            return Vector(self.list_until("}", opcode))
        if tokens.accept("("):
            if opcode != "call":
                raise PtxError("unexpected '('", line)
            if tokens.accept(")"):
                return Group(())
            return Group(self.list_until(")", opcode))
        if tokens.accept("["):
            return self.address(opcode)
        if tokens.accept("!"):
            name = tokens.word("a predicate")
            register = self.find_register(name)
            if register is None:
                raise PtxError(f"the register {name} is not declared", line)
            return Negated(register)
        if tokens.accept("-"):
            if tokens.kind() != "number":
                raise PtxError(f"expected a number, found {tokens.peek()!r}", line)
            return _negate(_number(tokens.next(), line))
        if tokens.accept("~"):
            return Immediate(~tokens.integer("a number"))
        if tokens.kind() == "number":
            return _number(tokens.next(), line)
        if tokens.kind() != "word":
            raise PtxError(f"expected an operand, found {tokens.peek()!r}", line)
        name = tokens.next()
        first = self.named(name, opcode, position, line)
        if tokens.accept("|"):
            second = self.named(tokens.word("a register"), opcode, position, line)
            for part in (first, second):
                if not isinstance(part, Register | Sink):
                    raise PtxError("both sides of '|' must be registers", line)
            return Pair(first, second)
        if isinstance(first, Symbol):
            if tokens.accept("+"):
                return Symbol(first.name, tokens.integer("an offset"))
            if tokens.accept("-"):
                return Symbol(first.name, -tokens.integer("an offset"))
        return first

    def list_until(self, close: str, opcode: str) -> tuple:
        items = []
        while True:
            items.append(self.operand(opcode, len(items)))
            if isinstance(items[-1], Vector | Group | Address):
                raise PtxError("operands are nested too deep", self.tokens.line)
            if not self.tokens.accept(","):
                break
        self.tokens.expect(close)
        return tuple(items)

    def named(self, name: str, opcode: str, position: int, line: int):
        if name == "_":
            return Sink()
        register = self.find_register(name)
        if register is not None:
            return register
        unique = self.scope.find("variables", name)
        if unique is not None:
            return Symbol(unique)
        if _SPECIAL.fullmatch(name):
            if _UNKNOWN_SPECIAL.match(name):
                raise UnsupportedError(f"the special register {name} is not simulated", line)
            # without clusters in its launch, each block is a cluster of its own (PTX ISA, %clusterid)
            return Special(re.sub("^(n?)clusterid", r"\1ctaid", name[1:]))
        if opcode == "bra":
            return Label(name)
        if opcode == "brx" and position == 1:
            return Targets((Label(name),))
        if name in self.module.variables or name in self.module.functions:
            return Symbol(name)
        if name == "WARP_SZ":
            return Immediate(32)
        if name.startswith("%"):
            raise PtxError(f"the register {name} is not declared", line)
        raise PtxError(f"{name!r} is not declared", line)

    def address(self, opcode: str) -> Address:
        tokens = self.tokens
        line = tokens.line
        if tokens.kind() == "number" or tokens.peek() == "-":
            base, offset = None, tokens.integer("an address")
        else:
            base = self.named(tokens.word("an address"), "", 0, line)
            if not isinstance(base, Register | Symbol):
                raise PtxError("an address needs a register or a variable", line)
            offset = 0
        while not tokens.accept("]"):
            if tokens.accept("+"):
                offset += tokens.integer("an offset")
            elif tokens.accept("-"):
                offset -= tokens.integer("an offset")
            elif tokens.peek() == ",":
                raise UnsupportedError(f"{self.name} with a list of coordinates is not simulated", line)
            else:
                raise PtxError(f"expected ']', found {tokens.peek()!r}", line)
        return Address(base, offset)


def bits_of(value: Immediate, type_: str, line: int = 0) -> int:
    """The bit pattern of a literal used as `type_`: unsigned, TYPE_BYTES[type_] wide.

    Floating-point literals convert between f32 and f64; an integer is taken as the bits themselves.
    """
    width = 8 * TYPE_BYTES[type_]
    if type_ == "pred":
        return int(bool(value.value))
    if value.kind == "int":
        return value.value & ((1 << width) - 1)
    if type_ in ("f32", "f64"):
        if value.kind == type_:
            return value.value
        if type_ == "f64":
            return struct.unpack(
                "<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", value.value))[0])
            )[0]
        number = struct.unpack("<d", struct.pack("<Q", value.value))[0]
        try:
            return struct.unpack("<I", struct.pack("<f", number))[0]
        except OverflowError:
            return 0x7F800000 if number > 0 else 0xFF800000
    if {"f32": 32, "f64": 64}[value.kind] == width:
        return value.value
    raise PtxError(f"a {value.kind} literal cannot be used as {type_}", line)


def layout(variables: list[Variable]) -> tuple[dict[str, int], int]:
    """Byte offsets of variables laid out one after the other by their alignments, and the total size."""
    offsets, end = {}, 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        offsets[variable.name] = end
        end += variable.size
    return offsets, end


def parse(text: str) -> Module:
    """Read a PTX text (str). Raises PtxError (UnsupportedError for what is well formed but not simulated)."""
    if not isinstance(text, str):
        raise TypeError(f"PTX text must be str, not {type(text).__name__}")
    parser = _Parser(text)
    try:
        return parser.parse()
    except PtxError as error:
        if error.source or not parser.location:
            raise
        # .file directives follow the code, so the file's name may not have been read yet
        number, line = parser.location[0][:2]
        found = re.search(rf'^\s*\.file\s+{number}\s+"([^"\n]*)"', text, re.MULTILINE)
        raise type(error)(error.message, error.line, (found[1] if found else "?", line)) from None
