"""A given beginning of a translation, as the symbols that the search may take."""

from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.hypothesis import Prefix


def prefix_symbols(tokenizer: Tokenizer, source: str, beginning: str) -> Prefix:
    """The symbols allowed at each place, so that the translation begins with exactly that text.

    Its last subword may be replaced by a longer one that begins with it: after "Gut" the model may
    go on with the subword for "Guten", and after a space with a word. Placeholders that the source
    holds too are the same symbols as there.
    """
    if not beginning:
        return ()
    _, ids = tokenizer.encode_pair(source, beginning)
    return (*((number,) for number in ids[:-1]), tuple(tokenizer.completions(ids[-1])))


def begins_with(text: str, beginning: str) -> str:
    """A decoded translation without white space at its ends, but for that of its beginning."""
    if not beginning:
        return text.strip()
    return beginning + text[len(beginning) :].rstrip()
