"""The command line of the trainer."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from tools.train_tiny_dsa.architecture import build_model
from tools.train_tiny_dsa.corpus import read_corpus
from tools.train_tiny_dsa.settings import Geometry, Settings
from tools.train_tiny_dsa.training import Step, train
from tools.train_tiny_dsa.vocabulary import token_stream, train_tokenizer

LOG_FILE = "training.jsonl"
REPORT_EVERY_STEPS = 20


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments, train, and leave a folder that ``from_pretrained`` loads."""
    parser = _parser()
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    settings = Settings(budget_tokens=options.tokens, seed=options.seed)
    try:
        loss = train_folder(
            options.corpus, options.out, geometry=Geometry(), settings=settings, vocabulary=options.vocabulary
        )
    except ValueError as error:
        parser.error(str(error))
    print(f"held-out loss {loss:.3f} nats a token; model in {options.out}")


def train_folder(
    corpus_folders: list[Path], out: Path, *, geometry: Geometry, settings: Settings, vocabulary: int
) -> float:
    """Train on the folders' texts and save tokenizer, bfloat16 weights and `LOG_FILE` into `out`.

    Returns:
        Held-out loss at the end, in nats a token.

    Raises:
        ValueError: the corpus is missing or too small for the settings.
    """
    corpus = read_corpus(corpus_folders)
    tokenizer = train_tokenizer(corpus.training, vocabulary)
    training = token_stream(tokenizer, corpus.training, settings.seed)
    held_out = token_stream(tokenizer, corpus.held_out, settings.seed)
    torch.manual_seed(settings.seed)
    model = build_model(geometry, vocabulary)
    weights = sum(weight.numel() for weight in model.parameters())
    print(
        f"{weights / 1e6:.1f} M parameters, {len(training):,} tokens to learn, {len(held_out):,} held out",
        flush=True,
    )
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    started = time.monotonic()
    with (out / LOG_FILE).open("w", encoding="utf-8") as log:

        def report(step: Step) -> None:
            log.write(json.dumps(asdict(step)) + "\n")
            if step.step % REPORT_EVERY_STEPS == 0:
                rate = step.tokens / (time.monotonic() - started)
                print(
                    f"step {step.step}: {step.tokens:,} tokens, {rate:.0f} a second, loss {step.loss:.3f}",
                    flush=True,
                )

        loss = train(model, training, held_out, settings=settings, report=report)
    model.eval().to(torch.bfloat16).save_pretrained(out)
    return loss


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.train_tiny_dsa",
        description="Train a small DeepSeek-V3.2-architecture language model with its lightning indexers.",
        epilog="example: python -m tools.train_tiny_dsa --out tiny --corpus Lib --corpus Doc",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, created where missing")
    parser.add_argument(
        "--corpus",
        type=Path,
        action="append",
        required=True,
        help="folder of .py, .rst and .txt files; repeatable",
    )
    parser.add_argument("--tokens", type=int, default=Settings.budget_tokens, help="token budget (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokenizer entries (%(default)s)")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of weights, order and windows (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (%(default)s)")
    return parser
