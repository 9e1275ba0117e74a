"""What goes wrong, how it is put right again, and what proves that it happened.

A fault is called by its name in `FAULTS`: it writes `fault`, does its harm, and writes `heal`. Where the proof is to be
had at once it writes `witness` with the code of the fault; of others the history itself is the proof (F1: a run that
never ended; F2: a write that was refused).
"""

from tests.chaos.faults import network, pressure, processes, server
from tests.chaos.faults.arena import FAULTS, Arena

__all__ = ["FAULTS", "Arena", "network", "pressure", "processes", "server"]
