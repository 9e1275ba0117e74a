"""Chaos: real processes on a server of their own, faults, a history of all that happened, and a checker that reads it.

python -m tests.chaos --profile A --minutes 2 --seed 7

history.py     what each process writes down          app/           the functions, and what a worker records
enqueuer.py    a process that enqueues                operator.py    a process that cancels and revives
server.py      the server, its trigger log            fleet.py       processes that are restarted when they die
faults.py      what goes wrong, and the proof         nemesis.py     when
profiles.py    which faults with which load           stage.py       one run: load, heal, drain, dump
checker/       the history against the promises       report.py      the figures
"""
