"""Alarms and the end of a solved run, from metrics alone."""

import json

import pytest

from marl_jax.errors import RunError
from marl_jax.running import monitor as monitors
from marl_jax.running.monitor import Monitor
from marl_jax.schema import conditions


def metrics(success=0.5, informative=0.5, steps=2, skipped=0, rejected=0.0):
    found = dict(success=success, informative_share=informative, optimizer_steps=steps, skipped=skipped)
    return found | dict(rejected=rejected, zero_std_groups=1 - informative)


def kinds(monitor, rows, start=1):
    """The alarms of each update."""
    return [[alarm.kind for alarm in monitor.observe(step, row)] for step, row in enumerate(rows, start)]


def test_a_collapse_raises_each_alarm_once_and_again_after_a_recovery():
    monitor = Monitor()
    fall = [metrics()] * 5 + [metrics(0.0, 0.0)] * 6
    assert kinds(monitor, fall) == [[]] * 7 + [["uninformative", "collapse"]] + [[]] * 3
    assert kinds(monitor, [metrics()] * 5, 12) == [[]] * 5
    assert kinds(monitor, [metrics(0.0, 0.0)] * 3, 17) == [[], [], ["uninformative", "collapse"]]


def test_messages_say_what_happened_and_what_to_do():
    monitor = Monitor()
    for step in range(1, 6):
        monitor.observe(step, metrics(0.9))
    alarms = [alarm for step in range(6, 9) for alarm in monitor.observe(step, metrics(0.0, 0.0))]
    texts = {alarm.kind: alarm.message for alarm in alarms}
    assert "last 3 updates" in texts["uninformative"] and "best average 90.0 % at step 5" in texts["uninformative"]
    assert "36.0 % over 5 updates" in texts["collapse"] and "alarm=rollback" in texts["collapse"]


def test_a_solved_task_a_noisy_start_and_a_curriculum_raise_no_alarm():
    assert not any(kinds(Monitor(), [metrics(1.0, 0.0)] * 10))
    assert not any(kinds(Monitor(), [metrics(0.09)] * 5 + [metrics(0.01)] * 9))
    assert not any(kinds(Monitor(watch_success=False), [metrics(0.9)] * 5 + [metrics(0.1)] * 9))


def test_constant_rewards_raise_an_alarm_without_a_best():
    monitor = Monitor()
    found = [alarm.message for step in (1, 2, 3) for alarm in monitor.observe(step, metrics(0.0, 0.0, steps=0))]
    assert len(found) == 1 and "(success 0.0 %)" in found[0]


@pytest.mark.parametrize("lost", [dict(steps=0, skipped=2), dict(rejected=1.0)])
def test_updates_that_are_all_skipped_or_rejected(lost):
    monitor = Monitor()
    assert kinds(monitor, [metrics(**lost)] * 6) == [[]] * 4 + [["skipped"], []]
    assert monitor.nothing_learned
    monitor.observe(7, metrics(steps=1, skipped=1))
    assert not monitor.nothing_learned and monitor.state.skipped == 0


def test_an_update_without_a_signal_is_not_a_skipped_one():
    monitor = Monitor()
    kinds(monitor, [metrics(informative=0.0, steps=0)] * 4)
    assert not monitor.nothing_learned and monitor.state.skipped == 0


def test_a_run_is_solved_once_its_conditions_hold_three_times_in_a_row():
    monitor = Monitor(conditions.parse("success>=0.99 and zero_std_groups >= .9"))
    solved = metrics(0.995, 0.05)
    kinds(monitor, [solved, solved, metrics(0.995, 0.2), solved, solved])
    assert not monitor.solved
    kinds(monitor, [solved])
    assert monitor.solved


def test_a_condition_on_an_unknown_metric_is_refused_with_those_that_exist():
    with pytest.raises(RunError, match="stop_when names 'sucess'.*Use one of: informative_share, .*success"):
        Monitor(conditions.parse("sucess>=1")).observe(1, metrics())


@pytest.mark.parametrize("text", ["success", "success>0.9", "success>=high", "success>=0.9 or x<=1", "and", ">=1"])
def test_conditions_that_cannot_be_read(text):
    assert not conditions.CONDITIONS.holds(text)
    with pytest.raises(ValueError, match="is not a condition such as"):
        conditions.parse(text)


def test_conditions_that_can():
    (one, two) = conditions.parse("eval/self/x<=-1e-3 and pass@8>=1")
    assert (one.metric, one.bound, two.metric) == ("eval/self/x", -1e-3, "pass@8")
    assert one.holds({"eval/self/x": -1e-3}) and not one.holds({"eval/self/x": 0.0})
    assert conditions.CONDITIONS.holds("") and conditions.parse(" ") == ()


def test_a_monitor_continues_from_what_was_saved():
    rows = [metrics(0.9)] * 5 + [metrics(0.1, 0.0)] * 5
    whole, broken = Monitor(), Monitor()
    expected = kinds(whole, rows)
    found = kinds(broken, rows[:7])
    broken = Monitor(saved=json.loads(json.dumps(broken.saved())))
    assert found + kinds(broken, rows[7:], 8) == expected
    assert broken.saved() == whole.saved()


def test_good_checkpoints_have_no_alarm_and_nearly_the_best_success():
    monitor, states = Monitor(), {}
    for step, row in enumerate([metrics(0.5)] * 5 + [metrics(0.9)] * 5 + [metrics(0.2)] * 3, 1):
        monitor.observe(step, row)
        states[step] = json.loads(json.dumps(monitor.saved()))
    good = [step for step, saved in states.items() if monitor.is_good(saved)[0]]
    assert good == [8, 9, 10, 11]  # averages from 0.74 up; 0.76 at step 11 is still 0.8 of 0.9
    monitor.rolled_back()
    assert monitor.lr_scale == 0.5 and monitor.state.success == [] and monitor.state.best == pytest.approx(0.9)
    assert monitors.ROLLBACKS == 2
