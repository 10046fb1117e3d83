"""The second front end: clang's PTX gives what NVRTC's gives, on both engines, and says whose it is."""

from __future__ import annotations

import importlib.util
import math
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

from labs_common import compiler, front_end_table, front_ends, zig
from labs_common.compare import compare
from labs_common.compiler import CompileError, CompilerMissing
from labs_common.design_figures import design_table
from labs_common.doctor import diagnose
from labs_common.engines import SimulatorEngine
from labs_common.front_ends import open_front_end
from labs_common.grading.execution import GradingEngine
from labs_common.inputs import make_inputs
from labs_common.metric_names import REGISTERS, THEORETICAL_OCCUPANCY, WAVES
from labs_common.occupancy import NO_REGISTERS
from labs_common.plans import Device
from labs_common.problem import PRESETS, Problem
from labs_common.reference import reference
from labs_common.simt import cupy_like as xp
from labs_common.simt.errors import TrapError
from labs_common.simt.parse import parse
from labs_common.source import Source
from labs_common.stages import STAGES, find_stage
from labs_common.zig_ir import widen_copies

RNG = np.random.default_rng(7)
MIXED = Problem(6, 2, 64, 16, (0, 1, 16, 33, 150), name="mixed")
HALVES = [
    MIXED.replace(dtype="float16", layout=layout, name=f"half {layout}")
    for layout in ("NHD", "HND", "packed")
]

SMALL = [PRESETS["tiny"], Problem(4, 2, 32, 8, (11, 0), "float16", "packed", name="small half")]


def on_zig(core: str = "llvm") -> SimulatorEngine:
    return SimulatorEngine(core=core, front_end="zig")


# ---- the stages


@pytest.mark.parametrize(
    ("core", "problem"),
    [*(("llvm", problem) for problem in (PRESETS["tiny"], MIXED, *HALVES)), *(("numpy", p) for p in SMALL)],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_stage_is_right_and_clean(core, problem):
    inputs = make_inputs(problem)
    expected = reference(problem, inputs)
    taken = [stage for stage in STAGES if stage.supports(problem) is None]
    for stage in taken:
        outcome = on_zig(core).run(stage, problem, inputs)
        verdict = compare(outcome.output, expected)

        assert verdict.ok and not outcome.findings, f"{stage.id}: {verdict.diagnosis} {outcome.findings}"
    assert "05_partitioned_gqa" in [stage.id for stage in taken]


def counts_by_line(stage, problem, front_end):
    """Accesses to memory, barriers and shuffles of a stage, by metric, file and line."""
    outcome = SimulatorEngine(front_end=front_end).run(stage, problem, make_inputs(problem))
    rows = outcome.metrics
    kept = rows[
        rows["line"].notna() & rows["metric"].str.contains("global_op|shared|barrier|shuffle|bar_|shfl")
    ]
    return {
        key: value for key, value in kept.groupby(["metric", "file", "line"])["value"].sum().items() if value
    }


@pytest.mark.parametrize("stage", ["00", "01", "02", "03", "04"])
def test_memory_is_accessed_as_in_nvrtcs_code_line_by_line(stage):
    ours = counts_by_line(find_stage(stage), PRESETS["tiny"], "zig")
    nvrtcs = counts_by_line(find_stage(stage), PRESETS["tiny"], "nvrtc")

    assert any("requests" in metric for metric, _, _ in nvrtcs)
    assert ours == nvrtcs


def test_figures_name_the_front_end_and_registers_are_not_measured():
    problem = PRESETS["tiny"]
    outcome = on_zig().run(find_stage("01"), problem, make_inputs(problem))
    metrics = outcome.metrics.set_index("metric")

    assert set(outcome.metrics["tool"]) == {"simulator, zig", "formula"}
    assert outcome.engine == "simulator, zig"
    for name in (REGISTERS, THEORETICAL_OCCUPANCY, WAVES):
        assert math.isnan(metrics.loc[name, "value"])
        assert metrics.loc[name, "reason"] == NO_REGISTERS
    # warp_sums[8] of the kernel, known from the PTX
    assert metrics.loc["launch__shared_mem_per_block_static", "value"] == 32


def test_the_page_says_what_comes_out_now():
    """python -m labs_common.front_end_table writes it anew."""
    assert front_end_table.PAGE.read_text(encoding="utf-8") == front_end_table.page()


# ---- which front end


@pytest.fixture
def no_nvrtc(monkeypatch):
    def missing():
        raise CompilerMissing("no NVRTC on this machine (test): pip install it")

    monkeypatch.setattr(compiler, "_nvrtc", missing)
    compiler._compile.cache_clear()  # what was compiled before would still be there


def test_nvrtc_is_taken_unless_zig_is_named(monkeypatch):
    monkeypatch.delenv(front_ends.ENVIRONMENT, raising=False)
    assert open_front_end().label == f"NVRTC {compiler.compiler_version()}"
    monkeypatch.setenv(front_ends.ENVIRONMENT, "zig")
    assert open_front_end().name == "zig"
    assert open_front_end("nvrtc").name == "nvrtc"
    monkeypatch.setenv(front_ends.ENVIRONMENT, "gcc")
    with pytest.raises(ValueError, match="PALAB_FRONT_END='gcc': allowed are auto, nvrtc, zig"):
        open_front_end()
    with pytest.raises(ValueError, match="front_end='clang'"):
        open_front_end("clang")


def test_without_nvrtc_zig_is_taken_and_doctor_says_so(no_nvrtc, monkeypatch):
    monkeypatch.delenv(front_ends.ENVIRONMENT, raising=False)
    assert open_front_end().label.startswith("clang ")
    abilities = {ability.name: ability for ability in diagnose()}
    assert not abilities["CUDA compiler"].works
    assert abilities["Front end"].works and "ziglang" in abilities["Front end"].detail
    assert "registers are not measured" in abilities["Front end"].detail

    problem = PRESETS["tiny"]
    inputs = make_inputs(problem)
    outcome = SimulatorEngine().run(find_stage("02"), problem, inputs)
    assert compare(outcome.output, reference(problem, inputs)).ok


def test_the_designs_figures_lack_only_what_ptxas_knows(no_nvrtc):
    table = design_table().set_index("name")["lab"]

    missing = {"shared memory", "registers", "spilled registers"}
    assert set(table.index[table.isna()]) == missing
    assert table["partitions"] == 196  # 100,000 tokens, 512 each


def test_with_neither_the_error_names_both_remedies(no_nvrtc, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompilerMissing, match=r"NVRTC.*pip install ziglang"):
        open_front_end()
    with pytest.raises(CompilerMissing, match="no NVRTC"):
        open_front_end("nvrtc")


def test_grading_takes_nvrtc_whatever_is_chosen(monkeypatch):
    monkeypatch.setenv(front_ends.ENVIRONMENT, "zig")
    assert GradingEngine(Device()).front_end.name == "nvrtc"


# ---- what a student is told


def errors_of(text: str) -> CompileError:
    with pytest.raises(CompileError) as caught:
        zig.compile_ptx(Source("mine.cu", text), {}, "sm_90")
    return caught.value


def test_errors_are_on_the_students_own_lines():
    found = errors_of(
        '#include "paged_attention.cuh"\n\nextern "C" __global__ void k(float* out) {\n  out[0] = oops;\n}\n'
    )

    assert [(file, line) for file, line, _ in found.diagnostics] == [("mine.cu", 4)]
    assert "oops" in found.diagnostics[0][2]
    assert "/lab/" not in str(found) and str(zig.HEADERS) not in str(found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("f[0] = tanhf(f[1]);", r"tanhf.*libdevice"),
        ("f[0] = powf(f[1], f[2]);", r"powf.*libdevice"),
        ("__hmma(f);", "__hmma"),
        ("float4 a = *(float4*)f + 1.0f;", "float4"),
        ("f[0] = INFINITY;", "INFINITY"),
        ("uint32_t i = 0;", "uint32_t"),
    ],
)
def test_what_is_not_there_is_named(line, said):
    found = errors_of(f'extern "C" __global__ void k(float* f) {{\n{line}\n}}\n')

    assert found.diagnostics[0][1] == 2
    assert re.search(said, found.diagnostics[0][2])


@pytest.mark.parametrize("header", ["cmath", "mma.h", "cuda_fp8.h", "cub/cub.cuh"])
def test_a_header_that_is_not_there_gives_a_hint(header):
    found = errors_of(f'#include <{header}>\nextern "C" __global__ void k(float* f) {{}}\n')

    assert found.diagnostics[0][:2] == ("mine.cu", 1)
    assert f"hint: {header} comes with" in str(found) and "cuda_fp16.h" in str(found)


def test_no_path_and_no_cache_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zig._compile.cache_clear()
    text = '#include <cuda_fp16.h>\nextern "C" __global__ void k(float* f) { f[0] = __half2float(f[1]); }\n'
    ptx = zig.compile_ptx(Source("mine.cu", text), {}, "sm_90")

    assert list(tmp_path.iterdir()) == []
    assert str(zig.HEADERS.parent) not in ptx and tempfile.gettempdir() not in ptx
    assert list(parse(ptx).files.values()) == ["/lab/kernels/mine.cu"]


def test_an_inlined_instruction_keeps_its_chain():
    text = """__device__ float inner(float x) {
  return x * 3.0f;
}
__device__ float outer(float x) {
  return inner(x) + 1.0f;
}
extern "C" __global__ void k(float* f) {
  f[0] = outer(f[1]);
}
"""
    module = parse(zig.compile_ptx(Source("mine.cu", text), {}, "sm_90"))
    chains = {
        tuple(frame.line for frame in i.location) for i in module.functions["k"].body if i.opcode == "fma"
    }

    assert chains in ({(2, 5, 8)}, {(5, 8)})  # of the product, or of the sum that it was fused with


# ---- the prelude against NVRTC, whose functions are built in

PROLOGUE = """
extern "C" __global__ void k(const float* in, const int* numbers, float* out, unsigned* bits) {
  const int t = threadIdx.x;
  const float x = in[t], y = in[t + 64];
  const int i = numbers[t], j = numbers[t + 64];
"""
HALF_HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


def cases() -> list:
    """(includes, body) of each case of the file, by its name."""
    text = (Path(__file__).parent / "front_end_cases.cu").read_text(encoding="utf-8")
    plain, halves = text.split("/* The same after cuda_fp16.h")
    return [
        pytest.param(includes, body, id=name)
        for includes, part in (("", plain), (HALF_HEADERS, halves))
        for name, body in re.findall(r"^// (.*)\n((?:.+\n)+)", part, re.M)
    ]


def both(body: str, includes: str):
    """(out, bits) of a body after PROLOGUE, by NVRTC and by zig."""
    source = Source("mine.cu", f"{includes}{PROLOGUE}{body}\n}}\n")
    floats = RNG.normal(size=128).astype(np.float32) * np.float32(3)
    numbers = RNG.integers(-1000, 1000, 128).astype(np.int32)
    results = []
    for name in ("nvrtc", "zig"):
        out, bits = xp.zeros(64, np.float32), xp.full(64, 99, np.uint32)
        module = xp.RawModule(open_front_end(name).compile_ptx(source, {}, "sm_90"))
        module.get_function("k")(1, 64, (xp.asarray(floats), xp.asarray(numbers), out, bits))
        assert module.last_launch.findings == []
        results.append((out.get(), bits.get()))
    return results


@pytest.mark.parametrize(("includes", "body"), cases())
def test_the_headers_do_as_nvrtcs(includes, body):
    (nvrtc_out, nvrtc_bits), (out, bits) = both(body, includes)

    assert (nvrtc_out != 0).any() or (nvrtc_bits != 99).any()
    np.testing.assert_array_equal(bits, nvrtc_bits)
    np.testing.assert_allclose(out, nvrtc_out, rtol=3e-7, atol=0, equal_nan=True)  # a sum may be fused


@pytest.mark.parametrize(("function", "numpy_function", "values"), [
    ("expf", np.exp, [-104, -87.4, -87.2, -20, -1, -1e-3, 0, 1e-6, 0.5, 1, 10, 88, 88.72]),
    ("logf", np.log, [1.2e-38, 1e-10, 0.1, 0.70710677, 0.70710683, 0.999999, 1, 1.000001, 1.414, 2, 3e38]),
    ("exp", np.exp, [-3.0, 2.5]),
    ("log", np.log, [3.0]),
])  # fmt: skip
def test_what_stands_for_libdevice_is_accurate(function, numpy_function, values):
    text = f'extern "C" __global__ void k(float* f) {{ f[threadIdx.x] = {function}(f[threadIdx.x]); }}\n'
    given = np.array(values, np.float32)
    array = xp.asarray(given)
    xp.RawModule(zig.compile_ptx(Source("mine.cu", text), {}, "sm_90")).get_function("k")(
        1, len(given), (array,)
    )

    expected = numpy_function(given.astype(np.float64))
    normal = expected.astype(np.float32)
    normal[np.abs(normal) < 1.1754944e-38] = 0  # flushed
    np.testing.assert_allclose(array.get(), normal, rtol=4 * 2**-23, atol=2**-24 if "log" in function else 0)


@pytest.mark.parametrize(
    ("value", "exponential", "logarithm"),
    [(np.nan, np.nan, np.nan), (np.inf, np.inf, np.inf), (-np.inf, 0, np.nan), (89.0, np.inf, 4.4886365),
     (0.0, 1.0, -np.inf), (-1.0, 0.36787945, np.nan)],
)  # fmt: skip
def test_the_ends_of_expf_and_logf(value, exponential, logarithm):
    text = 'extern "C" __global__ void k(float* f) { float x = f[0]; f[0] = expf(x); f[1] = logf(x); }\n'
    array = xp.asarray(np.array([value, 0], np.float32))
    xp.RawModule(zig.compile_ptx(Source("mine.cu", text), {}, "sm_90")).get_function("k")(1, 1, (array,))

    np.testing.assert_allclose(array.get(), [exponential, logarithm], rtol=5e-7)


@pytest.mark.parametrize("core", ["llvm", "numpy"])
def test_printf_and_assert(core, capsys):
    text = """extern "C" __global__ void k(float* f) {
  printf("lane %d has %.2f of %s\\n", threadIdx.x, f[threadIdx.x], "all");
  assert(f[threadIdx.x] < 2.5f);
}
"""
    kernel = xp.RawModule(zig.compile_ptx(Source("mine.cu", text), {}, "sm_90"), engine=core).get_function(
        "k"
    )
    kernel(1, 2, (xp.asarray(np.array([1.0, 2.0], np.float32)),))
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "lane 0 has 1.00 of all",
        "lane 1 has 2.00 of all",
    ]

    with pytest.raises(TrapError, match=r"mine\.cu:3.*f\[threadIdx\.x\] < 2\.5f"):
        kernel(1, 2, (xp.asarray(np.array([1.0, 3.0], np.float32)),))


def test_a_vector_argument_is_passed_by_value():
    text = """struct Pair { float4 a; int n; float2 b; };
extern "C" __global__ void k(Pair p, float4 v, float* out) { out[0] = p.a.w + p.n + p.b.y + v.x * v.z; }
"""
    pair = np.zeros((), np.dtype([("a", "4f4"), ("n", "i4"), ("gap", "i4"), ("b", "2f4")]))
    pair["a"], pair["n"], pair["b"] = [1, 2, 3, 4], 10, [5, 6]
    vector = np.zeros((), np.dtype([("v", "4f4")]))
    vector["v"] = [2, 0, 50, 0]
    out = xp.zeros(1, np.float32)
    xp.RawModule(zig.compile_ptx(Source("mine.cu", text), {}, "sm_90")).get_function("k")(
        1, 1, (pair[()], vector[()], out)
    )

    assert out.get()[0] == 4 + 10 + 6 + 100


# ---- the change to the intermediate code

IR = """define void @k(ptr %p, i1 %c) {{
entry:
  %zero = alloca [16 x i8], align 16
  %key = alloca [16 x i8], align 16
  br i1 %c, label %yes, label %no

yes:
  %at = getelementptr i8, ptr %p, i64 64
  br label %end

no:
  br label %end

end:
  %cond = phi ptr [ %at, %yes ], [ %zero, %no ]
  {use}
  ret void
}}
"""
COPY = "call void @llvm.memcpy.p0.p0.i64(ptr align 16 {}, ptr align 16 {}, i64 {}, i1 false)"


def test_a_chosen_vector_is_copied_in_each_arm():
    changed = widen_copies(IR.format(use=COPY.format("%key", "%cond", 16)))
    blocks = changed.split("\n\n")

    assert "phi" not in changed
    assert "ptr align 16 %at," in blocks[1] and "ptr align 16 %zero," in blocks[2]
    assert "ptr align 16 %key, ptr align 16 %lab.chosen.0," in blocks[3]


@pytest.mark.parametrize(
    "use",
    [
        COPY.format("%key", "%cond", 32),  # no vector
        COPY.format("%cond", "%key", 16),  # written through
        "store ptr %cond, ptr %key",  # the address itself is kept
        COPY.format("%key", "%cond", 16) + "\n  store i8 0, ptr %cond",  # used twice
    ],
)
def test_another_use_of_a_chosen_address_is_left_alone(use):
    assert widen_copies(IR.format(use=use)) == IR.format(use=use)


def test_a_copy_between_memories_is_a_vector_and_one_of_a_local_stays():
    text = """define void @k(ptr %p, ptr %q) {{
entry:
  %local = alloca [64 x i8], align 16
  %part = getelementptr inbounds i8, ptr %local, i64 16
  {}
  {}
  ret void
}}
"""
    local, memory = COPY.format("%part", "%p", 16), COPY.format("%q", "%p", 16)
    vector = (
        "%lab.whole.1 = load <4 x i32>, ptr %p, align 16\n  store <4 x i32> %lab.whole.1, ptr %q, align 16"
    )

    assert widen_copies(text.format(local, memory)) == text.format(local, vector)
