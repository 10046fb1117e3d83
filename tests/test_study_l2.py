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
    assert rows["GB/s"][0] == pytest.approx(PROBLEM.minimum_bytes / 4e-6 / 1e9)


def test_the_table_has_a_column_for_each_state_in_order(found):
    shown = study_l2.table(found[0], "median_us")

    assert list(shown.columns) == list(dict.fromkeys(found[0]["before"]))
    assert shown.loc[("float32", "S1", "09")].tolist() == pytest.approx([4, 8, 12, 16])
    assert len(shown) == 2


def test_the_summary_by_hand(found):
    """The hint halves the time in every state; 09 takes two, three and four times as long in the others."""
    rows = study_l2.summary(found[0])

    assert rows["slower, mean %"].tolist() == rows["slower, most %"].tolist() == [0, 100, 200, 300]
    for of_problems in ("least", "median", "most"):
        assert rows[f"hint gains, {of_problems} %"].tolist() == [100] * 4
    assert rows["plain read, GB/s"].tolist() == pytest.approx([40, 20, 13.3, 10])
    with pytest.raises(ValueError, match="no state"):
        study_l2.summary(pd.DataFrame())


def test_what_was_recorded_says_what_is_said_of_it():
    """README, notebook 09 and ``refill_l2``: written lines cost a plain read 2 %, and 09 1.7 to 5.5 %."""
    found = study_l2.recorded()
    rows = study_l2.summary(found)

    assert found["right"].all() and len(found) == 4 * 2 * 15
    usual, written, nothing = (rows.loc[name] for name in ("read as usual", "written", "done nothing"))
    assert usual["hint gains, least %"] == 0.3 and usual["hint gains, most %"] == 1.9
    assert written["hint gains, least %"] == -3.5 and written["hint gains, most %"] < 0.1
    assert written["plain read, GB/s"] / usual["plain read, GB/s"] == pytest.approx(0.98, abs=0.003)
    assert (written["slower, mean %"], written["slower, most %"]) == (3.3, 5.5)
    times = study_l2.table(found, "median_us").unstack("what")
    slower = times["written", "09"] / times["read as usual", "09"] - 1
    assert slower.min() == pytest.approx(0.017, abs=0.001)
    assert nothing["slower, most %"] < 1
    assert study_l2.recorded("no such GPU").empty


def test_a_shape_that_nobody_knows_is_refused():
    for arguments in ([], ["file.csv", "S9"]):
        with pytest.raises(SystemExit, match=r"usage: .*\[S1 S1r"):
            study_l2.main(arguments)
