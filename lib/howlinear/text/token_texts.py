"""The text of each token of a sequence, such that all of them joined are the whole text."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"  # what decoders write for the bytes of an incomplete character


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Find what each token adds to the decoded text of the tokens before it.

    A token cannot be decoded alone: a byte-level token may hold part of a character, and whether a piece begins with a
    space depends on the tokens before it. A character that is spread over several tokens belongs to the last of them,
    and the others add nothing.

    Returns:
        One text per token; if the decoder changes its earlier output, the token as the vocabulary spells it.
    """
    texts = []
    before = ""
    for count in range(1, len(ids) + 1):
        decoded = tokenizer.decode(ids[:count], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        whole = decoded.rstrip(UNFINISHED)
        if whole.startswith(before):
            texts.append(whole.removeprefix(before).replace(UNFINISHED, ""))
            before = whole
        elif before.startswith(whole):  # the rest of a character is still to come
            texts.append("")
        else:
            texts.append(str(tokenizer.convert_ids_to_tokens(ids[count - 1])))
            before = whole
    return texts
