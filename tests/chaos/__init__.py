"""Chaos: real processes on a server of their own, faults, a history of all that happened, and a checker that reads it.

A run is one profile of faults and load, fixed by a seed as far as it can be:

    python -m tests.chaos --profile A --minutes 2 --seed 7

Where to look:

    profiles.py    which faults with which load           stage.py       one run: load, heal, drain, dump
    enqueuer.py    a process that enqueues                operator.py    a process that cancels and revives
    fleet.py       processes, restarted when they die     app/           functions, and what a worker records
    server.py      the server, its trigger log            pooler.py, standby.py   what may stand beside it
    faults/        what goes wrong, and the proof         nemesis.py     when
    history.py     what each process writes down          monitor.py     samples
    clock.py       the server's times in the history's
    checker/       the history against the promises       report.py      what a run came to
    document.py    what all recorded runs came to         results.jsonl  their figures
"""
