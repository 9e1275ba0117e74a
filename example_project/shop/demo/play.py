"""The play: customers order in small rushes, three workers send receipts, and one of the three is killed."""

import random
import time
from collections import Counter
from uuid import UUID

from django.db import connection
from django.db.models import Count

from django_dhara.models import Task, Worker
from django_dhara.states import FINAL, State
from example_project.shop import orders, tasks
from example_project.shop.demo import report
from example_project.shop.demo.crew import Crew
from example_project.shop.demo.report import Killed
from example_project.shop.demo.screen import Screen
from example_project.shop.demo.stage import FUNCTIONS, NAME
from example_project.shop.models import Product

WORKERS = tuple(f"{NAME}{number}" for number in (1, 2, 3))
#: Short, so that nobody has to wait for the killed worker's tasks; by default a lease is 30 s, a sweep every 5 s.
ENVIRONMENT = {"DHARA_LEASE_SECONDS": "3", "DHARA_SWEEP_SECONDS": "1", "DHARA_DRAIN_SECONDS": "5"}
#: The orders come within so many seconds, but not slower than so many a second, and in rushes.
PLAY_SECONDS, SLOWEST, RUSH_SECONDS = 12.0, 50.0, 0.5
#: When so much has been ordered, the worker with the most tasks in its hands is killed: so many, or at least one later.
KILL_FROM, KILL_HANDFUL = 0.35, 3
#: A bank declines one payment in six.
DECLINED = 1 / 6
#: The play is given up when nothing has changed for so long.
STUCK_SECONDS = 30.0


def start_worker(crew: Crew, name: str) -> None:
    crew.start(
        name,
        "dhara_worker",
        "--name",
        name,
        "--queues",
        tasks.QUEUE,
        "--concurrency",
        "8",
        "--no-reload",
        **ENVIRONMENT,
    )


def wait_for_workers(crew: Crew, *names: str) -> None:
    """Return once they have said to the database that they are there."""
    pids = {crew.members[name].pid for name in names}
    up = Worker.objects.filter(name__in=names, pid__in=pids)
    crew.wait_until(lambda: up.count() == len(names))


class Play:
    """One performance of `count` orders."""

    def __init__(self, count: int, crew: Crew, screen: Screen) -> None:
        self._count, self._crew, self._screen = count, crew, screen
        self._products = list(Product.objects.all())
        self._placed = self.rolled_back = 0
        self.killed: Killed | None = None
        self._is_back = False
        self._states: Counter[str] = Counter()
        self._changed_at = time.monotonic()

    def run(self) -> None:
        """Play until every order has its receipt, or nothing changes any more."""
        began = time.monotonic()
        while not self._is_over():
            self._rush(time.monotonic() - began)
            self._kill_one()
            self._look()
            self._crew.check()
            time.sleep(0.02)
        self._screen.clear()

    def _is_over(self) -> bool:
        if time.monotonic() > self._changed_at + STUCK_SECONDS:
            return True
        is_killed = self.killed is None or self._is_back
        return self._placed == self._count and self._unfinished == 0 and is_killed

    # Ordering

    def _rush(self, elapsed: float) -> None:
        """Everybody who wants to order by the end of this rush does it now, as far as the screen can wait."""
        due = self._due((elapsed // RUSH_SECONDS + 1) * RUSH_SECONDS)
        until = time.monotonic() + 0.2
        while self._placed < due and time.monotonic() < until:
            self._order()

    def _due(self, elapsed: float) -> int:
        pace = max(self._count / PLAY_SECONDS, SLOWEST)
        return min(int(elapsed * pace), self._count)

    def _order(self) -> None:
        self._placed += 1
        customer = f"customer-{self._placed}@example.com"
        card_works = random.random() >= DECLINED
        try:
            orders.place(random.choice(self._products), random.choice((1, 1, 2, 3)), customer, card_works=card_works)
        except orders.PaymentDeclined:
            self.rolled_back += 1

    # Killing

    def _kill_one(self) -> None:
        """Freeze the busiest worker, look again what it has in its hands, and kill it; or let it go on."""
        if self.killed is not None or self._placed < self._count * KILL_FROM:
            return
        enough = KILL_HANDFUL if self._placed < self._count else 1
        worker, handful = self._busiest()
        if worker is None or handful < enough:
            return
        self._crew.freeze(worker.name)
        time.sleep(0.05)  # for a statement that was on its way
        held = self._held_by(worker.id)
        if not held:
            self._crew.thaw(worker.name)
            return
        self._crew.kill(worker.name)
        self.killed = Killed(worker.name, worker.id, _database_time(), held)
        self._screen.event(
            self._screen.style.ERROR(f"kill -9 {worker.name}")
            + f", which has {len(held)} {'task' if len(held) == 1 else 'tasks'} in its hands; nobody replaces it"
        )

    def _busiest(self) -> tuple[Worker | None, int]:
        running = Task.objects.running().filter(function__in=FUNCTIONS)
        by_worker = running.values_list("worker_id").annotate(count=Count("id")).order_by("-count")
        mine = {worker.id: worker for worker in Worker.objects.filter(name__in=self._crew.members)}
        return next(((mine[id_], count) for id_, count in by_worker if id_ in mine), (None, 0))

    def _held_by(self, worker: UUID) -> list[UUID]:
        return list(Task.objects.owned_by(worker).values_list("id", flat=True))

    # Looking

    @property
    def _unfinished(self) -> int:
        return sum(count for state, count in self._states.items() if state not in FINAL)

    def _look(self) -> None:
        counted = (
            Task.objects.filter(function__in=FUNCTIONS).values_list("state").annotate(count=Count("id")).order_by()
        )
        states = Counter(dict(counted))
        if states != self._states:
            self._states, self._changed_at = states, time.monotonic()
        if self.killed is not None and not self._is_back:
            self._look_for_comeback(self.killed)
        self._draw()

    def _look_for_comeback(self, killed: Killed) -> None:
        found = report.comeback(killed)
        if found.back == found.tasks:
            self._is_back = True
            self._screen.event(
                self._screen.style.SUCCESS("its tasks are back")
                + f": started again elsewhere {found.span} after the kill"
            )

    def _draw(self) -> None:
        states, placed = self._states, self._placed - self.rolled_back
        done = sum(states[state] for state in FINAL)
        known = sum(states.values())
        # A rolled back order is done with; the tasks of the others stand for them.
        share = self.rolled_back + (placed * done / known if known else 0)
        waiting, running = states[State.PENDING], states[State.RUNNING]
        self._screen.draw(
            int(share),
            self._placed,
            self._count,
            f"{placed:4d} orders, {done:4d} tasks done, {running:2d} running, {waiting:2d} waiting",
        )


def _database_time():
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
