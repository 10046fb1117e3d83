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
define i64 @f(i64 %n, i64 %index.o, i64 %bit.o, i64 %lane.o, i64 %epoch.o, i64 %span, i64 %kind,
              i64 %instruction, i64 %state.o) {
; kind: 0 read, 1 write, 2 atomic; gives the first conflicting lane * 1024 + word of its access, or -1
entry:
{fields}
  %words4 = add i64 %span, 3
  %words = lshr i64 %words4, 2
  %what = trunc i64 %instruction to i32
  br label %lanes
lanes:
  %i = phi i64 [ 0, %entry ], [ %next, %after ]
  %found = phi i64 [ -1, %entry ], [ %found3, %after ]
  %iat = getelementptr i64, ptr %index, i64 %i
  %byte = load i64, ptr %iat
  %first = lshr i64 %byte, 2
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
  br i1 %take, label %stored, label %put
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
def race() -> Callable:
    """The hazard check of `races.Races`; see there for the arguments and the state."""
    return _compile(_RACE)
