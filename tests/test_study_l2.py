"""What L2 holds before attention: which states are measured and what is told. The times are made up."""

import numpy as np
import pandas as pd
import pytest

from labs_common import study_l2
from labs_common.device_inputs import device_inputs, device_reference
from labs_common.problem import Problem
from labs_common.timing import Timing

PROBLEM = Problem(6, 2, 64, 16, (40, 17), "float32", name="S1")


@pytest.fixture
def found(simulator, monkeypatch):
    """The study of a small problem, run by the simulator, and what was called before measurements."""
    made = device_inputs(np, PROBLEM, 1)
    before = []

    def on_host(xp, problem, sets):
        arrays = [{name: simulator.xp.asarray(a) for name, a in one.items()} for one in made.sets]
        return type(made)(problem, tuple(arrays), made.scale)

    def timed(xp, calls, rounds, between, graph_s):
        before.append(between)
        for name, those in calls.items():
            for call in those if not name.startswith("read ") else ():
                call()
        seconds = {"09": 4e-6, "09, not evicted first": 8e-6, "read x": 2e-6}
        return {name: Timing(seconds[name] * len(before), 9e-6, 1, rounds, 1) for name in calls}

    monkeypatch.setattr(study_l2, "device_inputs", on_host)
    monkeypatch.setattr(study_l2, "device_reference", lambda xp, inputs, n: device_reference(np, made, n))
    monkeypatch.setattr(study_l2, "time_gpu", timed)
    monkeypatch.setattr(study_l2, "ceiling_bytes", lambda _: 80_000)
    monkeypatch.setattr(study_l2, "ceiling_calls", lambda *_: {"read x": []})
    monkeypatch.setattr(study_l2, "refill_l2", lambda engine: "as usual")
    monkeypatch.setattr(study_l2, "reading", lambda *_: "evicted first")
    monkeypatch.setattr(simulator, "build", list, raising=False)
    return study_l2.measure(simulator, PROBLEM, sets=1), before


def test_both_policies_are_timed_in_every_state(found):
    rows, before = found

    assert before[:2] == ["as usual", "evicted first"] and callable(before[2]) and before[3] is None
    assert len(rows) == 4 * 2 and rows["right"].all()
    assert rows["median_us"].tolist() == pytest.approx([4, 8, 8, 16, 12, 24, 16, 32])
    assert rows["ceiling_GB/s"].tolist() == pytest.approx([40, 40, 20, 20, 40 / 3, 40 / 3, 10, 10])
    moved = 2 * (40 + 17) * 2 * 64 * 4 + 2 * (2 * 6 * 64 * 4)  # keys, values; queries, output
    assert rows["GB/s"][0] == pytest.approx(PROBLEM.minimum_bytes / 4e-6 / 1e9)
    assert moved <= PROBLEM.minimum_bytes <= 1.05 * moved


def test_the_table_has_a_column_for_each_state_in_order(found):
    shown = study_l2.table(found[0], "median_us")

    assert list(shown.columns) == list(dict.fromkeys(found[0]["before"]))
    assert shown.loc[("float32", "S1", "09")].tolist() == pytest.approx([4, 8, 12, 16])
    assert isinstance(shown, pd.DataFrame) and len(shown) == 2


def test_the_summary_by_hand(found):
    """The hint halves the time in every state; 09 takes two, three and four times as long in the others."""
    rows = study_l2.summary(found[0])

    assert rows["09 slower by, %"].tolist() == ["0.0", "100.0", "200.0", "300.0"]
    assert rows["median %"].tolist() == rows["hint, least %"].tolist()
    assert rows["most %"].tolist() == ["+100.0"] * 4
    assert rows["plain read, GB/s"].tolist() == ["40", "20", "13", "10"]


def test_what_was_recorded_says_what_the_notebook_says():
    """After reads as usual the hint helps in every problem; after writes all are slower, and it harms."""
    found = study_l2.recorded()
    rows = study_l2.summary(found).astype(float, errors="ignore")

    assert found["right"].all() and len(found) == 4 * 2 * 15
    times = study_l2.table(found, "median_us").unstack("what")
    gain = {s: times[s, "09, not evicted first"] / times[s, "09"] - 1 for s in dict.fromkeys(found["before"])}
    assert gain["read as usual"].min() > 0.002 and gain["written"].median() < -0.01
    assert (times["written", "09"] / times["read as usual", "09"]).min() > 1.01
    assert float(rows.loc["written", "09 slower by, %"]) > 2
    assert study_l2.recorded("no such GPU").empty
