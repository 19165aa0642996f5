"""Chat in the terminal with a real language model: SmolLM2-135M-Instruct in NumPy.

    python examples/chat.py                                    # a conversation; an empty line ends it
    python examples/chat.py "Why is the sky blue?"             # one answer
    python examples/chat.py --top 3 "Hello!"                   # the three likeliest tokens of each step

The model is small. It writes fluently, but of 20 capitals it knew only 14 when it was asked, and it
solves hardly any sum of two numbers. V is the size of the vocabulary.
"""

import argparse
import sys
import time

import numpy as np
from _smollm import Decoder, load, missing

import tinygrad_attn as ta
import tinygrad_attn.functional as F
from tinygrad_attn import nn

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
START, END = "<|im_start|>", "<|im_end|>"


def message(role, text):
    """Return one message in ChatML, the format of the training data."""
    return f"{START}{role}\n{text}{END}\n"


def chooser(temperature, top_p, seed):
    """Return a function that draws a token from its scores (V,).

    It draws from the likeliest tokens that together have the probability `top_p` (Holtzman et al.,
    2020). With the temperature 0, it always returns the likeliest.
    """
    rng = np.random.default_rng(seed)

    def choose(scores):
        if temperature == 0:
            return int(scores.argmax())
        order = np.argsort(-scores)
        p = F.softmax(scores[order].astype(np.float64) / temperature)
        p = np.where(np.cumsum(p) - p < top_p, p, 0)
        return int(rng.choice(order, p=p / p.sum()))

    return choose


class Full(Exception):
    """The conversation is as long as the model can read."""


class Conversation:
    """A model, a tokeniser and the cache of all tokens so far."""

    def __init__(self, model, tokenizer, choose):
        self.model, self.tokenizer, self.choose = model, tokenizer, choose
        self.decoder, self.cache = Decoder(model), nn.KeyValueCache()
        self.end = tokenizer.token_to_id(END)
        self.left = tokenizer.encode(message("system", SYSTEM)).ids  # tokens not yet in the cache

    def answer(self, question, longest=400):
        """Yield the tokens of the answer, and the scores (V,) from which each was drawn.

        Raises Full if the model's context has no room for the question.
        """
        asked = self.tokenizer.encode(message("user", question) + f"{START}assistant\n").ids
        tokens = self.left + asked
        room = self.model.longest - self.cache.length - len(tokens)
        if room < 1:
            raise Full(f"The model reads at most {self.model.longest:,} tokens. Begin again.")
        with ta.no_grad():
            scores = self.model([tokens], self.cache, last=1)[0, -1].numpy()  # (V,)
        for step in range(min(longest, room)):
            if step:
                scores = self.decoder(tokens[0], self.cache)
            tokens = [self.choose(scores)]
            rest = "\n" if tokens[0] == self.end else f"{END}\n"
            self.left = tokens + self.tokenizer.encode(rest).ids
            yield tokens[0], scores
            if tokens[0] == self.end:
                break


def shown(tokenizer, answer):
    """Yield the text of an answer piece by piece. A letter may take several tokens."""
    written, text = [], ""
    for token, _ in answer:
        written.append(token)
        longer = tokenizer.decode(written).rstrip("\ufffd")
        yield longer.removeprefix(text)
        text = longer


def likeliest(tokenizer, answer, count):
    """Yield a line for each step: the token that was drawn, and the likeliest ones."""
    word = lambda token: repr(tokenizer.decode([int(token)], skip_special_tokens=False))
    for token, scores in answer:
        p, best = F.softmax(scores), np.argsort(-scores)[:count]
        yield f"{word(token):16} from  " + "  ".join(f"{p[i]:4.0%} {word(i)}" for i in best) + "\n"


def timed(pieces):
    """Print the pieces of an answer as they come. Return the seconds to the first, and the rate."""
    times = [time.perf_counter()]
    for piece in pieces:
        print(piece, end="", flush=True)
        times.append(time.perf_counter())
    return times[1] - times[0], (len(times) - 2) / max(times[-1] - times[1], 1e-9)


def options():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Chat with SmolLM2-135M-Instruct in NumPy.")
    parser.add_argument("question", nargs="*", help="what to ask; nothing: a conversation")
    add = parser.add_argument
    add("--temperature", type=float, default=0.0, help="0 always chooses the likeliest token (0)")
    add("--top-p", type=float, default=0.9, help="draw from tokens with this probability (0.9)")
    add("--top", type=int, default=0, metavar="N", help="show the N likeliest tokens of each step")
    add("--longest", type=int, default=400, help="the most tokens of an answer (400)")
    add("--model", metavar="FILE", help="another Llama in a GGUF file, with SmolLM2's tokeniser")
    add("--seed", type=int, default=0, help="of the generator that draws (0)")
    chosen = parser.parse_args()
    if chosen.temperature < 0 or not 0 < chosen.top_p <= 1 or chosen.longest < 1:
        parser.error("--temperature is at least 0, --top-p is in (0, 1], --longest is at least 1.")
    return chosen


def main():
    chosen = options()
    if sentence := missing(chosen.model):
        print(sentence)
        return
    sys.stdout.reconfigure(errors="replace")  # a pipe on Windows cannot encode every letter
    begun = time.perf_counter()
    model, tokenizer = load(chosen.model)
    count = sum(p.size for p in model.parameters())
    seconds = time.perf_counter() - begun
    print(f"SmolLM2-135M-Instruct: {count:,} parameters, read in {seconds:.1f} s.")
    talk = Conversation(model, tokenizer, chooser(chosen.temperature, chosen.top_p, chosen.seed))
    question = " ".join(chosen.question)
    while question := question or input("\n> "):
        answer = talk.answer(question, chosen.longest)
        texts = likeliest(tokenizer, answer, chosen.top) if chosen.top else shown(tokenizer, answer)
        first, rate = timed(texts)
        print(f"\n[the first token after {first:.2f} s, then {rate:.1f} tokens per second]")
        if chosen.question:
            break
        question = ""


if __name__ == "__main__":
    try:
        main()
    except EOFError:
        print()
    except Full as full:
        sys.exit(f"\n{full}")
    except KeyboardInterrupt:
        print("\nStopped.")
        sys.exit(130)
