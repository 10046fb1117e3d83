"""The NumPy engine's inner loops over addresses, as machine code: one pass over the lanes, not ten.

Array arguments are NumPy objects (see `vector_math._DATA_FIELD`); every function is a plain scalar loop that
LLVM's own passes vectorise. Nothing here is checked: callers have made sure that every access is in range.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import llvmlite.binding as llvm

from . import vector_math as vm

_BOUNDS = """
define void @f(i64 %n, i64 %address.o, i64 %out.o) {
entry:
{fields}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %low = phi i64 [ -1, %entry ], [ %low2, %loop ]
  %high = phi i64 [ 0, %entry ], [ %high2, %loop ]
  %any = phi i64 [ 0, %entry ], [ %any2, %loop ]
  %at = getelementptr i64, ptr %address, i64 %i
  %a = load i64, ptr %at
  %low2 = call i64 @llvm.umin.i64(i64 %low, i64 %a)
  %high2 = call i64 @llvm.umax.i64(i64 %high, i64 %a)
  %any2 = or i64 %any, %a
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  store i64 %low2, ptr %out
  %out1 = getelementptr i64, ptr %out, i64 1
  store i64 %high2, ptr %out1
  %out2 = getelementptr i64, ptr %out, i64 2
  store i64 %any2, ptr %out2
  ret void
}
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
"""

_SECTORS = """
define i64 @f(i64 %n, i64 %address.o, i64 %warp.o, i64 %base, i64 %marks.o) {
entry:
{fields}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %previous = phi i64 [ -1, %entry ], [ %sector, %loop ]
  %last = phi i32 [ -1, %entry ], [ %w, %loop ]
  %count = phi i64 [ 0, %entry ], [ %count2, %loop ]
  %bad = phi i1 [ false, %entry ], [ %bad2, %loop ]
  %at = getelementptr i64, ptr %address, i64 %i
  %a = load i64, ptr %at
  %offset = sub i64 %a, %base
  %sector = lshr i64 %offset, 5
  %wat = getelementptr i32, ptr %warp, i64 %i
  %w = load i32, ptr %wat
  %same = icmp eq i32 %w, %last
  %before = select i1 %same, i64 %previous, i64 -1
  %new = icmp ne i64 %sector, %before
  %back = icmp slt i64 %sector, %before
  %one = zext i1 %new to i64
  %count2 = add i64 %count, %one
  %bad2 = or i1 %bad, %back
  %mark = getelementptr i8, ptr %marks, i64 %sector
  store i8 1, ptr %mark
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  %result = select i1 %bad2, i64 -1, i64 %count2
  ret i64 %result
}
"""

_RACE = """
define i64 @f(i64 %n, i64 %index.o, i64 %bit.o, i64 %lane.o, i64 %epoch.o, i64 %span, i64 %shift, i64 %kind,
              i64 %instruction, i64 %state.o, i64 %row.o) {
; kind: 0 read, 1 write, 2 atomic; gives the first conflicting lane * 1024 + unit of its access, or -1;
; row is then the state as it was
entry:
{fields}
  %words = lshr i64 %span, %shift
  %what = trunc i64 %instruction to i32
  br label %lanes
lanes:
  %i = phi i64 [ 0, %entry ], [ %next, %after ]
  %found = phi i64 [ -1, %entry ], [ %found3, %after ]
  %iat = getelementptr i64, ptr %index, i64 %i
  %byte = load i64, ptr %iat
  %first = lshr i64 %byte, %shift
  %bat = getelementptr i32, ptr %bit, i64 %i
  %b = load i32, ptr %bat
  %others = xor i32 %b, -1
  %lat = getelementptr i32, ptr %lane, i64 %i
  %l = load i32, ptr %lat
  %eat = getelementptr i32, ptr %epoch, i64 %i
  %e = load i32, ptr %eat
  br label %word
word:
  %k = phi i64 [ 0, %lanes ], [ %k2, %stored ]
  %found2 = phi i64 [ %found, %lanes ], [ %found3, %stored ]
  %at = add i64 %first, %k
  %sp = getelementptr [8 x i32], ptr %state, i64 %at, i64 0
  %rp = getelementptr [8 x i32], ptr %state, i64 %at, i64 1
  %wp = getelementptr [8 x i32], ptr %state, i64 %at, i64 2
  %ap = getelementptr [8 x i32], ptr %state, i64 %at, i64 3
  %s = load i32, ptr %sp
  %current = icmp eq i32 %s, %e
  br i1 %current, label %check, label %renew
renew:
  store i32 %e, ptr %sp
  store i32 0, ptr %rp
  store i32 0, ptr %wp
  store i32 0, ptr %ap
  br label %check
check:
  %r = load i32, ptr %rp
  %w = load i32, ptr %wp
  %a = load i32, ptr %ap
  %wa = or i32 %w, %a
  %rw = or i32 %r, %w
  %all = or i32 %rw, %a
  %isread = icmp eq i64 %kind, 0
  %iswrite = icmp eq i64 %kind, 1
  %m1 = select i1 %isread, i32 %wa, i32 %rw
  %m2 = select i1 %iswrite, i32 %all, i32 %m1
  %m3 = and i32 %m2, %others
  %clash = icmp ne i32 %m3, 0
  %none = icmp eq i64 %found2, -1
  %take = and i1 %clash, %none
  %code0 = mul i64 %i, 1024
  %code = add i64 %code0, %k
  %found3 = select i1 %take, i64 %code, i64 %found2
  br i1 %take, label %keep, label %put
keep:
  call void @llvm.memcpy.p0.p0.i64(ptr %row, ptr %sp, i64 32, i1 false)
  br label %stored
put:
  br i1 %isread, label %read, label %write
read:
  %r2 = or i32 %r, %b
  store i32 %r2, ptr %rp
  %rl = getelementptr [8 x i32], ptr %state, i64 %at, i64 4
  store i32 %l, ptr %rl
  %ri = getelementptr [8 x i32], ptr %state, i64 %at, i64 6
  store i32 %what, ptr %ri
  br label %stored
write:
  %target = select i1 %iswrite, ptr %wp, ptr %ap
  %old = load i32, ptr %target
  %new = or i32 %old, %b
  store i32 %new, ptr %target
  %wl = getelementptr [8 x i32], ptr %state, i64 %at, i64 5
  store i32 %l, ptr %wl
  %wi = getelementptr [8 x i32], ptr %state, i64 %at, i64 7
  store i32 %what, ptr %wi
  br label %stored
stored:
  %k2 = add i64 %k, 1
  %more_words = icmp ult i64 %k2, %words
  br i1 %more_words, label %word, label %after
after:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %lanes, label %done
done:
  ret i64 %found3
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


_OWN = """
define i64 @f(i64 %n, i64 %index.o, i64 %lane.o, i64 %stamp.o, i64 %warp.o, i64 %floor.o, i64 %span,
              i64 %shift, i64 %kind, i64 %instruction, i64 %state.o, i64 %row.o) {
; hazards within a warp; gives (lane * 1024 + unit) * 4 + 0: read after write, 1: write after write,
; 2: write after read; or -1. state: stamp and lanes of reads, where; stamp and lane of the last write, where;
; the warp whose reads these are, the first to read in its epoch: stamps from floor on are of this epoch
entry:
{fields}
  %units = lshr i64 %span, %shift
  %what = trunc i64 %instruction to i32
  %isread = icmp eq i64 %kind, 0
  %isatomic = icmp eq i64 %kind, 2
  %flag = select i1 %isatomic, i32 32, i32 0
  br label %lanes
lanes:
  %i = phi i64 [ 0, %entry ], [ %next, %after ]
  %found = phi i64 [ -1, %entry ], [ %found3, %after ]
  %iat = getelementptr i64, ptr %index, i64 %i
  %byte = load i64, ptr %iat
  %first = lshr i64 %byte, %shift
  %lat = getelementptr i32, ptr %lane, i64 %i
  %l = load i32, ptr %lat
  %bit = shl i32 1, %l
  %others = xor i32 %bit, -1
  %mark = or i32 %l, %flag
  %sat = getelementptr i32, ptr %stamp, i64 %i
  %s = load i32, ptr %sat
  %wat = getelementptr i32, ptr %warp, i64 %i
  %w = load i32, ptr %wat
  %fat = getelementptr i32, ptr %floor, i64 %i
  %low = load i32, ptr %fat
  br label %unit
unit:
  %k = phi i64 [ 0, %lanes ], [ %k2, %stored ]
  %found2 = phi i64 [ %found, %lanes ], [ %found3, %stored ]
  %at = add i64 %first, %k
  %rs.p = getelementptr [8 x i32], ptr %state, i64 %at, i64 0
  %rl.p = getelementptr [8 x i32], ptr %state, i64 %at, i64 1
  %ri.p = getelementptr [8 x i32], ptr %state, i64 %at, i64 2
  %ws.p = getelementptr [8 x i32], ptr %state, i64 %at, i64 3
  %wl.p = getelementptr [8 x i32], ptr %state, i64 %at, i64 4
  %wi.p = getelementptr [8 x i32], ptr %state, i64 %at, i64 5
  %rs = load i32, ptr %rs.p
  %rl = load i32, ptr %rl.p
  %ws = load i32, ptr %ws.p
  %wl = load i32, ptr %wl.p
  %wi = load i32, ptr %wi.p
  %reads.now = icmp eq i32 %rs, %s
  %writes.now = icmp eq i32 %ws, %s
  %writer = and i32 %wl, 31
  %foreign = icmp ne i32 %writer, %l
  %was.atomic = icmp uge i32 %wl, 32
  %both.atomic = and i1 %was.atomic, %isatomic
  %plain = xor i1 %both.atomic, true
  %after.write0 = and i1 %writes.now, %foreign
  %after.write = and i1 %after.write0, %plain
  %raw = and i1 %after.write, %isread
  %elsewhere = icmp ne i32 %wi, %what
  %notread = xor i1 %isread, true
  %waw0 = and i1 %after.write, %notread
  %waw = and i1 %waw0, %elsewhere
  %readers = and i32 %rl, %others
  %some = icmp ne i32 %readers, 0
  %war0 = and i1 %reads.now, %some
  %war = and i1 %war0, %notread
  %any0 = or i1 %raw, %waw
  %clash = or i1 %any0, %war
  %none = icmp eq i64 %found2, -1
  %take = and i1 %clash, %none
  %which0 = select i1 %waw, i64 1, i64 2
  %which = select i1 %raw, i64 0, i64 %which0
  %code0 = mul i64 %i, 1024
  %code1 = add i64 %code0, %k
  %code2 = mul i64 %code1, 4
  %code = add i64 %code2, %which
  %found3 = select i1 %take, i64 %code, i64 %found2
  br i1 %take, label %keep, label %put
keep:
  call void @llvm.memcpy.p0.p0.i64(ptr %row, ptr %rs.p, i64 32, i1 false)
  br label %stored
put:
  br i1 %isread, label %read, label %write
read:
  %rw.p = getelementptr [8 x i32], ptr %state, i64 %at, i64 6
  %rw = load i32, ptr %rw.p
  %this.epoch = icmp sge i32 %rs, %low
  %another = icmp ne i32 %rw, %w
  %taken = and i1 %this.epoch, %another
  br i1 %taken, label %stored, label %note
note:
  store i32 %w, ptr %rw.p
  %before = select i1 %reads.now, i32 %rl, i32 0
  %lanes2 = or i32 %before, %bit
  store i32 %s, ptr %rs.p
  store i32 %lanes2, ptr %rl.p
  store i32 %what, ptr %ri.p
  br label %stored
write:
  store i32 %s, ptr %ws.p
  store i32 %mark, ptr %wl.p
  store i32 %what, ptr %wi.p
  br label %stored
stored:
  %k2 = add i64 %k, 1
  %more_units = icmp ult i64 %k2, %units
  br i1 %more_units, label %unit, label %after
after:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %lanes, label %done
done:
  ret i64 %found3
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

_TWICE = """
define i64 @f(i64 %n, i64 %index.o, i64 %warp.o, i64 %from) {
; the first lane from %from on whose address an earlier lane of its warp has too, times 32, plus how far
; back that is; or -1
entry:
{fields}
  br label %lanes
lanes:
  %i = phi i64 [ %from, %entry ], [ %next, %on ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %lane, label %none
lane:
  %iat = getelementptr i64, ptr %index, i64 %i
  %a = load i64, ptr %iat
  %wat = getelementptr i32, ptr %warp, i64 %i
  %w = load i32, ptr %wat
  br label %back
back:
  %d = phi i64 [ 1, %lane ], [ %d2, %further ]
  %room = icmp ule i64 %d, %i
  %near = icmp ult i64 %d, 32
  %look = and i1 %room, %near
  br i1 %look, label %other, label %on
other:
  %j = sub i64 %i, %d
  %jat = getelementptr i64, ptr %index, i64 %j
  %b = load i64, ptr %jat
  %vat = getelementptr i32, ptr %warp, i64 %j
  %v = load i32, ptr %vat
  %samewarp = icmp eq i32 %v, %w
  br i1 %samewarp, label %compare, label %on
compare:
  %same = icmp eq i64 %a, %b
  br i1 %same, label %found, label %further
further:
  %d2 = add i64 %d, 1
  br label %back
found:
  %code0 = mul i64 %i, 32
  %code = add i64 %code0, %d
  ret i64 %code
on:
  %next = add i64 %i, 1
  br label %lanes
none:
  ret i64 -1
}
"""


def _gather_text(width: int, count: int) -> str:
    bits = 8 * width
    moves = "".join(
        f"""
  %p{k} = getelementptr i8, ptr %from, i64 {k * width}
  %v{k} = load i{bits}, ptr %p{k}, align {width}
  %o{k} = mul i64 %n, {k}
  %q{k} = add i64 %o{k}, %i
  %t{k} = getelementptr i{bits}, ptr %out, i64 %q{k}
  store i{bits} %v{k}, ptr %t{k}, align {width}"""
        for k in range(count)
    )
    return f"""
define void @f(i64 %n, i64 %address.o, i64 %base, i64 %host.o, i64 %out.o) {{
entry:
{{fields}}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %address, i64 %i
  %a = load i64, ptr %at
  %offset = sub i64 %a, %base
  %from = getelementptr i8, ptr %host, i64 %offset{moves}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def _compile(text: str) -> Callable:
    signature = text[text.index("(") + 1 : text.index(")")]
    names = [part.split("%")[1].strip() for part in signature.split(",")]
    fields = []
    for name in names:
        if name.endswith(".o"):
            stem = name[:-2]
            fields += [
                f"  %{stem}.f = add i64 %{name}, {vm._DATA_FIELD}",
                f"  %{stem}.p = inttoptr i64 %{stem}.f to ptr",
                f"  %{stem} = load ptr, ptr %{stem}.p",
            ]
    module = llvm.parse_assembly(
        f'target triple = "{llvm.get_process_triple()}"\n' + text.replace("{fields}", "\n".join(fields))
    )
    target = vm._target()
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    vm._engines.append(engine)
    returns = ctypes.c_int64 if "define i64" in text else None
    return ctypes.CFUNCTYPE(returns, *[ctypes.c_int64] * len(names))(engine.get_function_address("f"))


@functools.cache
def bounds() -> Callable:
    """f(n, addresses, out[3]): least, greatest, and all bits or-ed together, of uint64 addresses."""
    return _compile(_BOUNDS)


@functools.cache
def sectors() -> Callable:
    """f(n, addresses, warp numbers int32, base, marks) -> distinct sectors per warp summed, -1 if a warp's
    addresses do not ascend (the marks are set all the same)."""
    return _compile(_SECTORS)


@functools.cache
def gather(width: int, count: int) -> Callable:
    """f(n, addresses, base, memory uint8, out[count, n]): elements of `width` bytes at address - base."""
    return _compile(_gather_text(width, count))


@functools.cache
def own_race() -> Callable:
    """The hazard check within warps of `races.Races`."""
    return _compile(_OWN)


@functools.cache
def twice() -> Callable:
    """f(n, addresses, warp numbers int32, from): lanes of a warp with one address; see the text."""
    return _compile(_TWICE)


@functools.cache
def race() -> Callable:
    """The hazard check of `races.Races`; see there for the arguments and the state."""
    return _compile(_RACE)
