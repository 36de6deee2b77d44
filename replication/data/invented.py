"""Names that exist nowhere, so that no answer can be in a model's weights.

A name is start + middle + an ending for its kind, 15,000 or more of each kind. None of them is among the words that
wordfreq 3.1 lists for any of its languages (its large lists, which hold personal and place names too).
"""

import random
from collections.abc import Callable

from replication.errors import ReplicationError

# fmt: off
STARTS = (
    "Brel", "Dask", "Drev", "Fenk", "Glov", "Hesk", "Jorv", "Keld", "Krun", "Lumv", "Mirk", "Nolk", "Oskr", "Plim",
    "Prax", "Quev", "Rusk", "Skel", "Snor", "Tolv", "Trum", "Ulb", "Vask", "Vrin", "Wexl", "Yast", "Zeld", "Zor",
)
# fmt: on
MIDDLES = [vowel + consonant + second for vowel in "aeiou" for consonant in "dlmnrv" for second in "aeo"]
ENDINGS = {
    "place": ("holm", "wick", "ford", "mouth", "gate", "haven"),
    "first": ("bek", "dric", "len", "mir", "nor", "thas"),
    "last": ("ssen", "qvist", "dahl", "kov", "nitz", "bry"),
    "substance": ("lite", "zine", "rium", "sol", "xane", "phen"),
    "institution": ("quor", "ndus", "vex", "stral", "thun", "mbar"),
}
TRIES = 1000


class Names:
    """Draws invented values for one example; no value is equal to, or part of, another that it has drawn."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.used: set[str] = set()

    def word(self, kind: str) -> str:
        """One capitalised name with an ending of that kind (a key of ENDINGS)."""
        return self._new(lambda: "".join(self.rng.choice(part) for part in (STARTS, MIDDLES, ENDINGS[kind])))

    def place(self) -> str:
        return self.word("place")

    def person(self) -> str:
        return f"{self.word('first')} {self.word('last')}"

    def substance(self) -> str:
        return self.word("substance").lower()

    def year(self) -> str:
        return self._new(lambda: str(self.rng.randrange(1400, 2000)))

    def _new(self, draw: Callable[[], str]) -> str:
        for _ in range(TRIES):
            value = draw()
            folded = value.lower()
            if not any(folded in other or other in folded for other in self.used):
                self.used.add(folded)
                return value
        raise ReplicationError("no unused invented value is left for this example; ask for fewer passages or sentences")
