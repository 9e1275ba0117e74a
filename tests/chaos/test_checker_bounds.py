"""The checker, on what is measured and counted, on outages and beside poison: a single thing wrong fails."""

import pytest

from tests.chaos.test_checker import OTHER, WORKER, A, B, Story

pytestmark = pytest.mark.fast


@pytest.fixture
def story():
    return Story()


def samples(story, seconds, megabytes_of, step=10):
    """Of one worker, at each step; they are the middle of a load that is twice as long."""
    story.event("phase", phase="load")
    begins = story.t
    for at in range(0, 2 * seconds, step):
        story.t = begins + at
        story.event("sample", sessions=1, megabytes={"10": megabytes_of(max(at - seconds, 0))})
    story.t = begins + 2 * seconds
    return story.event("phase", phase="heal")


# ------------------------------------------------------------------------------------------------------- I18: memory


def test_i18_memory_that_grows_a_little_for_long(story):
    assert samples(story, 1800, lambda t: 60 + 6 * t / 3600).broken() == {"I18"}


def test_i18_memory_that_stays_within_its_slope(story):
    assert samples(story, 1800, lambda t: 60 + 4 * t / 3600).broken() == set()


def test_i18_a_short_run_may_fill_its_caches_and_no_more(story):
    assert samples(story, 120, lambda t: 60 + 20 * t / 120).broken() == set()
    assert samples(Story(), 120, lambda t: 60 + 40 * t / 120).broken() == {"I18"}


# ------------------------------------------------------------------------------------------------- I2: the statistics


def test_i2_the_statistics_count_what_the_log_has(story):
    story.enqueued().ran()
    story.minutes = [("app.work", 1)]
    assert story.broken() == set()
    story.minutes = []
    assert story.broken() == {"I2"}
    story.minutes = [("app.work", 2)]
    assert story.broken() == {"I2"}


def test_i2_what_a_killed_worker_had_not_written_is_missing(story):
    story.enqueued().ran().fault("kill", WORKER)
    story.minutes = []
    assert story.broken() == set()
    late = Story().enqueued().ran()
    late.t += 60
    late.fault("kill", WORKER).minutes = []
    assert late.broken() == {"I2"}


def test_i2_what_was_written_on_a_session_that_broke_may_be_there_twice(story):
    story.enqueued().ran().event("fault", kind="end sessions")
    story.minutes = [("app.work", 2)]
    assert story.broken() == set()
    story.minutes = [("app.work", 3)]
    assert story.broken() == {"I2"}


# --------------------------------------------------------------------------------- I8: what is taken from the living


def test_i8_a_task_is_taken_from_a_run_that_is_well(story):
    story.enqueued().claimed().started().rescued().ran(pid=OTHER)
    assert story.broken() == {"I8"}


def test_i8_a_task_is_taken_while_the_database_is_disturbed(story):
    story.enqueued().claimed().started()
    story.event("fault", kind="slow writes").rescued().ran(pid=OTHER)
    assert story.broken() == set()


def crashed(story, seconds):
    story.event("fault", kind="crash", down=True)
    story.t += seconds - 1
    return story.event("heal", kind="crash", down=True)


def test_i8_a_task_is_taken_from_a_run_that_lived_through_a_crash(story):
    crashed(story.enqueued().claimed().started(), 5).rescued().ran(pid=OTHER)
    assert story.broken() == {"I8"}
    assert story.verdict().figures["lived"] == {"n": 1, "taken": 1}


def test_a_run_that_lives_through_a_crash_and_keeps_its_task_is_counted(story):
    crashed(story.enqueued().claimed().started(), 5).ended().settled()
    crashed(story.enqueued(B).claimed(B).started(B), 1).ended(B).settled(B)
    assert story.broken() == set()
    assert story.verdict().figures["lived"] == {"n": 1, "taken": 0}


def test_a_run_whose_worker_was_killed_does_not_count_as_alive(story):
    crashed(story.enqueued().claimed().started().fault("kill", WORKER), 5).rescued().ran(pid=OTHER)
    assert story.broken() == set()
    assert story.verdict().figures["lived"]["n"] == 0


def test_a_run_whose_worker_was_killed_before_it_could_settle_does_not_count_either(story):
    story.enqueued().claimed().started().event("fault", kind="crash", down=True).ended()
    story.t += 4
    story.event("heal", kind="crash", down=True).fault("kill", WORKER).rescued().ran(pid=OTHER)
    assert story.broken() == set()


def test_i8_a_step_of_the_servers_clock_explains_a_repeat(story):
    story.enqueued().claimed().started().ended()
    story.event("fault", kind="clock forward").event("heal", kind="clock forward").rescued().ran(pid=OTHER)
    assert story.broken() == set()


@pytest.mark.parametrize(("seconds", "rules"), [(0.5, set()), (5, {"I13"})])
def test_i13_a_claim_that_a_step_of_the_clock_overtakes_is_not_early(story, seconds, rules):
    story.enqueued().event("fault", kind="clock back")
    story.t += seconds - 1
    story.claimed(run_at=3600.0)
    story.t += 10
    story.event("heal", kind="clock back").started().ended().settled()
    assert story.broken() == rules


# ------------------------------------------------------------------------------------------------------ I19: handover


@pytest.mark.parametrize(("seconds", "rules"), [(0.5, set()), (3.0, {"I19"})])
def test_i19_what_was_given_back_is_claimed_soon(story, seconds, rules):
    story.event("phase", phase="load").enqueued().claimed().started().fault("term", WORKER)
    story.event("settle", WORKER, began=story.t, runs=[[A, 1, "hand back", "PENDING"]])
    given = story.t
    story.t -= 1
    story.changed("settle", "PENDING")
    story.t = given + seconds - 1
    story.ran(pid=OTHER).event("phase", phase="heal")
    assert story.broken() == rules


# ------------------------------------------------------------------------------------------------------------- poison


@pytest.mark.parametrize(("killers", "rules"), [(("k1", "k2"), set()), (("k1", "k1"), {"poison"})])
def test_poison_costs_each_neighbour_one_run_at_most(story, killers, rules):
    story.enqueued()
    for number, killer in enumerate(killers):
        if killer not in story.rows:
            story.enqueued(killer, function="app.kills")
        is_last = killer not in killers[number + 1 :]
        both = {A: "DEAD" if number else "PENDING", killer: "DEAD" if is_last else "PENDING"}
        for id_ in both:
            story.claimed(id_, worker=f"worker {number}").started(id_, WORKER + number)
        story.fault("kill", WORKER + number)
        for id_, state in both.items():
            story.rescued(id_, state=state)
    assert story.broken(poison=True) == rules


# -------------------------------------------------------------------------------------------------------- I15: poison


@pytest.mark.parametrize(("seconds", "rules"), [(1.2, set()), (3.0, {"I15"})])
def test_i15_harmless_tasks_wait_longer_beside_poison(story, seconds, rules):
    def many(name, wait):
        for number in range(120):
            id_ = f"{name} {number}"
            story.enqueued(id_)
            story.t += wait - 1
            story.claimed(id_)
            story.t -= 1
            story.started(id_).ended(id_).settled(id_)

    many("calm", 1.0)
    story.event("poison")
    many("poisoned", seconds)
    assert story.broken() == rules


def test_i15_a_wait_for_the_only_worker_to_start_is_not_the_queues(story):
    story.event("started", slot="worker 0", pid=WORKER).event("poison").enqueued().ran()
    story.fault("kill", WORKER).event("exit", slot="worker 0", pid=WORKER, code=-9)
    story.event("started", slot="worker 0", pid=OTHER).enqueued(B)
    story.t += 5
    story.ran(B, OTHER)
    assert story.verdict().figures["poisoned"]["n"] == 1
