"""BERT's tokeniser turns a sentence into numbers of word pieces, in two steps.

1. Normalise the text: convert it to lower case, and remove accents and control characters. Spaces
separate words, and every punctuation mark and every Chinese character is its own word. 2. Cut each
word, from left to right, into the longest pieces in the vocabulary. A piece that continues a word
begins with ##: "unaffable" becomes una ##ffa ##ble. A word that cannot be cut becomes [UNK].

The tokeniser is described by Devlin et al., 2019, and word pieces by Wu et al., 2016. The numbers
are the same as in the `tokenizers` library.
"""

import re
import unicodedata

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100

CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def is_chinese(c):
    return any(first <= ord(c) <= last for first, last in CHINESE)


def is_punctuation(c):
    """Whether c is punctuation in Unicode or a keyboard symbol such as $ or +, which Unicode does not
    classify as punctuation.
    """
    return (
        "!" <= c <= "/"
        or ":" <= c <= "@"
        or "[" <= c <= "`"
        or "{" <= c <= "~"
        or unicodedata.category(c)[0] == "P"
    )


def is_control(c):
    return c == "\ufffd" or c not in "\t\n\r" and unicodedata.category(c) in ("Cc", "Cf", "Co")


def words(text):
    """Step 1: "Où est-il?" -> ["ou", "est", "-", "il", "?"]"""
    text = "".join(f" {c} " if is_chinese(c) else c for c in text if not is_control(c))
    letters_and_accents = unicodedata.normalize("NFD", text)
    text = "".join(c.lower() for c in letters_and_accents if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if is_punctuation(c) else c for c in text).split()


class WordPiece:
    """A callable that turns a sentence into the numbers of its pieces, between [CLS] and [SEP]."""

    def __init__(self, vocabulary, max_length=256):
        """`vocabulary` lists the pieces in the order of their numbers. Sentences are cut off after
        `max_length` numbers.
        """
        self.number = {piece: i for i, piece in enumerate(vocabulary)}
        self.max_length = max_length

    def __call__(self, sentence):
        pieces = self.pieces(sentence)[: self.max_length - 2]
        return [self.number[piece] for piece in ("[CLS]", *pieces, "[SEP]")]

    def pieces(self, sentence):
        """Both steps: "Unaffable!" -> ["una", "##ffa", "##ble", "!"]"""
        found = []
        for part in re.split(
            "(" + "|".join(map(re.escape, SPECIAL)) + ")", sentence
        ):  # special pieces stay unchanged
            found += (
                [part]
                if part in SPECIAL
                else [piece for word in words(part) for piece in self.cut(word)]
            )
        return found

    def cut(self, word):
        """Step 2: "unaffable" -> ["una", "##ffa", "##ble"]"""
        if len(word) > LONGEST_WORD:
            return ["[UNK]"]
        found, start = [], 0
        while start < len(word):
            before = "##" if start else ""
            ends = (
                end
                for end in range(len(word), start, -1)
                if before + word[start:end] in self.number
            )
            end = next(ends, None)
            if end is None:
                return ["[UNK]"]
            found.append(before + word[start:end])
            start = end
        return found
