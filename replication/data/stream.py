"""One stream of RAG requests as a service sees it, with every kind of likeness that a cache may or may not exploit.

Documents are asked about by Zipf's law and come with others in changing order; requests come again byte for byte, as
the same question in the same or other words, as a near question that means something else, and as turns of a chat.
Tenants have documents of their own, and some whose text is the same for all. All is made from the invented
institutions of `synthetic`, so that the right answer is known and in no model's weights.

>>> requests = stream(6, seed=0)
>>> [r.kind for r in requests]
['new', 'new', 'new', 'new', 'chat', 'chat']
>>> requests[-1].questions
('In which year was the Skelurondus Conservatory founded?', 'And on which river does it stand?')
>>> requests[0].answers[0] in "".join(p.text for p in requests[0].passages)
True
"""

import hashlib
import json
import random
from dataclasses import asdict, dataclass, replace

from replication.data.example import Passage
from replication.data.invented import Names
from replication.data.synthetic import ATTRIBUTES, NOUNS, describe
from replication.data.wordings import WORDINGS
from replication.errors import ReplicationError

KINDS = ("new", "again", "paraphrase", "repeat", "trap", "chat")
RECENT = 4  # a chat goes on from one of its tenant's last requests


@dataclass(frozen=True)
class Traffic:
    """tenants, each with `documents` documents of `sentences` sentences, the share `shared` of them the same for all.
    A request comes with `passages` of them, by popularity 1 / rank^`zipf`, the one that it asks about among them.

    repeats, paraphrases, traps, chats: shares of requests that are meant to be such; the rest asks anew. turns: of the
    longest chat. Errors: ReplicationError for sizes below 1 or shares that do not leave a rest.
    """

    tenants: int = 2
    documents: int = 12
    shared: float = 0.5
    passages: int = 4
    sentences: int = 6
    zipf: float = 1.0
    repeats: float = 0.2
    paraphrases: float = 0.15
    traps: float = 0.15
    chats: float = 0.2
    turns: int = 4

    def __post_init__(self):
        if min(self.tenants, self.passages, self.turns) < 1:
            raise ReplicationError("tenants, passages and turns must be at least 1")
        if self.documents < max(2, self.passages):
            raise ReplicationError(f"{self.passages} different passages need as many documents, and traps need 2")
        if self.sentences < len(ATTRIBUTES):
            raise ReplicationError(f"sentences must be at least {len(ATTRIBUTES)}, one for each fact that is asked for")
        if min(self.intents.values()) < 0 or sum(self.intents.values()) >= 1:
            raise ReplicationError("repeats, paraphrases, traps and chats must be shares that leave some for the rest")
        if not 0 <= self.shared <= 1 or self.zipf < 0:
            raise ReplicationError("shared must be a share, and zipf at least 0")

    @property
    def intents(self) -> dict[str, float]:
        return {"repeat": self.repeats, "paraphrase": self.paraphrases, "trap": self.traps, "chat": self.chats}


@dataclass(frozen=True)
class Request:
    """kind: what it is to its tenant's earlier requests. `new`: none has its meaning; `again`: the same question over
    other or reordered passages; `paraphrase`: in words not seen before; `repeat`: byte for byte; `trap`: new, but
    worded like an earlier one, as `near` tells (negation, entity, attribute); `chat`: goes on with request `follows`.

    questions: all of the chat, the last one is asked now; attributes: theirs. meaning: two requests of a tenant have
    one right answer only if it is equal. answers: gold, none for a negation. seen: each passage came in an earlier
    request of the tenant.
    """

    id: str
    tenant: str
    kind: str
    passages: tuple[Passage, ...]
    questions: tuple[str, ...]
    document: str
    attributes: tuple[int, ...]
    negated: bool = False
    answers: tuple[str, ...] = ()
    follows: str | None = None
    near: str | None = None
    seen: bool = False

    @property
    def meaning(self) -> str:
        return f"{self.document}: {'not ' * self.negated}{self.attributes[-1]}"

    @property
    def question(self) -> str:
        return self.questions[-1]


@dataclass(frozen=True)
class _Document:
    """values: of ATTRIBUTES."""

    passage: Passage
    values: tuple[str, ...]


def stream(n: int, seed: int = 0, traffic: Traffic = Traffic()) -> list[Request]:
    """n requests in the order in which they come; a larger n extends them and changes nothing."""
    if n < 1:
        raise ReplicationError(f"n must be at least 1 request, not {n}")
    maker = _Maker(seed, traffic)
    return [maker.next(f"stream-{seed}-{number}") for number in range(n)]


def stream_sha256(requests: list[Request]) -> str:
    """SHA-256 (hex) of the requests' canonical JSON, as `examples_sha256` makes it."""
    text = json.dumps([asdict(r) for r in requests], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class _Maker:
    """libraries: tenant -> title -> document, the most popular first. past: tenant -> its requests."""

    def __init__(self, seed: int, traffic: Traffic):
        self.traffic = traffic
        self.rng = random.Random(f"stream-{seed}")
        names, tenants = Names(self.rng), [f"tenant-{t}" for t in range(traffic.tenants)]
        common = [self._document(names) for _ in range(round(traffic.shared * traffic.documents))]
        self.libraries: dict[str, dict[str, _Document]] = {}
        for tenant in tenants:
            own = common + [self._document(names) for _ in range(traffic.documents - len(common))]
            self.rng.shuffle(own)
            self.libraries[tenant] = {document.passage.title: document for document in own}
        self.past: dict[str, list[Request]] = {tenant: [] for tenant in tenants}

    def next(self, id: str) -> Request:
        tenant = self.rng.choice(list(self.libraries))
        makers = {"repeat": self._repeat, "paraphrase": self._paraphrase, "trap": self._trap, "chat": self._chat}
        shares = self.traffic.intents
        (intent,) = self.rng.choices(["ask", *shares], [1 - sum(shares.values()), *shares.values()])
        # what was meant may not be possible yet
        made = (makers[intent](tenant) if intent != "ask" else None) or self._ask(tenant)
        request = self._labelled(replace(made, id=id))
        self.past[tenant].append(request)
        return request

    def _document(self, names: Names) -> _Document:
        title = f"{names.word('institution')} {self.rng.choice(NOUNS)}"
        values = tuple(kind.draw(names) for kind in ATTRIBUTES)
        facts = [(self.rng.choice(kind.wordings), value) for kind, value in zip(ATTRIBUTES, values, strict=True)]
        return _Document(Passage(title, describe(title, facts, self.traffic.sentences, self.rng, names)), values)

    def _ask(self, tenant: str) -> Request:
        return self._single(tenant, self._popular(tenant)[0], self.rng.randrange(len(ATTRIBUTES)))

    def _repeat(self, tenant: str) -> Request | None:
        singles = self._singles(tenant)
        return replace(self.rng.choice(singles), near=None) if singles else None

    def _paraphrase(self, tenant: str) -> Request | None:
        plain = [r for r in self._singles(tenant) if not r.negated]
        if not plain:
            return None
        base = self.rng.choice(plain)
        wordings = (ATTRIBUTES[base.attributes[0]].question, *WORDINGS[base.attributes[0]].same)
        others = [w for w in wordings if _filled(w, base.document) != base.question]
        return self._single(tenant, base.document, base.attributes[0], self.rng.choice(others))

    def _trap(self, tenant: str) -> Request | None:
        """Worded like an earlier question, and meaning what none of the earlier ones means."""
        plain = [r for r in self._singles(tenant) if not r.negated]
        if not plain:
            return None
        base = self.rng.choice(plain)
        (attribute,) = base.attributes
        other = next(title for title in self._popular(tenant) if title != base.document)
        near = {
            "negation": self._single(tenant, base.document, attribute, WORDINGS[attribute].negated, negated=True),
            "attribute": self._single(tenant, base.document, WORDINGS[attribute].near),
            "entity": self._single(tenant, other, attribute),
        }
        asked = {r.meaning for r in self.past[tenant]}
        names = self.rng.sample(list(near), len(near))
        return next((replace(near[name], near=name) for name in names if near[name].meaning not in asked), None)

    def _chat(self, tenant: str) -> Request | None:
        """A further question about the same document, over the passages that the chat began with."""
        followed = {r.follows for r in self.past[tenant]}
        turns = min(self.traffic.turns, len(ATTRIBUTES))
        recent = self.past[tenant][-RECENT:]
        open_ones = [r for r in recent if r.id not in followed and not r.negated and len(r.questions) < turns]
        if not open_ones:
            return None
        base = self.rng.choice(open_ones)
        attribute = self.rng.choice([a for a in range(len(ATTRIBUTES)) if a not in base.attributes])
        return replace(
            base,
            questions=(*base.questions, WORDINGS[attribute].further),
            attributes=(*base.attributes, attribute),
            answers=(self.libraries[tenant][base.document].values[attribute],),
            follows=base.id,
            near=None,
        )

    def _single(
        self, tenant: str, title: str, attribute: int, wording: str | None = None, negated: bool = False
    ) -> Request:
        """A request of its own, its passages newly retrieved."""
        library = self.libraries[tenant]
        others = [other for other in self._popular(tenant) if other != title][: self.traffic.passages - 1]
        titles = self.rng.sample([title, *others], 1 + len(others))
        return Request(
            id="",
            tenant=tenant,
            kind="",
            passages=tuple(library[t].passage for t in titles),
            questions=(_filled(wording or ATTRIBUTES[attribute].question, title),),
            document=title,
            attributes=(attribute,),
            negated=negated,
            answers=() if negated else (library[title].values[attribute],),
        )

    def _popular(self, tenant: str) -> list[str]:
        """The tenant's titles in the order of a draw without replacement, weights 1 / rank^zipf (Efraimidis and
        Spirakis 2006)."""
        keys = {
            title: self.rng.random() ** (rank**self.traffic.zipf)
            for rank, title in enumerate(self.libraries[tenant], 1)
        }
        return sorted(keys, key=keys.__getitem__, reverse=True)

    def _singles(self, tenant: str) -> list[Request]:
        return [r for r in self.past[tenant] if r.follows is None]

    def _labelled(self, request: Request) -> Request:
        """What it is, whatever was meant: chance alone makes repeats and questions asked again too."""
        past = self.past[request.tenant]
        known = {p for r in past for p in r.passages}
        return replace(request, kind=_kind(request, past), seen=set(request.passages) <= known)


def _kind(request: Request, past: list[Request]) -> str:
    if request.follows is not None:
        return "chat"
    singles = [r for r in past if r.follows is None]
    if any((r.passages, r.question) == (request.passages, request.question) for r in singles):
        return "repeat"
    if any(r.question == request.question for r in singles):
        return "again"
    if any(r.meaning == request.meaning for r in past):
        return "paraphrase"
    return "trap" if request.near else "new"


def _filled(wording: str, title: str) -> str:
    text = wording.format(e=f"the {title}")
    return text[0].upper() + text[1:]
