"""Algorithms in Python: what they do is what the same program does without them; their exceptions harm no flow."""

import gc
import json
import pickle
import weakref

import pytest

import ccplane
from ccplane import _native

LINK = """
title = "A link"
duration_s = 10
repeats = 1
[[link]]
rate_mbit = 12
delay_ms = 20
queue_packets = 40
"""


def plan(*names, datapath="sim"):
    return LINK + "".join(f'[[algorithm]]\nalgorithm = "{n}"\ndatapath = "{datapath}"\n' for n in names)


class Nothing:
    def on_report(self, now_us, program, report, control):
        pass


def test_the_built_in_program_under_a_class_is_the_built_in_algorithm(root):
    class Same(ccplane.Algorithm):
        name = "py-same"
        programs = {"reno": (root / "algs/src/reno.fold").read_text()}

        def flow(self, info, control):
            control.set_program("reno", mss=info["mss_bytes"])
            return Nothing()

    ours, built_in = ccplane.simulate(plan("py-same", "reno"), [Same()])
    for figure in ("acked_bytes", "throughput_bps", "lost_pkts", "rtt_us", "series"):
        assert ours["flows"][0][figure] == built_in["flows"][0][figure], figure


def test_reno_by_reports_uses_the_link(reno):
    ours, built_in = ccplane.simulate(reno.PLAN, [reno.Reno()])
    assert (ours["contender"], built_in["contender"]) == ("py-reno sim", "reno sim")
    ours, built_in = ours["flows"][0], built_in["flows"][0]
    assert ours["throughput_bps"] > 0.8 * built_in["throughput_bps"]
    assert ours["lost_pkts"] > 0


def test_reports_say_what_the_datapath_measured(reno):
    heard = []

    class Hears(ccplane.Algorithm):
        name = "py-hears"
        programs = reno.Reno.programs

        def flow(self, info, control):
            assert info["mss_bytes"] > 500 and info["init_cwnd_bytes"] >= info["mss_bytes"]
            control.set_program("rounds", Cwnd=20 * info["mss_bytes"])
            return self

        def on_report(self, now_us, program, report, control):
            heard.append((now_us, program, report))

        def on_close(self):
            heard.append("closed")

    (run,) = ccplane.simulate(plan("py-hears"), [Hears()])
    reports = [one for one in heard if one != "closed"]
    times = [now_us for now_us, _, _ in reports]
    assert times == sorted(times) and len(times) > 100
    assert {program for _, program, _ in reports} == {"rounds"}
    # All but what the last round trip acknowledged.
    acked = sum(report["acked"] for _, _, report in reports)
    assert 0.98 < acked / run["flows"][0]["acked_bytes"] <= 1


@pytest.mark.parametrize("where", ["flow", "report"])
def test_an_exception_hands_the_flow_back_and_is_kept(where, reno):
    class Fails(ccplane.Algorithm):
        name = f"py-fails-{where}"
        programs = reno.Reno.programs
        reports = 0

        def flow(self, info, control):
            if where == "flow":
                raise KeyError("no such luck")
            control.set_program("rounds")
            return self

        def on_report(self, now_us, program, report, control):
            self.reports += 1
            if self.reports > 20:
                raise KeyError("no such luck")

    fails = Fails()
    (run,) = ccplane.simulate(plan(fails.name), [fails])
    # The native algorithm carries the flow on; the class's own program would leave it at its first window.
    assert run["flows"][0]["throughput_bps"] > 6e6
    assert len(fails.errors) == 1 and "KeyError: 'no such luck'" in fails.errors[0]
    assert "test_algorithms.py" in fails.errors[0], "the traceback says where"
    assert fails.reports == {"flow": 0, "report": 21}[where]


def test_a_field_that_is_not_there_changes_nothing(reno):
    def asking(**fields):
        class Asks(ccplane.Algorithm):
            name = "py-asks"
            programs = reno.Reno.programs
            reports = 0

            def flow(self, info, control):
                control.set_program("rounds", Cwnd=20 * info["mss_bytes"])
                return self

            def on_report(self, now_us, program, report, control):
                self.reports += 1
                if fields:
                    control.update(**fields)

        asks = Asks()
        (run,) = ccplane.simulate(plan("py-asks"), [asks])
        return run["flows"][0], asks

    (refused, wrong), (plain, right), (slowed, _) = asking(Nothing=1), asking(), asking(Cwnd=6000)
    for figure in ("acked_bytes", "throughput_bps", "lost_pkts", "rtt_us", "series"):
        assert refused[figure] == plain[figure], figure
    assert wrong.reports == right.reports > 100 and wrong.errors == []
    assert slowed["throughput_bps"] < 0.6 * plain["throughput_bps"], "one that is there changes what the flow does"


def test_a_bandit_finds_the_rate_that_the_link_carries(bandit):
    chooses = bandit.Bandit()
    ccplane.simulate(bandit.PLAN, [chooses])
    pulls = chooses.flows[0].pulls
    assert pulls[1] == max(pulls) and min(pulls) >= 1, pulls


def test_what_is_no_algorithm_is_refused():
    class Loud(ccplane.Algorithm):
        name = "Loud!"
        programs = {}

        def flow(self, info, control):
            return Nothing()

    with pytest.raises(ValueError, match="a-z, 0-9"):
        ccplane.simulate(plan("Loud!"), [Loud()])

    class Broken(Loud):
        name = "py-broken"
        programs = {"p": "(def (x 1)) (when true (:= y 1))"}

    with pytest.raises(ccplane.SimulationError, match="program `p` of algorithm `py-broken`") as failed:
        ccplane.simulate(plan("reno", "py-broken", "cubic"), [Broken()])
    assert [run["contender"] for run in failed.value.runs] == ["reno sim"], "what ran before is kept"
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.runs) == (str(failed.value), failed.value.runs)
    with pytest.raises(ValueError, match="py-none"):
        ccplane.simulate(plan("py-none"))


def test_a_plan_is_played_in_parts():
    text = plan("reno", "cubic", "copa")
    whole, problem = _native.simulate(text, [])
    first, second = (_native.simulate(text, [], part=part, parts=2)[0] for part in range(2))
    assert problem is None and [first[0], second[0], first[1]] == whole


def test_an_algorithm_that_nobody_has_is_collected_and_one_that_an_agent_has_is_not(reno):
    algorithm = reno.Reno()
    algorithm.hosted()
    gone = weakref.ref(algorithm)
    del algorithm
    gc.collect()
    assert gone() is None

    class Forgotten(ccplane.Algorithm):
        name = "py-forgotten"
        programs = reno.Reno.programs

        def flow(self, info, control):
            control.set_program("rounds")
            return Collects()

    class Collects:
        def on_report(self, now_us, program, report, control):
            if not collected:
                given.clear()
                gc.collect()
                collected.append(had() is not None and "_hosted" in vars(had()))

    collected, algorithm = [], Forgotten()
    given, had = [algorithm.hosted()], weakref.ref(algorithm)
    del algorithm
    _, problem = _native.simulate(plan("py-forgotten"), given)
    assert (problem, collected) == (None, [True])
    gc.collect()
    assert had() is None


def test_the_command_takes_them(capfd, tmp_path, reno):
    assert ccplane.command(["prog", "check", "nothing.fold"]) == 2
    assert "nothing.fold" in capfd.readouterr().err
    assert ccplane.command(["--version"]) == 0
    assert ccplane.command(["--no-such-flag"]) == 2
    arguments = ["league", "--family", "steady", "--links", "1", "--algorithm", "py-reno,reno", "--results", tmp_path]
    capfd.readouterr()
    assert ccplane.command(arguments, [reno.Reno()]) == 0
    assert "py-reno" in capfd.readouterr().out
    assert "py-reno" in (tmp_path / "league.jsonl").read_text()


def test_an_evaluation_names_the_commands_that_repeat_it(capfd, tmp_path, reno):
    arguments = ["evaluate", "py-reno", "--criterion", "constrained", "--cases", "1", "--results", tmp_path]
    assert ccplane.command(arguments, [reno.Reno()]) == 0
    report = json.loads((tmp_path / "py-reno.json").read_text())
    assert report["provenance"]["command"] == "ccplane evaluate py-reno --cases 1 --criterion constrained"
    (case,) = report["cases"]
    assert case["command"] == "ccplane evaluate py-reno --case constrained/0"
    assert case["command"] in (tmp_path / "py-reno.html").read_text()
    capfd.readouterr()
    assert ccplane.command([*case["command"].split()[1:], "--json"], [reno.Reno()]) == 0
    cells = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [cell["algorithm"] for cell in cells] == ["py-reno", "reno", "cubic", "bbr"]
    assert {cell["algorithm"]: cell["figures"] for cell in cells} == case["contenders"]


def test_leagues_are_the_commands(tmp_path, reno):
    from ccplane.leagues import ranking, ranking_polars

    out = tmp_path / "ours.jsonl"
    cells = ccplane.league(["steady", "shallow"], ["reno", reno.Reno()], links=1, out=out)
    assert list(cells["algorithm"]) == ["reno", "py-reno"] * 2
    arguments = ["league", "--family", "steady", "--family", "shallow", "--links", "1", "--algorithm", "reno,py-reno"]
    assert ccplane.command([*arguments, "--results", tmp_path], [reno.Reno()]) == 0
    assert out.read_bytes() == (tmp_path / "league.jsonl").read_bytes()
    ranked = ranking(cells)
    assert ranked.loc["reno", "throughput_bps"] > 0
    polars = ccplane.league_polars(["steady", "shallow"], ["reno", reno.Reno()], links=1)
    assert polars.rows(named=True) == [json.loads(line) for line in out.read_text().splitlines()]
    assert ranking_polars(polars)["algorithm"].to_list() == list(ranked.index)
    assert ranking_polars(polars)["throughput_bps"].to_list() == pytest.approx(list(ranked["throughput_bps"]))
