"""Public kernels beside the lab's: what they are given, who is missing and why, and how results are shown."""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import json
import math
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from labs_common import cli_bench, peer_bench, peers
from labs_common.chart_peers import peer_chart
from labs_common.compare import compare
from labs_common.device_inputs import device_inputs, device_reference
from labs_common.peers import CONTIGUOUS, OURS, PAGED, PEERS, Missing, Ready, Setting
from labs_common.problem import FP8, Problem, storage_dtype
from labs_common.stages import ROOF
from labs_common.timing import Timing

RAGGED = (40, 1, 17)
TUNED_OPTIONS = {"whole": True, "block_heads": 2, "ring_slots": 3, "evict_first": False}


class Host(ModuleType):
    """NumPy with the one call of CuPy's streams that adapters make."""

    cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7))
    asnumpy = staticmethod(np.asarray)

    def __getattr__(self, name):
        return getattr(np, name)


class Tensor:
    """Of torch's tensors what adapters use, on a NumPy array."""

    device = "cuda"

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape

    def view(self, *what):
        first = what[0]
        if isinstance(first, np.dtype):
            return Tensor(self.array.view(first))
        return Tensor(self.array.reshape(first if isinstance(first, tuple) else what))

    def unsqueeze(self, axis):
        return Tensor(np.expand_dims(self.array, axis))

    def to(self, dtype):
        return Tensor(self.array.astype(dtype))

    def float(self):
        return self.to(np.float32)

    def cpu(self):
        return self

    def numpy(self):
        return self.array

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def copy_(self, other):
        self.array[...] = other.array


def attend(query, key, value, scale):
    """``[heads, dims]`` over ``[kv_heads, tokens, dims]``, in float64."""
    grouped = query.astype(np.float64).reshape(len(key), -1, query.shape[-1])
    scores = scale * grouped @ key.astype(np.float64).transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ value.astype(np.float64)).reshape(query.shape)


def paged(query, caches, tables, lengths, scale, layout="NHD"):
    """What every kernel on pages computes: queries ``[batch, heads, dims]``."""
    rows = []
    for one, table, length in zip(query.array, tables, lengths, strict=True):
        pages = [cache.array[np.array(table)[: math.ceil(length / 16)]] for cache in caches]
        if layout == "HND":
            pages = [page.transpose(0, 2, 1, 3) for page in pages]
        key, value = (p.reshape(-1, *p.shape[2:])[:length].transpose(1, 0, 2) for p in pages)
        rows.append(attend(one, key, value, scale))
    return np.array(rows)


def fill(output, found):
    """Write into an output of another shape, as kernels write into memory."""
    output.array[...] = found.reshape(output.array.shape).astype(output.array.dtype)


class Wrapper:
    """FlashInfer's, by its documentation: pages of all sequences in a row, and where each one's begin."""

    def __init__(self, workspace, layout, use_tensor_cores, backend):
        assert (layout, use_tensor_cores, backend) == ("NHD", True, "fa2")

    def plan(self, begins, pages, last, query_heads, kv_heads, head_dim, page_size, **options):
        begins, last = begins.array, last.array
        self.tables = [pages.array[a:b] for a, b in itertools.pairwise(begins)]
        self.lengths = [page_size * (len(t) - 1) + n for t, n in zip(self.tables, last, strict=True)]
        self.scale, self.dtypes = options["sm_scale"], (options["q_data_type"], options["kv_data_type"])

    def run(self, query, caches, out, v_scale=1.0):
        assert self.dtypes == (query.dtype, caches[0].dtype)
        fill(out, v_scale * paged(query, caches, self.tables, self.lengths, self.scale))


def xqa(query, caches, workspace, tables, lengths, longest, *, bmm1_scale, bmm2_scale, out, kv_layout):
    assert tables.array.min() >= 0 and longest == max(lengths.array)
    fill(out, bmm2_scale * paged(query, caches, tables.array, lengths.array, bmm1_scale, kv_layout))


def varlen(query, key, value, **given):
    """FlashAttention's with ``cu_seqlens_q``: one query token a sequence here."""
    batch = len(given["seqused_k"].array)
    assert given["max_seqlen_q"] == 1 and given["fa_version"] == 3
    assert given["max_seqlen_k"] == max(given["seqused_k"].array)
    assert list(given["cu_seqlens_q"].array) == list(range(batch + 1))
    tables, lengths = given["block_table"].array, given["seqused_k"].array
    assert query.dtype == key.dtype and tables.min() >= 0
    fill(given["out"], paged(query, (key, value), tables, lengths, given["softmax_scale"]))


def with_kvcache(query, key, value, *, cache_seqlens, page_table, softmax_scale):
    found = paged(
        query.view(-1, *query.shape[2:]), (key, value), page_table.array, cache_seqlens.array, softmax_scale
    )
    return Tensor(found[:, None].astype(query.dtype))


class Output:
    """A graph's tensor that is described step by step."""

    def described(self, _):
        return self

    set_output = set_dim = set_stride = described


class Graph:
    """cuDNN's: named tensors first, memory for them when it is executed."""

    def __init__(self, **_):
        pass

    def tensor_like(self, like):
        return object()

    def sdpa(self, **given):
        self.given = given
        self.output = Output()
        return self.output, None

    def build(self, _):
        pass

    def get_workspace_size(self):
        return 0

    def execute(self, values, workspace, handle):
        assert handle.stream == 7
        q, k, v, table, length, ones = (
            values[self.given[name]]
            for name in ("q", "k", "v", "paged_attention_k_table", "seq_len_kv", "seq_len_q")
        )
        assert self.given["use_padding_mask"] and set(ones.array.ravel()) == {1}
        assert self.given["paged_attention_max_seq_len_kv"] == 16 * table.shape[2]
        batch = len(table.array)
        tables, lengths = table.array.reshape(batch, -1), length.array.ravel()
        found = paged(q.view(batch, *q.shape[1::2]), (k, v), tables, lengths, self.given["attn_scale"], "HND")
        fill(values[self.output], found)


def set_stream(handle, stream):
    handle.stream = stream


def scaled_dot_product_attention(query, key, value, scale, enable_gqa):
    assert enable_gqa or query.shape[1] == key.shape[1]
    rows = [
        attend(q.reshape(-1, q.shape[-1]), k, v, scale).reshape(q.shape)
        for q, k, v in zip(query.array, key.array, value.array, strict=True)
    ]
    return Tensor(np.array(rows).astype(query.dtype))


POOLS = []  # that torch was told to allocate from, call by call
TORCH = SimpleNamespace(
    __name__="torch",
    from_dlpack=Tensor,
    from_numpy=Tensor,
    int32=np.dtype(np.int32),
    uint8=np.dtype(np.uint8),
    bfloat16=storage_dtype("bfloat16"),
    float8_e4m3fn=storage_dtype(FP8),
    zeros=lambda size, dtype, device: Tensor(np.zeros(8, dtype)),
    empty=lambda size, dtype, device: Tensor(np.zeros(size, dtype)),
    arange=lambda stop, dtype, device: Tensor(np.arange(stop, dtype=dtype)),
    ones_like=lambda like: Tensor(np.ones_like(like.array)),
    full_like=lambda like, number, dtype=None: Tensor(np.full(like.shape, number, dtype or like.dtype)),
    cuda=SimpleNamespace(
        ExternalStream=lambda ptr: ptr,
        stream=lambda _: contextlib.nullcontext(),
        MemPool=object,
        use_mem_pool=lambda pool: POOLS.append(pool) or contextlib.nullcontext(),
    ),
    nn=SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=scaled_dot_product_attention)),
)
BACKENDS = SimpleNamespace(CUDNN_ATTENTION=1, FLASH_ATTENTION=2, EFFICIENT_ATTENTION=3)
MODULES = {
    "torch": TORCH,
    "torch.nn.attention": SimpleNamespace(
        SDPBackend=BACKENDS, sdpa_kernel=lambda _: contextlib.nullcontext()
    ),
    "flashinfer.decode": SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=Wrapper, xqa_batch_decode_with_kv_cache=xqa
    ),
    "vllm.vllm_flash_attn": SimpleNamespace(flash_attn_varlen_func=varlen),
    "flash_attn_interface": SimpleNamespace(flash_attn_with_kvcache=with_kvcache),
    "cudnn": SimpleNamespace(
        create_handle=lambda: SimpleNamespace(stream=0),
        set_stream=set_stream,
        pygraph=Graph,
        data_type=SimpleNamespace(HALF=1, BFLOAT16=2, FLOAT=3),
        heur_mode=SimpleNamespace(A=1, FALLBACK=2),
    ),
}


@pytest.fixture
def installed(monkeypatch):
    """The peers that are installed: all at first, and a test may take some away."""
    modules = dict(MODULES)

    def found(name):
        if name not in modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return modules[name]

    monkeypatch.setattr(peers, "importlib", SimpleNamespace(import_module=found, metadata=importlib.metadata))
    return modules


def setting(dtype, lengths=RAGGED, sets=2):
    scales = {"key_scale": 0.5, "value_scale": 2.0} if dtype == FP8 else {}
    problem = Problem(6, 2, 64, 16, lengths, dtype, **scales)
    return Setting(Host("host"), device_inputs(np, problem, sets))


def peer(name):
    return next(p for p in PEERS if p.name == name)


@pytest.mark.parametrize(
    ("name", "dtype", "lengths"),
    [
        ("FlashInfer fa2", "float16", RAGGED),
        ("FlashInfer fa2", FP8, RAGGED),
        ("FlashInfer XQA", "float16", RAGGED),
        ("FlashInfer XQA", FP8, RAGGED),
        ("FlashAttention-3", "float16", RAGGED),
        ("cuDNN paged", "float16", RAGGED),
        ("torch SDPA cuDNN", "float16", (33, 33)),
        ("torch SDPA flash", "float16", (33, 33)),
        ("torch SDPA efficient", "float32", (33, 33)),
    ],
)
def test_a_peer_is_given_the_problem(installed, name, dtype, lengths):
    """Stand-ins in NumPy compute what each interface documents; the reference tells if that was asked for."""
    made = setting(dtype, lengths)

    ready = peer(name).prepare(made)
    for call in ready.calls:
        call()

    expected = [device_reference(np, made.inputs, number) for number in range(2)]
    assert len(ready.calls) == len(ready.outputs) == 2
    for output, reference in zip(ready.outputs, expected, strict=True):
        verdict = compare(output(), reference, ready.weights)
        assert verdict.ok, verdict.diagnosis
    assert peer_bench.judge(ready, expected)["right"]


def test_flash_attention_rounds_queries_beside_fp8_and_says_so(installed):
    made = setting(FP8)
    made = Setting(made.xp, device_inputs(np, made.problem.replace(key_scale=1.0, value_scale=1.0), 1))
    ready = peer("FlashAttention-3").prepare(made)
    ready.calls[0]()

    judged = peer_bench.judge(ready, [device_reference(np, made.inputs, 0)])

    assert "fp8" in ready.rounds
    assert judged["right"] and 1e-3 < judged["error"] < peer_bench.LOOSE_ERROR


def test_flash_attention_comes_from_its_own_package_too(installed):
    del installed["vllm.vllm_flash_attn"]
    made = setting("float16", sets=1)
    ready = peer("FlashAttention-3").prepare(made)
    ready.calls[0]()

    assert peer_bench.judge(ready, [device_reference(np, made.inputs, 0)])["right"]


def test_a_peer_that_is_not_installed_says_so(installed):
    for name in [n for n in installed if n != "torch" and not n.startswith("torch.")]:
        del installed[name]
    reasons = {}
    for one in PEERS:
        if one.name == "05 in Triton" or one.kind == CONTIGUOUS:
            continue
        with pytest.raises(Missing) as caught:
            one.prepare(setting("float16"))
        reasons[one.name] = str(caught.value)

    assert reasons["FlashInfer fa2"] == "flashinfer-python is not installed"
    assert reasons["cuDNN paged"] == "nvidia-cudnn-frontend is not installed"
    assert reasons["FlashAttention-3"] == "vllm is not installed, and flash-attn-3 is not installed"
    assert all(reasons.values())


def test_a_peer_that_does_not_load_says_why(monkeypatch):
    def broken(_):
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(peers.importlib, "import_module", broken)
    with pytest.raises(Missing, match="cudnn-frontend does not load: libcudart"):
        peers.need("cudnn", "cudnn-frontend")


def test_no_call_allocates_where_another_one_does(installed):
    """torch takes scratch back after a capture, but the graph goes on writing to it."""
    ready = peer("torch SDPA flash").prepare(setting("float16", (33, 33)))
    POOLS.clear()
    for call in (*ready.calls, *ready.calls):
        call()

    first, second = POOLS[:2]
    assert first is not second
    assert [first, second, first, second] == POOLS


def test_what_a_peer_cannot_take_is_a_reason(installed):
    for name, dtype, lengths, words in (
        ("torch SDPA cuDNN", "float16", RAGGED, "different length"),
        ("torch SDPA cuDNN", FP8, (16,), "not float8_e4m3fn"),
        ("FlashInfer fa2", "float32", (16,), "not float32"),
        ("cuDNN paged", FP8, (16,), "exact queries"),
        ("05 in Triton", FP8, (16,), "not float8_e4m3fn"),
    ):
        with pytest.raises(Missing, match=words):
            peer(name).prepare(setting(dtype, lengths))


@pytest.fixture
def results(simulator, installed, monkeypatch):
    """What the benchmark gives for a small problem, the lab's stages run by the simulator, times made up."""

    drawn = []

    def on_host(xp, problem, sets):
        made = device_inputs(np, problem, sets)
        drawn.append(made)
        arrays = [{name: simulator.xp.asarray(a) for name, a in one.items()} for one in made.sets]
        return type(made)(problem, tuple(arrays), made.scale)

    def reference(xp, inputs, number):
        return device_reference(np, drawn[-1], number)

    def timed(xp, calls, rounds, between, graph_s):
        for name, those in calls.items():
            for call in those if not name.startswith("read ") else ():
                call()
        return {
            name: Timing(2e-6 if name.startswith("read ") else 4e-6, 5e-6, 2, rounds, 2) for name in calls
        }

    monkeypatch.setattr(peer_bench, "device_inputs", on_host)
    monkeypatch.setattr(peer_bench, "device_reference", reference)
    monkeypatch.setattr(peer_bench, "time_gpu", timed)
    monkeypatch.setattr(peer_bench, "ceiling_bytes", lambda _: 80_000)
    monkeypatch.setattr(peer_bench, "ceiling_calls", lambda *_: {"read x": []})
    monkeypatch.setattr(peer_bench, "refill_l2", lambda *_: None)
    monkeypatch.setattr(peer_bench, "_try", lambda xp, ready: None)
    monkeypatch.setattr(peer_bench, "tune", lambda *_: [SimpleNamespace(options=TUNED_OPTIONS)])
    monkeypatch.setattr(peer_bench, "_planning_seconds", lambda xp, ready: ready.plan and 1e-4)
    fails = peers.Peer("fails", PAGED, lambda _: 1 / 0)
    wrong = peers.Peer(
        "wrong", PAGED, lambda _: Ready([lambda: None], [lambda: np.full((2, 6, 64), np.nan)], "float32")
    )
    gone = next(p for p in PEERS if p.name.startswith("vLLM"))
    monkeypatch.setattr(peers, "PEERS", (fails, wrong, gone))
    problem = Problem(6, 2, 64, 16, (40, 17), "float32", name="S1")
    rows, missing = peer_bench.measure(simulator, problem, sets=1, rounds=3)
    provenance = {"gpu": "NVIDIA H200", "driver": "1", "date": "2026-01-02", "peers": {}}
    return {"provenance": provenance, "method": peer_bench.METHOD, "rows": rows, "missing": missing}


def test_every_contender_is_a_row_or_a_reason(results):
    rows = {row["what"]: row for row in results["rows"]}
    reasons = {one["what"]: one["reason"] for one in results["missing"]}

    assert {name[:2] for name in rows} >= {"05", "06", "08"} and "07_tensor_core" in reasons
    for row in rows.values():
        if row["kind"] == OURS:
            assert row["right"] and row["error"] < 1e-6 and row["planning_us"] == pytest.approx(100)
            assert row["% of read ceiling"] == pytest.approx(100 * row["GB/s"] / row["ceiling_GB/s"])
            assert row["ceiling_GB/s"] == pytest.approx(40.0)  # 80,000 bytes in 2 µs
    assert rows[peer_bench.TUNED]["options"] == TUNED_OPTIONS
    assert rows["09_memory_roof"]["options"] == rows["wrong"]["options"] == {}
    assert rows["06_async_ring"]["options"]["partition_tokens"] >= 1
    assert not rows["wrong"]["right"] and rows["wrong"]["error"] is None
    assert reasons["fails"] == "ZeroDivisionError: division by zero"
    assert "no adapter" in reasons["vLLM paged_attention_v2"]


def test_results_are_shown_from_a_file(results, tmp_path):
    file, png, again = tmp_path / "peers.json", tmp_path / "out" / "peers.png", tmp_path / "again.json"
    peer_bench.write(results, file)

    arguments = ["peers", "--replay", str(file), "--chart", str(png), "--json", str(again)]
    answer = CliRunner().invoke(cli_bench.app, arguments)

    assert answer.exit_code == 0, answer.output
    assert "08_balanced_plan" in answer.output and "NO" in answer.output
    assert "not measured: fails: ZeroDivisionError: division by zero (float32 S1)" in answer.output
    assert json.loads(again.read_text()) == json.loads(file.read_text()) == results
    assert png.read_bytes().startswith(b"\x89PNG")


def test_of_several_runs_the_median_is_shown(results, tmp_path):
    """By hand: three runs that differ in one contender's figures, one of which lacks another contender."""
    runs = [copy.deepcopy(results) for _ in range(3)]
    first = results["rows"][0]["what"]
    for run, median_us, share in zip(runs, (30.0, 10.0, 20.0), (91.0, 95.0, 92.5), strict=True):
        run["rows"][0].update({"median_us": median_us, "% of read ceiling": share, "planning_us": None})
    runs[2]["rows"][1]["right"], runs[2]["rows"][1]["diagnosis"] = False, "wrong in the third run"
    lacking = runs[1]["rows"].pop(2)
    where = {key: lacking[key] for key in ("problem", "dtype", "what")}
    runs[1]["missing"].append({**where, "reason": "was not installed"})
    files = [tmp_path / f"run-{number}.json" for number in range(3)]
    for run, file in zip(runs, files, strict=True):
        peer_bench.write(run, file)

    again = tmp_path / "again.json"
    words = [word for file in files for word in ("--replay", str(file))]
    answer = CliRunner().invoke(cli_bench.app, ["peers", *words, "--json", str(again)])

    found = json.loads(again.read_text())
    rows = {row["what"]: row for row in found["rows"]}
    assert (rows[first]["median_us"], rows[first]["% of read ceiling"]) == (20.0, 92.5)
    assert rows[first]["planning_us"] is None and rows[first]["right"]
    assert rows[results["rows"][1]["what"]]["diagnosis"] == "wrong in the third run"
    assert lacking["what"] not in rows and f"{lacking['what']}: was not installed" in answer.output
    assert all("options" in row for row in results["rows"])
    assert not any("options" in row for row in found["rows"])  # each run's own
    assert found["provenance"]["runs"] == 3 and "median of 3 such runs" in found["method"]
    assert "1 ms each, then of 3 runs" in peer_chart(found).alt_text()
    with pytest.raises(ValueError, match="runs="):
        peer_bench.combined([])
    runs[1]["provenance"]["gpu"] = "NVIDIA A100"
    with pytest.raises(ValueError, match=r"gpu must be the same.*H200 and NVIDIA A100"):
        peer_bench.combined(runs)


def test_what_some_run_lacks_without_a_word_has_a_reason(results):
    runs = [copy.deepcopy(results) for _ in range(2)]
    lacking = runs[0]["rows"].pop(0)
    runs[1]["rows"][1]["error"] = 0.5

    found = peer_bench.combined(runs)

    reasons = {one["what"]: one["reason"] for one in found["missing"]}
    assert reasons[lacking["what"]] == "measured in 1 of 2 runs"
    assert next(r for r in found["rows"] if r["what"] == runs[1]["rows"][1]["what"])["error"] == 0.5


def test_in_every_recorded_run_09_is_ahead_of_the_kernels_that_read_pages():
    files = sorted((peer_bench.RECORDED / "h200").glob("*.json"))
    assert len(files) >= 3
    for file in files:
        rows = pd.DataFrame(peer_bench.read(file)["rows"])
        assert rows["right"].all()
        cells = rows.set_index(["problem", "dtype"])
        best = cells.loc[cells["kind"] == PAGED, "median_us"].groupby(["problem", "dtype"]).min()
        assert len(best) == 10  # in fp32 none that reads pages could be installed
        for name in (ROOF[-1].id, peer_bench.TUNED):
            ours = cells.loc[cells["what"] == name, "median_us"]
            assert len(ours) == 15 and (best / ours.reindex(best.index)).min() > 1.0


def test_a_wrong_stage_of_the_lab_fails_the_command(results, tmp_path):
    results["rows"][0]["right"] = False
    peer_bench.write(results, tmp_path / "peers.json")

    assert (
        CliRunner().invoke(cli_bench.app, ["peers", "--replay", str(tmp_path / "peers.json")]).exit_code == 1
    )


def test_the_chart_says_everything_in_words(results):
    described = peer_chart(results).alt_text()

    assert "07_tensor_core" not in described  # it takes no float32
    for words in ("H200", "driver 1", "2026-01-02", "read ceiling", "S1, float32", "wrong 40", "(wrong)"):
        assert words in described
    with pytest.raises(ValueError, match="nothing was measured"):
        peer_chart({**results, "rows": []})


@pytest.mark.parametrize("text", ["", "[]", '{"rows": []}'])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a file that palab bench peers"):
        peer_bench.read(path)


def test_unknown_names_are_refused():
    answer = CliRunner().invoke(cli_bench.app, ["peers", "--shape", "S9"])
    assert isinstance(answer.exception, ValueError) and "S1, S1r" in str(answer.exception)
    answer = CliRunner().invoke(cli_bench.app, ["peers", "--dtype", "int8"])
    assert isinstance(answer.exception, ValueError) and "float16" in str(answer.exception)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", peer_bench.DTYPES)
def test_on_a_gpu_every_exact_output_is_right(dtype):
    from labs_common.roof_bench import UncheckedGpu

    problem = Problem(8, 2, 128, 16, (512, 512), dtype, name="S1")
    rows, missing = peer_bench.measure(UncheckedGpu(), problem, rounds=3)

    assert {r["what"] for r in rows if r["kind"] == OURS} >= {"08_balanced_plan"}
    assert len(rows) + len(missing) == 1 + len(ROOF) + 1 + len(PEERS)  # 05, and one tuned
    for row in rows:
        assert row["right"], f"{row['what']}: {row['diagnosis']}"
        assert 0 < row["median_us"] <= row["p90_us"]
