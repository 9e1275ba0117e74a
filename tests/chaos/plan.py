"""What one run is: read by all of its processes from the environment variable CHAOS."""

import json
import os
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Plan:
    """One run of one profile.

    Args:
        seed: fixes what the enqueuers, the operator and the nemesis draw, not when the machine gets to it.
        folder: of the history and the logs.
        plant: name of a bug of `app/plants.py`; empty: none.
        lease: in seconds.
        calm: for so many seconds there is no poison.
    """

    profile: str
    seed: int
    folder: str
    plant: str = ""
    lease: float = 2.0
    calm: float = 0.0

    @classmethod
    def here(cls):
        return cls(**json.loads(os.environ["CHAOS"]))

    @property
    def env(self):
        """For the processes of the run."""
        return {
            "CHAOS": json.dumps(asdict(self)),
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "DHARA_LEASE_SECONDS": self.lease,
        }
