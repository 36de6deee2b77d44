"""Controls: CacheBlend's executor, check layer and budget, with another choice of tokens.

oracle-attention chooses before the first layer, as the methods do that look at the question's attention.
"""

from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.selectors import SELECTORS

_ABOUT = {
    "first-k": "the first tokens of every chunk, at equal budget",
    "random": "tokens drawn at random, at equal budget",
    "uniform": "every s-th token, at equal budget",
    "lowest": "the tokens of lowest KV deviation, at equal budget",
    "oracle": "the tokens of highest true KV deviation over all layers, which needs a full prefill",
    "oracle-attention": "the tokens to which the question's attention truly deviates most, which needs a full prefill",
}
for _name, _about in _ABOUT.items():
    METHODS[_name] = Entry(lambda ratio, name=_name: Method(name, Chunks(), SELECTORS[name](ratio)), _about)
