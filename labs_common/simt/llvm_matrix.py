"""Matrix instructions in machine code; what they mean and where fragments lie is told in `matrix`.

All 32 lanes are here. Elements travel between lanes in fixed patterns: a product is shuffles and sums.
"""

from __future__ import annotations

from . import llvm_layout as at
from . import vector_math as vm
from .llvm_copies import Copies
from .llvm_text import WARP, Value, const
from .matrix import Product, matrices, product
from .ops import Operation, operands
from .parse import Address
from .program import Access

_SPACES = {"shared": at.SPACE_SHARED, "generic": at.SPACE_GENERIC}


class Matrices(Copies):
    """Adds mma, ldmatrix, stmatrix and movmatrix to a function of the kernel."""

    def matrix(self, row: Operation) -> None:
        """One of them."""
        opcode = self.instruction.opcode
        targets, sources = operands(self.instruction)
        if opcode == "mma":
            self.multiply(product(self.instruction.modifiers), targets, sources)
            return
        if opcode == "movmatrix":
            moved = self.transposed(self.f.spread(self.source(sources[0], "b32")))
            self.result(targets[0], moved, "b32")
            return
        registers = [s for s in sources if not isinstance(s, Address)]
        self.move_rows(self.program.access[self.index], targets, registers)

    def transposed(self, register: Value) -> Value:
        """Every lane's register after the warp's 8 x 8 matrix of 16-bit elements was transposed."""
        f = self.f
        halves = f.emit(f"bitcast {register} to <64 x i16>", "i16", 64)
        turned = f.shuffle(halves, [8 * column + row for row in range(8) for column in range(8)])
        return f.emit(f"bitcast {turned} to <32 x i32>", "i32", WARP)

    def move_rows(self, access: Access, targets: list, registers: list) -> None:
        """ldmatrix and stmatrix: rows of 16 bytes at the addresses of the first lanes, as one access."""
        f = self.f
        mods = self.instruction.modifiers
        count = matrices(mods)
        data = f.pointer("%ctx", at.SCRATCH_DATA)
        address = f.spread(self.address_of(access.address))
        f.store(address, f.pointer("%ctx", at.SCRATCH_ADDRESSES), align=64)
        for m, register in enumerate(registers):
            value = f.spread(self.source(register, "b32"))
            value = self.transposed(value) if "trans" in mods else value
            f.store(value, f.pointer(data, 128 * m), align=64)
        ok = f.call(
            "i1", "access", "ptr %ctx", "ptr %warp", f"i32 {self.index}",
            f"i64 {self.layout.access_number[self.index]}", f"i32 {_SPACES[access.space]}",
            f"i32 {int(bool(registers))}", "i64 16", str(const("i32", (1 << 8 * count) - 1)),
        )  # fmt: skip
        went = f.new_label("went")
        f.cond(ok, went, self.fault_label, "likely")
        f.label(went)
        for m, target in enumerate(targets):
            value = f.load("i32", f.pointer(data, 128 * m), WARP, align=64)
            self.result(target, self.transposed(value) if "trans" in mods else value, "b32")

    # ---- mma

    def parts(self, register, type_: str, per: int) -> list[Value]:
        """The elements of a register, each 32 lanes of f32 (i32 of integers)."""
        f, e = self.f, self.e
        bits = f.spread(self.source(register, "b32"))
        if type_ in ("e4m3", "e5m2"):
            values = []
            for half in (bits, f.bin("lshr", bits, const("i32", 16))):
                pair = vm.from_fp8(f"{type_}x2")(e, f.resize(half, "i16"))
                for shift in (0, 16):
                    bit16 = f.resize(f.bin("lshr", pair, const("i32", shift)), "i16")
                    values.append(vm.widen(e, bit16, "f16"))
            return values
        values = []
        for part in range(per):
            shifted = f.bin("lshr", bits, const("i32", 32 // per * part)) if part else bits
            if type_ in ("s8", "u8"):
                values.append(f.resize(f.resize(shifted, "i8"), "i32", type_ == "s8"))
            else:
                narrow = f.resize(shifted, f"i{32 // per}")
                values.append(vm.widen(e, narrow, type_))
        return values

    def multiply(self, what: Product, targets: list, sources: list) -> None:
        """D = A B + C, ascending in k, in f64 (integers: 32 bits)."""
        f, e = self.f, self.e
        count_a, count_b, _ = what.registers
        integer, half = what.accumulator == "s32", what.accumulator == "f16"
        wide = "s32" if integer else "f64"
        a = [self.parts(r, what.a, what.per) for r in sources[:count_a]]
        b = [self.parts(r, what.b, what.per) for r in sources[count_a : count_a + count_b]]
        totals = self.accumulators(what, sources[count_a + count_b :])
        lanes = range(WARP)
        for k in range(what.k):
            register, t, part = what.place_a(k)
            rows = [f.shuffle(a[register + h][part], [n // 4 * 4 + t for n in lanes]) for h in range(2)]
            register, t, part = what.place_b(k)
            columns = [
                f.shuffle(b[register][part], [(n % 4 * 2 + p) * 4 + t for n in lanes]) for p in range(2)
            ]
            if not integer:
                rows = [e.cast("fpext", v, wide) for v in rows]
                columns = [e.cast("fpext", v, wide) for v in columns]
            for h in range(2):
                for p in range(2):
                    n = 2 * h + p
                    if integer:
                        totals[n] = f.bin("add", totals[n], f.bin("mul", rows[h], columns[p]))
                    else:  # the product is exact
                        totals[n] = f.bin("fadd", totals[n], f.bin("fmul", rows[h], columns[p]))
        if half:
            for h, target in enumerate(targets):
                low, high = (f.resize(vm.narrow(e, v, "f16"), "i32") for v in totals[2 * h : 2 * h + 2])
                self.result(target, f.bin("or", low, f.bin("shl", high, const("i32", 16))), "b32")
            return
        for target, total in zip(targets, totals, strict=True):
            value = total if integer else e.cast("fptrunc", total, "f32")
            self.result(target, value, what.accumulator)

    def accumulators(self, what: Product, registers: list) -> list[Value]:
        """C: rows g and g + 8 of columns 2 t and 2 t + 1, each 32 lanes."""
        f, e = self.f, self.e
        if what.accumulator == "s32":
            return [f.spread(self.source(r, "s32")) for r in registers]
        if what.accumulator == "f32":
            values = [f.spread(self.source(r, "f32")) for r in registers]
        else:
            values = [v for r in registers for v in self.parts(r, "f16", 2)]
        return [e.cast("fpext", v, "f64") for v in values]
