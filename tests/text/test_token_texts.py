"""What each token reads: all together are the text, whatever the tokenizer, and no character is shown in parts."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from howlinear.text.token_texts import token_texts


def wordpiece():
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[SEP]", "un", "##like", "##ly", "it", "."])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", sep_token="[SEP]")


def pieces():
    """As sentencepiece has them: a space belongs to the word behind it, and unknown characters are bytes."""
    words = ["<unk>", "<s>", "▁", "▁the", "re", "▁sea", *(f"<0x{byte:02X}>" for byte in "é日".encode())]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>")


@pytest.mark.parametrize("text", ["plain", "déjà vu", "日本\n\n  語", "a 🙂 b", "\ttabs \r\n"])
def test_bytes_of_one_character_are_shown_once_it_is_whole(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text
    for character in text:
        assert texts.count(character) >= 1


def test_a_character_that_is_cut_off_is_not_shown(tokenizer):
    ids = tokenizer("é日x")["input_ids"]
    assert token_texts(tokenizer, ids[:-2]) == ["", "é", "", ""]
    assert token_texts(tokenizer, ids[1:]) == ["", "", "", "日", "x"]


def test_parts_of_words_and_special_tokens():
    made = wordpiece()
    ids = made.convert_tokens_to_ids(["it", "un", "##like", "##ly", ".", "[SEP]", "it"])
    assert token_texts(made, ids) == ["it", " un", "like", "ly", " .", " [SEP]", " it"]


def test_pieces_with_spaces_before_them_and_bytes():
    made = pieces()
    ids = made.convert_tokens_to_ids(["▁the", "re", "▁sea", "<0xC3>", "<0xA9>", "▁", "<0xE6>", "<0x97>", "<0xA5>"])
    assert token_texts(made, ids) == ["the", "re", " sea", "", "é", " ", "", "", "日"]
