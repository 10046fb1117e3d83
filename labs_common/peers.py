"""Public kernels for the same decode step, each bound to the lab's own input sets, and why one is missing.

Everything that a serving system does once and not for every step (copies into a peer's layout, graphs,
compiling) is done here, before anything is timed. What a host repeats for every step is ``Ready.plan``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from labs_common.device_inputs import DeviceInputs
from labs_common.layouts import from_nhd
from labs_common.problem import FP8, Problem, storage_dtype

WORKSPACE_BYTES = 256 << 20  # of a peer's scratch memory
OURS, PAGED, CONTIGUOUS = "ours", "peer", "peer without pages"
XQA_SEMAPHORE_BYTES = 8 << 20  # that FlashInfer cuts off XQA's workspace


class Missing(RuntimeError):
    """A peer cannot take a problem here; the message says why."""


@dataclass(frozen=True)
class Ready:
    """A peer bound to every input set.

    Attributes:
        calls: one for each set; each launches on CuPy's current stream and does not wait.
        outputs: one for each set: what its call wrote, in NumPy, ``[batch, query_heads, head_dim]``.
        weights: the dtype that softmax weights are rounded to, as ``compare`` takes it.
        rounds: what is rounded besides, in words; such an output is held to a wider limit, and marked.
        plan: the host's work for every decode step, where there is any.
        options: what one of our stages was given beside the problem, as ``stage.plan`` takes it.
    """

    calls: list[Callable[[], None]]
    outputs: list[Callable[[], np.ndarray]]
    weights: str
    rounds: str = ""
    plan: Callable[[], object] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What every peer is bound to.

    Attributes:
        xp: ``cupy``; ``numpy`` where nothing is launched.
        inputs: sets of one problem in NHD.
    """

    xp: ModuleType
    inputs: DeviceInputs

    @property
    def problem(self) -> Problem:
        """What is computed."""
        return self.inputs.problem

    @functools.cached_property
    def hnd(self) -> tuple[Any, Any]:
        """Key and value cache copied into HND, for peers that are at their best there."""
        first = self.inputs.sets[0]
        return from_nhd(self.problem, first["key_cache"], first["value_cache"], "HND")

    def safe_table(self, number: int) -> Any:
        """A set's block table with page 0 where a sequence has no page: peers may read such an entry."""
        return self.xp.maximum(self.inputs.sets[number]["block_tables"], 0)

    def page_lists(self, number: int) -> tuple[np.ndarray, Any, np.ndarray]:
        """Where each sequence's pages begin, the pages of all without a gap, and tokens of each last page."""
        problem = self.problem
        begins = np.concatenate([[0], np.cumsum(problem.pages_per_sequence)]).astype(np.int32)
        table = self.inputs.sets[number]["block_tables"]
        pages = [table[row, :count] for row, count in enumerate(problem.pages_per_sequence)]
        lengths = np.array(problem.context_lengths)
        last = (lengths - 1) % problem.page_size + 1
        return begins, self.xp.concatenate(pages), np.where(lengths > 0, last, 0).astype(np.int32)

    def contiguous(self, number: int) -> tuple[Any, Any]:
        """A set's keys and values gathered into ``[batch, kv_heads, tokens, head_dim]``.

        Raises:
            Missing: contexts differ in length.
        """
        problem = self.problem
        if len(set(problem.context_lengths)) > 1:
            raise Missing(
                "contexts of different length: without pages they would have to be padded or masked"
            )
        arrays = self.inputs.sets[number]
        tokens = max(problem.context_lengths, default=0)
        rows = (problem.batch, problem.max_pages * problem.page_size, problem.kv_heads, problem.head_dim)
        key, value = (
            self.xp.ascontiguousarray(
                arrays[name][arrays["block_tables"]].reshape(rows)[:, :tokens].transpose(0, 2, 1, 3)
            )
            for name in ("key_cache", "value_cache")
        )
        return key, value


def need(module: str, package: str) -> ModuleType:
    """Import a peer.

    Raises:
        Missing: it is not installed, or does not load; the message names the package.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == top
        raise Missing(
            f"{package} is not installed" if absent else f"{package} does not load: {error}"
        ) from None


def tensor(torch: ModuleType, array: Any, dtype: str = "float32") -> Any:
    """An array as a torch tensor on the same memory; ``dtype`` tells what unsigned integers stand for."""
    found = torch.from_dlpack(array)
    return found.view(getattr(torch, dtype)) if storage_dtype(dtype).kind == "V" else found


def on_our_stream(xp: ModuleType, torch: ModuleType, call: Callable[[], object]) -> Callable[[], None]:
    """A call that launches on torch's current stream, made to launch on CuPy's.

    What torch allocates in it is the call's own: scratch that torch has back after a capture is still written
    by the graph, and must not have become another contender's output.
    """
    pool = torch.cuda.MemPool()

    def run() -> None:
        stream = torch.cuda.ExternalStream(xp.cuda.get_current_stream().ptr)
        with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
            call()

    return run


def _only(problem: Problem, dtypes: Sequence[str], who: str) -> None:
    if problem.dtype not in dtypes:
        raise Missing(f"{who} takes {', '.join(dtypes)} caches, not {problem.dtype}")


def _queries(setting: Setting, torch: ModuleType) -> list[Any]:
    return [tensor(torch, s["query"], setting.problem.query_dtype) for s in setting.inputs.sets]


def _caches(setting: Setting, torch: ModuleType, layout: str = "NHD") -> tuple[Any, Any]:
    first = setting.inputs.sets[0]
    arrays = setting.hnd if layout == "HND" else (first["key_cache"], first["value_cache"])
    key, value = (tensor(torch, array, setting.problem.dtype) for array in arrays)
    return key, value


def _read(setting: Setting, output: Any) -> Callable[[], np.ndarray]:
    problem = setting.problem
    shape = (problem.batch, problem.query_heads, problem.head_dim)
    return lambda: output.float().cpu().numpy().reshape(shape)


def _ready(
    setting: Setting,
    torch: ModuleType,
    calls: list[Callable[[], object]],
    outputs: list[Any],
    weights: str,
    **others: Any,
) -> Ready:
    bound = [on_our_stream(setting.xp, torch, call) for call in calls]
    return Ready(bound, [_read(setting, output) for output in outputs], weights, **others)


def torch_sdpa(setting: Setting, backend: str, dtypes: tuple[str, ...]) -> Ready:
    """torch's own attention on keys and values that were gathered before: no paging at all.

    Args:
        setting: inputs; every context of the same length.
        backend: of ``torch.nn.attention.SDPBackend``.
        dtypes: that it takes.
    """
    problem = setting.problem
    torch = need("torch", "torch")
    _only(problem, dtypes, f"torch's {backend}")
    attention = need("torch.nn.attention", "torch")
    group_as_rows = backend == "EFFICIENT_ATTENTION"  # it takes no grouped queries, but any number of rows
    rows = (problem.kv_heads, problem.group_size) if group_as_rows else (problem.query_heads, 1)
    calls, found = [], {}
    for number, query in enumerate(_queries(setting, torch)):
        key, value = (tensor(torch, a, problem.dtype) for a in setting.contiguous(number))
        heads = query.view(problem.batch, *rows, problem.head_dim)

        def call(number: int = number, heads: Any = heads, key: Any = key, value: Any = value) -> None:
            with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
                found[number] = torch.nn.functional.scaled_dot_product_attention(
                    heads, key, value, scale=setting.inputs.scale, enable_gqa=not group_as_rows
                )

        calls.append(on_our_stream(setting.xp, torch, call))
    outputs = [lambda n=n: _read(setting, found[n])() for n in range(len(calls))]
    return Ready(calls, outputs, problem.query_dtype)


def flash_infer(setting: Setting) -> Ready:
    """FlashInfer's decode wrapper on tensor cores: its fa2 kernels, which keep queries exact beside fp8."""
    problem, inputs = setting.problem, setting.inputs
    torch = need("torch", "torch")
    _only(problem, ("float16", "bfloat16", FP8), "FlashInfer")
    decode = need("flashinfer.decode", "flashinfer-python")
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    caches = _caches(setting, torch)
    scales = {"v_scale": problem.value_scale} if problem.value_scale != 1 else {}
    calls, outputs, plans = [], [], []
    for number, query in enumerate(_queries(setting, torch)):
        wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=True, backend="fa2"
        )
        begins, pages, last = setting.page_lists(number)
        plan = functools.partial(
            wrapper.plan,
            torch.from_numpy(begins),
            tensor(torch, pages),
            torch.from_numpy(last),
            problem.query_heads,
            problem.kv_heads,
            problem.head_dim,
            problem.page_size,
            q_data_type=query.dtype,
            kv_data_type=caches[0].dtype,
            sm_scale=inputs.scale,
        )
        plan()
        output = torch.full_like(query, math.nan)
        calls.append(functools.partial(wrapper.run, query, caches, out=output, **scales))
        outputs.append(output)
        plans.append(plan)
    return _ready(setting, torch, calls, outputs, problem.query_dtype, plan=plans[0])


def flash_infer_xqa(setting: Setting) -> Ready:
    """FlashInfer's XQA kernels, which for fp8 caches round queries and softmax weights to fp8 too."""
    problem, inputs = setting.problem, setting.inputs
    torch = need("torch", "torch")
    _only(problem, ("float16", "bfloat16", FP8), "XQA")
    decode = need("flashinfer.decode", "flashinfer-python")
    caches = _caches(setting, torch, "HND")
    size = WORKSPACE_BYTES + XQA_SEMAPHORE_BYTES
    workspace = torch.zeros(size, dtype=torch.uint8, device="cuda")
    lengths = tensor(torch, inputs.sets[0]["context_lengths"])
    calls, outputs = [], []
    for number, query in enumerate(_queries(setting, torch)):
        output = torch.full_like(query, math.nan)
        call = functools.partial(
            decode.xqa_batch_decode_with_kv_cache,
            query,
            caches,
            workspace,
            tensor(torch, setting.safe_table(number)),
            lengths,
            max(problem.context_lengths),
            bmm1_scale=inputs.scale,
            bmm2_scale=problem.value_scale,
            out=output,
            kv_layout="HND",
        )
        calls.append(call)
        outputs.append(output)
    rounds = "queries, weights: fp8" if problem.dtype == FP8 else ""
    return _ready(setting, torch, calls, outputs, problem.query_dtype, rounds=rounds)


def cudnn_paged(setting: Setting) -> Ready:
    """cuDNN's attention on pages, through its frontend; the graph is built once."""
    problem = setting.problem
    torch = need("torch", "torch")
    _only(problem, ("float16", "bfloat16"), "cuDNN's attention on pages with exact queries")
    cudnn = need("cudnn", "nvidia-cudnn-frontend")
    handle = cudnn.create_handle()
    kinds = {"float16": cudnn.data_type.HALF, "bfloat16": cudnn.data_type.BFLOAT16}
    graph = cudnn.pygraph(
        handle=handle,
        io_data_type=kinds[problem.dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    key, value = _caches(setting, torch, "HND")
    lengths = tensor(torch, setting.inputs.sets[0]["context_lengths"]).view(-1, 1, 1, 1)
    ones = torch.ones_like(lengths)
    heads = (problem.batch, problem.query_heads, 1, problem.head_dim)
    sets = []
    for number, query in enumerate(_queries(setting, torch)):
        table = tensor(torch, setting.safe_table(number)).view(problem.batch, 1, -1, 1)
        sets.append((query.view(heads), table, torch.full_like(query, math.nan).view(heads)))
    first_query, first_table, first_output = sets[0]
    named = [graph.tensor_like(t) for t in (first_query, key, value, first_table, first_table, ones, lengths)]
    output, _ = graph.sdpa(
        name="sdpa",
        q=named[0],
        k=named[1],
        v=named[2],
        is_inference=True,
        attn_scale=setting.inputs.scale,
        use_causal_mask=False,
        use_padding_mask=True,
        seq_len_q=named[5],
        seq_len_kv=named[6],
        paged_attention_k_table=named[3],
        paged_attention_v_table=named[4],
        paged_attention_max_seq_len_kv=problem.max_pages * problem.page_size,
    )
    output.set_output(True).set_dim(list(heads)).set_stride(list(first_output.stride()))
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")

    def call(one: tuple[Any, Any, Any]) -> None:
        query, table, written = one
        cudnn.set_stream(handle=handle, stream=setting.xp.cuda.get_current_stream().ptr)
        values = (query, key, value, table, table, ones, lengths)
        graph.execute({**dict(zip(named, values, strict=True)), output: written}, workspace, handle=handle)

    calls = [functools.partial(call, one) for one in sets]
    return _ready(setting, torch, calls, [one[2] for one in sets], problem.query_dtype)


def flash_attention_3(setting: Setting) -> Ready:
    """FlashAttention-3 on pages, its own choice of splits: the build in vLLM, or its own package.

    Beside an fp8 cache it takes fp8 queries only and gives bfloat16; they are rounded before the call.
    """
    problem, inputs = setting.problem, setting.inputs
    torch = need("torch", "torch")
    _only(problem, ("float16", "bfloat16", FP8), "FlashAttention-3")
    try:
        vllm = need("vllm.vllm_flash_attn", "vllm")
    except Missing as without_vllm:
        try:
            own = need("flash_attn_interface", "flash-attn-3")
        except Missing as without_own:
            raise Missing(f"{without_vllm}, and {without_own}") from None
        vllm = None
    key, value = _caches(setting, torch)
    lengths = tensor(torch, inputs.sets[0]["context_lengths"])
    longest = max(problem.context_lengths)
    begins = torch.arange(problem.batch + 1, dtype=torch.int32, device=lengths.device)
    rounded = problem.dtype == FP8
    calls, outputs = [], []
    for number, exact in enumerate(_queries(setting, torch)):
        query = exact.to(key.dtype) if rounded else exact
        table = tensor(torch, setting.safe_table(number))
        output = torch.full_like(exact, math.nan, dtype=torch.bfloat16 if rounded else exact.dtype)
        if vllm is not None:
            call = functools.partial(
                vllm.flash_attn_varlen_func,
                query,
                key,
                value,
                max_seqlen_q=1,
                cu_seqlens_q=begins,
                max_seqlen_k=longest,
                seqused_k=lengths,
                softmax_scale=inputs.scale,
                block_table=table,
                out=output,
                fa_version=3,
            )
        else:

            def call(query: Any = query, table: Any = table, output: Any = output) -> None:
                output.copy_(
                    own.flash_attn_with_kvcache(
                        query.unsqueeze(1),
                        key,
                        value,
                        cache_seqlens=lengths,
                        page_table=table,
                        softmax_scale=inputs.scale,
                    ).view(output.shape)
                )

        calls.append(call)
        outputs.append(output)
    rounds = "queries, weights: fp8; output: bf16" if rounded else ""
    return _ready(setting, torch, calls, outputs, problem.query_dtype, rounds=rounds)


def triton_05(setting: Setting) -> Ready:
    """The lab's stage 05 written in Triton, whose products are exact."""
    problem, inputs = setting.problem, setting.inputs
    _only(problem, ("float32", "float16"), "the lab's Triton kernel")
    torch = need("torch", "torch")
    from labs_common.triton_stage import TritonMissing, prepare_triton

    try:
        pairs = [prepare_triton(setting.xp, problem, one, inputs.scale) for one in inputs.sets]
    except TritonMissing as error:
        raise Missing(str(error)) from None
    return Ready(
        [on_our_stream(setting.xp, torch, call) for call, _ in pairs],
        [functools.partial(setting.xp.asnumpy, output) for _, output in pairs],
        "float32",
    )


def _left_out(reason: str) -> Callable[[Setting], Ready]:
    def refuse(_: Setting) -> Ready:
        raise Missing(reason)

    return refuse


@dataclass(frozen=True)
class Peer:
    """A kernel to measure beside the lab's stages.

    Attributes:
        name: shown in tables and charts.
        kind: OURS, PAGED or CONTIGUOUS.
        prepare: binds it, or raises ``Missing``.
    """

    name: str
    kind: str
    prepare: Callable[[Setting], Ready]


def _sdpa(backend: str, *dtypes: str) -> Callable[[Setting], Ready]:
    return functools.partial(torch_sdpa, backend=backend, dtypes=dtypes)


PEERS = (
    Peer("05 in Triton", OURS, triton_05),
    Peer("FlashAttention-3", PAGED, flash_attention_3),
    Peer("FlashInfer fa2", PAGED, flash_infer),
    Peer("FlashInfer XQA", PAGED, flash_infer_xqa),
    Peer("cuDNN paged", PAGED, cudnn_paged),
    Peer("torch SDPA cuDNN", CONTIGUOUS, _sdpa("CUDNN_ATTENTION", "float16", "bfloat16")),
    Peer("torch SDPA flash", CONTIGUOUS, _sdpa("FLASH_ATTENTION", "float16", "bfloat16")),
    Peer("torch SDPA efficient", CONTIGUOUS, _sdpa("EFFICIENT_ATTENTION", "float32")),
    Peer(
        "torch flex_attention",
        PAGED,
        _left_out(
            "no adapter: pages are blocks of its mask, and torch.compile makes a kernel for every shape"
        ),
    ),
    Peer("vLLM paged_attention_v2", PAGED, _left_out("no adapter: vLLM's wheels of today hold it no more")),
    Peer(
        "JAX Pallas paged_attention",
        PAGED,
        _left_out(
            "no adapter: it launches on JAX's own streams, and cannot be timed in turn with the others"
        ),
    ),
)
PACKAGES = (
    *(
        "torch",
        "triton",
        "flashinfer-python",
        "nvidia-cudnn-frontend",
        "nvidia-cudnn-cu13",
        "nvidia-cudnn-cu12",
    ),
    *("vllm", "flash-attn-3"),
)


def versions() -> dict[str, str]:
    """Of the peers' packages that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
