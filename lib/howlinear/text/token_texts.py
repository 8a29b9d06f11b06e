"""What each token of a sequence reads, so that all of them in a row are the text."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"  # what decoders write for the bytes of a character that is not whole yet


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text when all before it are decoded.

    A token alone cannot be decoded: byte-level ones may hold a part of a character, and whether a piece begins with a
    space depends on what stands before it. A character that is spread over several tokens is the last one's, and those
    before it add nothing.

    Returns:
        A text a token; where a decoder takes back what it wrote, the vocabulary's own spelling of the token.
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
