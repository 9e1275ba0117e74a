import os
import signal

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from example_project.shop.demo import open_shop, play, report, stage
from example_project.shop.demo.crew import Crew
from example_project.shop.demo.screen import Screen, first_line

FEWEST = 20
INTRODUCTION = """\
The shop takes {orders} orders, each saved in one transaction with the task that
mails its receipt. One payment in six is declined, which rolls both back.
Of three workers, one is killed in mid-work.
"""


class Command(BaseCommand):
    help = (
        "Play the shop on a real PostgreSQL: orders placed with their tasks, some rolled back, three workers, one of "
        "them killed with SIGKILL. Then print what the database says; exit code 1 if an order has no receipt, or two. "
        "Without DATABASE_URL a private PostgreSQL is started. In the database, all migrations are applied, and the "
        "shop's own rows and tasks of an earlier demo are deleted, nothing else."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--orders", type=int, default=600, metavar="N", help="How many; 600 by default.")
        parser.add_argument(
            "--serve", action="store_true", help="Then keep the site, its admin and a worker running, until Ctrl-C."
        )

    def handle(self, *, orders: int, serve: bool, **_: object) -> None:
        if orders < FEWEST and not (serve and orders == 0):
            raise CommandError(f"--orders is at least {FEWEST}, so that there is a worker to kill (or 0 with --serve).")
        # SIGTERM ends it as Ctrl-C does, with all its processes. A shell's background job starts with SIGINT ignored.
        for word in (signal.SIGINT, signal.SIGTERM):
            signal.signal(word, signal.default_int_handler)
        os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
        screen = Screen(self.stdout, self.style)
        try:
            self._perform(screen, orders, serve=serve)
        except KeyboardInterrupt:
            screen.clear()
            screen.say("Stopped; none of its processes is left.")
            raise SystemExit(130) from None
        except DatabaseError as error:
            screen.clear()
            raise CommandError(f"the database failed: {first_line(error)}") from error

    def _perform(self, screen: Screen, orders: int, *, serve: bool) -> None:
        if orders:
            screen.say(INTRODUCTION.format(orders=orders))
            screen.say()
        screen.event(f"{stage.reach()} answers")
        stage.prepare()
        screen.event("all migrations are applied, nothing of an earlier demo is left")
        with Crew() as crew:
            if orders:
                self._play(screen, crew, orders)
            if serve:
                self._serve(screen, crew)

    def _play(self, screen: Screen, crew: Crew, orders: int) -> None:
        for name in play.WORKERS:
            play.start_worker(crew, name)
        play.wait_for_workers(crew, *play.WORKERS)
        pids = [crew.members[name].pid for name in play.WORKERS]
        screen.event("three workers are up: processes {}, {} and {}".format(*pids))
        performance = play.Play(orders, crew, screen)
        performance.run()
        crew.stop()
        self._tell(screen, report.read(performance.rolled_back, performance.killed))

    def _tell(self, screen: Screen, found: report.Report) -> None:
        screen.say()
        screen.say("What the database says:")
        screen.say()
        for name, text in report.told(found):
            screen.say(f"  {name:<31}  {text}")
        screen.say()
        for name, count in found.zeros.items():
            style = self.style.ERROR if count else self.style.SUCCESS
            screen.say(f"  {name:<31}  {style(str(count))}")
        screen.say()
        if found.wrong():
            raise CommandError(f"not as promised: {found.wrong()}.")
        screen.say(self.style.SUCCESS(f"All as promised, after {screen.seconds:.1f} s."))

    def _serve(self, screen: Screen, crew: Crew) -> None:
        try:
            open_shop.serve(screen, crew)
        except KeyboardInterrupt:
            screen.clear()
            screen.say("The shop closes.")
