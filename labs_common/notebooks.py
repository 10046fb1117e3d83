"""Executes the notebooks: writes them back with their outputs, exports HTML and PNG, tells what changed.

``python -m labs_common.notebooks`` is what ``make run`` and ``make notebooks`` call. The committed notebooks
are their own source: ``--write`` keeps every cell and replaces outputs only.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jinja2 import DictLoader
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm
from traitlets import default

from labs_common.display import DATA_KEY
from labs_common.stages import ALL_STAGES

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
NAMES = ("start_here", *(stage.id for stage in ALL_STAGES if (NOTEBOOKS / f"{stage.id}.ipynb").exists()))
CELL_TIMEOUT_S = 300
MACHINE_TAG = "palab:machine"  # on cells that tell about the machine they run on
STARTUP_TIMEOUT_S = 120

# The whole of a notebook's metadata: nothing that differs from machine to machine.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What Jupyter adds to a cell while it runs or is looked at.
_PASSING_METADATA = ("execution", "ExecuteTime", "collapsed", "scrolled", "trusted", "jupyter")

_NEVER_EQUAL = itertools.count()

# nbconvert's own template leaves out the alt text of pictures, and sets code in an output in the text's font.
_TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head_css %}
{{ super() }}
<style>
.jp-OutputArea-output .highlight pre { font-family: var(--jp-code-font-family); line-height: 1.3; }
</style>
{% endblock html_head_css %}
{% block data_png scoped %}
<div class="jp-RenderedImage jp-OutputArea-output">
<img src="data:image/png;base64,{{ output.data['image/png'] }}"
     alt="{{ output | get_metadata('alt', 'image/png') | escape_html }}">
</div>
{% endblock data_png %}
"""


class NotebookError(RuntimeError):
    """A notebook that did not run through; the message names notebook, cell and reason."""


class _ThisPython(KernelSpecManager):
    """Knows one kernel, the running interpreter's, whatever kernels a user has installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(resource_dir="", **get_kernel_dict())


class _Kernel(AsyncKernelManager):
    @default("kernel_spec_manager")
    def _this_python(self) -> KernelSpecManager:
        return _ThisPython(parent=self)


def read(path: Path) -> NotebookNode:
    """A notebook as it is committed.

    Raises:
        NotebookError: no such file, or no valid notebook.
    """
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, nbformat.ValidationError) as error:
        raise NotebookError(f"{path.name} is no notebook that can be read: {error}") from None


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook; the same notebook gives the same bytes."""
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook, version=4).rstrip("\n") + "\n", encoding="utf-8")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


class Execution:
    """One notebook in a fresh kernel of the running interpreter."""

    def __init__(
        self, name: str, notebook: NotebookNode, cell_timeout_s: int, gpu: bool, folder: Path
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            name: of the notebook, for messages.
            notebook: what to run; it is not changed.
            cell_timeout_s: a cell that takes longer is an error.
            gpu: whether cells may see a GPU.
            folder: the cells' working directory.
        """
        self.name = name
        self.notebook = nbformat.from_dict(notebook)
        for cell in code_cells(self.notebook):
            cell.outputs, cell.execution_count = [], None
        self._gpu = gpu
        self._stopped = threading.Event()
        self._cell: int | None = None
        self.client = NotebookClient(
            self.notebook,
            timeout=cell_timeout_s,
            startup_timeout=STARTUP_TIMEOUT_S,
            kernel_name="python3",
            kernel_manager_class=_Kernel,
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            # A remark on loopback sockets for every kernel would drown the progress bar.
            extra_arguments=["--log-level=ERROR"],
            coalesce_streams=True,
        )

    def run(self, on_cell: Callable[[], None]) -> NotebookNode:
        """Execute all cells.

        Args:
            on_cell: called after each code cell.

        Returns:
            The notebook with outputs, free of anything that differs from run to run.

        Raises:
            NotebookError: a cell failed, took too long, or the kernel died.
        """
        if self._stopped.is_set():
            raise NotebookError(f"{self.name}: stopped")
        self.client.on_cell_start = lambda cell_index, **_: setattr(self, "_cell", cell_index)
        self.client.on_cell_executed = lambda **_: on_cell()
        with tempfile.TemporaryDirectory() as settings:
            # Neither a user's IPython start-up files nor their matplotlib settings.
            environment = {**os.environ, "IPYTHONDIR": settings, "PYTHONHASHSEED": "0", "COLUMNS": "110"}
            if not self._gpu:
                environment["CUDA_VISIBLE_DEVICES"] = "-1"
            try:
                asyncio.run(self.client.async_execute(env=environment))
            except (CellExecutionError, CellTimeoutError, DeadKernelError, RuntimeError) as error:
                raise NotebookError(f"{self.name}, {self._where()}: {_plain(str(error))}") from None
        return tidy(self.notebook)

    def stop(self) -> None:
        """Kill the kernel and all that it started; ``run`` ends soon after."""
        self._stopped.set()
        process = getattr(getattr(self.client.km, "provisioner", None), "process", None)
        if process is None or process.poll() is not None:
            return
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)  # a kernel leads its own process group
        else:
            process.kill()

    def _where(self) -> str:
        if self._cell is None:
            return "starting its kernel"
        before = self.notebook.cells[: self._cell]
        return f"code cell {sum(cell.cell_type == 'code' for cell in before) + 1}"


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Drop, in place, what differs between machines and runs; ids, sources, tags and outputs stay."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for key in _PASSING_METADATA:
            cell.metadata.pop(key, None)
    return notebook


def execute_all(
    names: Sequence[str] = NAMES,
    folder: Path = NOTEBOOKS,
    cell_timeout_s: int = CELL_TIMEOUT_S,
    gpu: bool = True,
    jobs: int = 2,
    progress: bool = True,
) -> dict[str, NotebookNode]:
    """Execute notebooks side by side, each in its own kernel.

    Ctrl-C and a failing notebook stop all kernels before anything is raised.

    Args:
        names: without ``.ipynb``.
        folder: where they are.
        cell_timeout_s: limit of one cell.
        gpu: whether cells may see a GPU.
        jobs: kernels at a time.
        progress: show a progress bar over all code cells, on standard error.

    Returns:
        The executed notebooks by name, in the order of ``names``.

    Raises:
        NotebookError: of the first notebook that fails.
    """
    executions = {
        name: Execution(name, read(folder / f"{name}.ipynb"), cell_timeout_s, gpu, folder) for name in names
    }
    total = sum(len(code_cells(execution.notebook)) for execution in executions.values())
    pool = ThreadPoolExecutor(jobs)
    with tqdm(total=total, unit="cell", desc="notebooks", disable=not progress) as bar:
        try:
            futures = {name: pool.submit(execution.run, bar.update) for name, execution in executions.items()}
            wait(futures.values(), return_when=FIRST_EXCEPTION)
            failed = [future for future in futures.values() if future.done() and future.exception()]
            if failed:
                failed[0].result()
            return {name: future.result() for name, future in futures.items()}
        finally:
            for execution in executions.values():
                execution.stop()
            pool.shutdown(cancel_futures=True)


def export(name: str, notebook: NotebookNode, out: Path) -> list[Path]:
    """Write a notebook as HTML and every figure of it as PNG.

    Returns:
        ``out/NAME.html`` and ``out/figures/NAME_NN.png``.
    """
    from nbconvert import HTMLExporter

    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.glob(f"{name}_[0-9][0-9].png"):
        old.unlink()
    exporter = HTMLExporter(
        extra_loaders=[DictLoader({"alt.html.j2": _TEMPLATE})], template_file="alt.html.j2"
    )
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": name}})
    written = [out / f"{name}.html"]
    written[0].write_text(body, encoding="utf-8")
    for number, output in enumerate(_pictures(notebook), 1):
        path = figures / f"{name}_{number:02d}.png"
        path.write_bytes(base64.b64decode(output.data["image/png"]))
        written.append(path)
    return written


def differences(before: NotebookNode, after: NotebookNode) -> list[str]:
    """What a reader would see differently: sources, text, and the figures in charts.

    Pictures are compared by what they show (``display.chart_data`` and alt text), not by their pixels, which
    change with every version of matplotlib. A picture without such data counts as changed. Outputs of cells
    tagged ``MACHINE_TAG`` may differ.
    """
    found = []
    if [cell.id for cell in before.cells] != [cell.id for cell in after.cells]:
        return ["cells were added, removed or moved"]
    for old, new in zip(before.cells, after.cells, strict=True):
        if old.source != new.source:
            found.append(f"cell {old.id}: source")
        if old.cell_type != "code" or MACHINE_TAG in old.metadata.get("tags", ()):
            continue
        shown_before, shown_after = (list(_shown(cell)) for cell in (old, new))
        if len(shown_before) != len(shown_after):
            found.append(f"cell {old.id}: {len(shown_before)} outputs became {len(shown_after)}")
        found += [
            f"cell {old.id}: {_excerpt(a, b)}"
            for a, b in zip(shown_before, shown_after, strict=False)
            if a != b
        ]
    return found


def _shown(cell: NotebookNode) -> Iterable[str]:
    """Every output as text that is equal when nothing changed."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield f"{output.name}: {output.text}"
        elif output.output_type == "error":
            yield f"error: {output.ename}: {output.evalue}"
        else:
            # A notebook that was written has its keys sorted, a fresh one has not.
            for kind, data in sorted(output.data.items()):
                if kind == "image/png":
                    figures = output.metadata.get(DATA_KEY) or f"without data, {next(_NEVER_EQUAL)}"
                    yield f"chart: {json.dumps(figures, sort_keys=True, ensure_ascii=False)}"
                else:
                    yield f"{kind}: {data}"


def _excerpt(before: str, after: str) -> str:
    """The first place where two texts differ, with a little around it."""
    at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    start = max(0, at - 40)
    return f"…{before[start : at + 40]!r} became …{after[start : at + 40]!r}"


def _pictures(notebook: NotebookNode) -> list[NotebookNode]:
    return [
        output
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]


def _plain(text: str) -> str:
    """Without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status: 0, 1 where a notebook fails, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m labs_common.notebooks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help=f"notebooks, all by default: {', '.join(NAMES)}")
    parser.add_argument("--write", action="store_true", help="write outputs back; no GPU is used")
    parser.add_argument("--out", type=Path, help="folder for HTML and PNG")
    parser.add_argument("--cell-timeout", type=int, default=CELL_TIMEOUT_S, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=2, help="kernels at a time (2)")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        parser.error(f"no notebook called {unknown[0]}; there are {', '.join(NAMES)}")
    try:
        executed = execute_all(
            chosen.names or NAMES,
            cell_timeout_s=chosen.cell_timeout,
            gpu=not chosen.write,
            jobs=chosen.jobs,
        )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except NotebookError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, notebook in executed.items():
        path = NOTEBOOKS / f"{name}.ipynb"
        changes = differences(read(path), notebook)
        if chosen.write:
            write(notebook, path)
        if chosen.out:
            export(name, notebook, chosen.out)
        changed = f"{len(changes)} changes" if changes else "no change"
        print(f"{name}: {len(_pictures(notebook))} figures, {changed} in text and chart data")
        for change in changes[:5]:
            print(f"    {change}")
    if chosen.out:
        print(f"HTML and figures are in {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
