"""Where submissions are graded: local processes or a Dask cluster; no bad task loses honest work."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from labs_common.grading.zygote import PR_SET_PDEATHSIG

Item = TypeVar("Item")

IN_FLIGHT_PER_WORKER = 2  # one that runs and one that waits beside it: few are lost with a worker


class LocalScheduler:
    """Processes of this machine."""

    def __init__(self, workers: int | None = None) -> None:
        """Prepare.

        Args:
            workers: processes; by default one for each core that this process may use.

        Raises:
            ValueError: ``workers`` is below 1.
        """
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: allowed is at least 1")
        self.workers = workers or len(os.sched_getaffinity(0))

    def executor(self) -> Executor:
        """A fresh executor."""
        # spawned: the parent may have threads, and a fork would copy their locks
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=_end_with_parent)

    def close(self) -> None:
        """Nothing is kept."""


class DaskScheduler:
    """The workers of a Dask cluster; each must have this package at this version.

    Attributes:
        client: connected to the scheduler.
    """

    def __init__(self, address: str, gpu: bool = False, timeout_s: float = 20) -> None:
        """Connect.

        Args:
            address: of the scheduler, such as ``tcp://host:8786``.
            gpu: whether a task needs a worker's GPU (workers are started with ``--resources GPU=1``).
            timeout_s: until the scheduler must have answered.

        Raises:
            ValueError: dask.distributed is not installed, or no scheduler answers.
        """
        try:
            from distributed import Client
        except ImportError:
            raise ValueError(
                "--scheduler needs dask.distributed: pip install 'paged-attention-lab[cluster]'"
            ) from None
        try:
            self.client = Client(address, timeout=timeout_s, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ValueError(f"no Dask scheduler answers at {address}: {error}") from None
        self._resources = {"GPU": 1} if gpu else None

    @property
    def workers(self) -> int:
        """Threads of all workers, at least one."""
        return max(1, sum(self.client.nthreads().values()))

    def executor(self) -> Executor:
        """An executor on the cluster."""
        options = {"resources": self._resources} if self._resources else {}
        return self.client.get_executor(**options)

    def close(self) -> None:
        """Disconnect; the cluster goes on."""
        self.client.close()


def run_all(
    scheduler: LocalScheduler | DaskScheduler,
    function: Callable[[Item], Any],
    items: Iterable[Item],
    alone: Callable[[Item, BaseException], Any],
) -> Iterator[Any]:
    """Results of ``function`` over items, as they are done; few are under way at any time.

    A worker that dies takes its executor or its task with it. What was under way then is not known to be
    guilty: it is run again, one at a time, and what ends a worker alone is handed to ``alone``.

    Args:
        function, items: picklable.
        alone: makes the result of an item that ends its worker even when it runs by itself.

    Raises:
        RuntimeError: workers do not start.
    """
    waiting, suspects = deque(items), deque()
    while waiting or suspects:
        testing = bool(suspects)  # one at a time, until it is known who ends workers
        queue = suspects if testing else waiting
        limit = 1 if testing else IN_FLIGHT_PER_WORKER * scheduler.workers
        executor = scheduler.executor()
        running: dict[Future, Item] = {}
        whole_pool_died = done_well = False
        try:
            _try_out(executor)
            while (queue or running) and not whole_pool_died:
                while queue and len(running) < limit and not whole_pool_died:
                    try:
                        running[executor.submit(function, queue[0])] = queue[0]
                        queue.popleft()
                    except BrokenProcessPool:
                        whole_pool_died = True
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    item = running.pop(future)
                    error = future.exception()
                    if error is None:
                        yield future.result()
                    elif not _worker_died(error):
                        raise error
                    elif testing:
                        yield alone(item, error)
                    else:
                        suspects.append(item)
                    whole_pool_died |= isinstance(error, BrokenProcessPool)
            if whole_pool_died:
                suspects.extend(running.values())
            done_well = True
        finally:
            for future in running:
                future.cancel()
            executor.shutdown(wait=done_well and not whole_pool_died)


def _try_out(executor: Executor) -> None:
    """One call of no submission's: where workers do not even start, nobody is to blame for it.

    Raises:
        RuntimeError: see there.
    """
    try:
        executor.submit(os.getpid).result()
    except Exception as error:
        if not _worker_died(error):
            raise
        raise RuntimeError(
            f"the processes that grade do not start ({type(error).__name__}: {error})"
        ) from None


def _end_with_parent() -> None:
    """A worker of a grader that was killed ends too; left alone it would wait for work for ever."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _worker_died(error: BaseException) -> bool:
    return isinstance(error, BrokenProcessPool) or type(error).__name__ in ("KilledWorker", "CancelledError")
