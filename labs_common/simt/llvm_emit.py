"""A program as LLVM IR: `uniform` code with scalars where it can, `masked` code for lanes that went apart.

uniform(ctx, warp): all living lanes of the warp are at one block. Registers are SSA values; a branch that
every lane takes the same way stays inside. A short arm of a divergent branch is run in place under a mask;
otherwise the warp's registers are stored, one pc per lane, and the function returns SWITCH.
masked(ctx, warp): the lowest block that a runnable lane is at runs for the lanes that are there; registers
that live across blocks are in the warp state. Where all lanes have met and the scalars of uniform code are
equal in all of them, the warp goes back. `setup` computes what is the same for the whole launch.
"""

from __future__ import annotations

from . import llvm_driver
from .errors import UnsupportedError
from .llvm_analysis import analyse, chains
from .llvm_code import Layout, Misjudged, register_type
from .llvm_layout import CTX
from .llvm_masked import Masked
from .llvm_split import sharing_blocks
from .llvm_text import Module, Value, const
from .llvm_uniform import Stepped, Uniform
from .llvm_warp import Code
from .ops import operation
from .parse import Register
from .program import Program, reads
from .spins import spinning_branches


class Setup(Code):
    """Launch constants, once."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel, "setup", "void", [("ptr", "ctx"), ("ptr", "warp")])

    def constant_register(self, register: Register) -> Value | None:
        """Only literals: computed constants are being computed here."""
        if register.index in self.analysis.computed:
            return None
        return super().constant_register(register)

    def load_register(self, register: Register) -> Value:
        """A launch constant never reads a register that is none."""
        return const(register_type(register), 0)

    def write(self, register: Register, value: Value) -> None:
        """Into the constants of the context, one word for each register."""
        f = self.f
        self.cache[register.index] = value
        base = f.field("ptr", "%ctx", CTX["constants"]).name
        stored = f.resize(value, "i8") if value.type == "i1" else value
        f.store(stored, f.pointer(base, 8 * register.index))

    def function(self) -> None:
        """Write the whole function."""
        self.begin_function()
        self.fresh_block()
        self.mask = const("i32", -1)
        for i in self.program.launch_constants:
            self.index = i
            row = operation(self.instruction)
            if row.kind == "memory":
                self.memory(row, self.program.access[i])
            elif row.kind == "alu":
                self.alu(row)
            else:
                raise UnsupportedError(f"{self.instruction.name} is not simulated", self.line)
        self.f.ret()
        self.f.finish()


class Kernel:
    """The IR of one program. `text(triple, attributes)` is the module.

    stepped: the driver interleaves the warps of a block, one basic block at a time, and races are looked for;
    the program comes from `split_at_accesses` then.
    """

    def __init__(self, program: Program, stepped: bool = False):
        self.program, self.stepped = program, stepped
        self.analysis = analyse(program)
        self.spins = spinning_branches(program)
        self.copying = any(a.operation == "cp" for a in program.access.values())
        if stepped:
            chained = chains(program)
            sharing = sharing_blocks(program)
            self.follows = [
                n in chained.previous and not program.blocks[n].waits and n not in sharing
                for n in range(len(program.blocks))
            ]
            self.analysis.regions = {}
            self.analysis.enterable = list(range(len(program.blocks)))
            for n in range(len(program.blocks)):
                self.analysis.chain[n] = n
        self.read_registers = _read_registers(program)
        while True:
            self.layout = Layout(program, self.analysis)
            self.module = Module()
            try:
                self._emit()
                return
            except Misjudged as wrong:
                self.analysis.vectors.add(wrong.args[0])

    def _emit(self) -> None:
        self.module.declarations.update(llvm_driver.DECLARATIONS)
        together = Stepped if self.stepped else Uniform
        for code in (Setup(self), together(self), Masked(self)):
            code.function()

    def text(self, triple: str, attributes: str) -> str:
        """The IR."""
        return self.module.text(triple, attributes)


def _read_registers(program: Program) -> set[int]:
    found = {r.index for i in program.instructions for r in reads(i)}
    found |= {b.predicate.index for b in program.blocks if isinstance(b.predicate, Register)}
    return found
