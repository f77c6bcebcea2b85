"""The trainer of the shipped model, on a corpus that fits a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tools.train_tiny_dsa.architecture import build_model
from tools.train_tiny_dsa.attention import forward
from tools.train_tiny_dsa.command import LOG_FILE, main, train_folder
from tools.train_tiny_dsa.corpus import read_corpus
from tools.train_tiny_dsa.schedule import rate_ratio, sequence_tokens
from tools.train_tiny_dsa.settings import Geometry, Phase, Settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from hisparse.data import tiny_dsa_path

ROOT = Path(__file__).parents[2]
SMALL = Geometry(
    hidden=32, mlp=48, layers=2, heads=2, head_width=8, rope_width=8, latent=16, query_latent=16,
    index_heads=2, index_width=16, index_topk=16, max_positions=512,
)  # fmt: skip
QUICK = Settings(
    budget_tokens=24 * 256, batch_tokens=256, phases=(Phase(0.5, 32), Phase(1.0, 64)), warmup_steps=4,
    sampled_queries=8, validate_every_steps=10, validation_tokens=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty small files of code-like text, one of them not text at all, one in a folder that is skipped."""
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(30):
        body = "".join(f"def add_{i}_{j}(left, right):\n    return left + right + {j}\n\n" for j in range(12))
        (folder / f"module_{i:02}.py").write_text(body)
    (folder / "module_99.py").write_bytes(b"\xff\xfe\xff")
    (folder / "tests").mkdir()
    (folder / "tests" / "skipped.py").write_text("never read")
    return folder


@pytest.fixture(scope="module")
def trained(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder after 24 real training steps."""
    out = tmp_path_factory.mktemp("trained") / "model"
    train_folder([corpus_folder], out, geometry=SMALL, settings=QUICK, vocabulary=300)
    return out


def test_losses_go_down(trained: Path) -> None:
    """Twenty-four steps lower the loss on learned and on held-out text, and the log has every step."""
    steps = [json.loads(line) for line in (trained / LOG_FILE).read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 25))
    assert steps[-1]["tokens"] == QUICK.budget_tokens
    assert steps[-1]["loss"] < 0.7 * steps[0]["loss"]
    assert [step["step"] for step in steps if step["validation_loss"] is not None] == [10, 20]
    assert steps[19]["validation_loss"] < steps[9]["validation_loss"]


def test_saved_folder_generates(trained: Path) -> None:
    """The saved folder loads by the usual names and continues a text with its own sparse attention."""
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    assert model.config.model_type == "deepseek_v32"
    prompt = tokenizer("def add_1_2(left, right):\n" * 3 + "    return", return_tensors="pt").input_ids
    assert prompt.shape[1] > SMALL.index_topk
    output = model.generate(prompt, do_sample=False, max_new_tokens=8, min_new_tokens=8)
    assert output.shape[1] == prompt.shape[1] + 8
    assert "left" in tokenizer.decode(prompt[0])


def test_forward_equals_the_stock_model() -> None:
    """With a selection as wide as the text, the training forward gives the stock model's logits."""
    torch.manual_seed(3)
    model = build_model(SMALL, 300).eval()
    tokens = torch.randint(0, 300, (2, SMALL.index_topk))
    with torch.no_grad():
        logits, loss = forward(model, tokens)
        stock = model(tokens).logits
    assert torch.allclose(logits, stock, atol=1e-5)
    assert loss == 0.0


def test_indexer_learns_apart_from_the_model() -> None:
    """The indexers' loss moves indexer weights only."""
    torch.manual_seed(4)
    model = build_model(SMALL, 300)
    _, loss = forward(model, torch.randint(0, 300, (1, 48)), sampled_queries=8)
    loss.backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert loss > 0.0
    assert moved
    assert all(".indexer." in name for name in moved)


def test_default_geometry_is_the_shipped_model() -> None:
    """The default settings describe the shipped model's architecture, field by field."""
    with torch.device("meta"):
        config = build_model(Geometry(), 4096).config.to_dict()
    shipped = json.loads((tiny_dsa_path() / "config.json").read_text())
    own = {"transformers_version", "dtype", "architectures"}
    assert {key: config[key] for key in shipped if key not in own} == {
        key: value for key, value in shipped.items() if key not in own
    }


def test_every_twenty_fifth_text_is_held_out(corpus_folder: Path) -> None:
    """Thirty readable texts give two held-out ones; unreadable files and test folders are left out."""
    corpus = read_corpus([corpus_folder])
    assert len(corpus.training) == 29
    assert len(corpus.held_out) == 1
    assert "add_7_0" in corpus.held_out[0]
    assert not any("never read" in text for text in corpus.training)


def test_schedule_follows_the_budget() -> None:
    """Sequences grow by phase, the rate warms up, stays and falls to its floor."""
    settings = Settings()
    assert [sequence_tokens(settings, ratio) for ratio in (0.0, 0.44, 0.45, 0.7, 0.9, 1.0)] == [
        512, 512, 1024, 2048, 4096, 4096,
    ]  # fmt: skip
    assert rate_ratio(settings, 0, 0.0) == pytest.approx(1 / 30)
    assert rate_ratio(settings, 400, 0.39) == 1.0
    assert rate_ratio(settings, 400, 0.7) == pytest.approx(0.5)
    assert rate_ratio(settings, 400, 1.0) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"phases": ()}, "phases must end at until_ratio 1.0"),
        ({"phases": (Phase(0.5, 64),)}, "phases must end at until_ratio 1.0"),
        ({"batch_tokens": 1024}, "longest sequence, 4096 tokens, got 1024"),
    ],
)
def test_settings_that_cannot_run_are_refused(fields: dict[str, object], sentence: str) -> None:
    """Phases that leave the budget uncovered, or overflow a batch, are refused by name."""
    with pytest.raises(ValueError, match=sentence):
        Settings(**fields)


def test_missing_corpus_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that does not exist ends the command with status 2 and its name."""
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path / "out"), "--corpus", str(tmp_path / "absent")])
    assert f"corpus folder {tmp_path / 'absent'} does not exist" in capsys.readouterr().err


def test_help_shows_an_example() -> None:
    """The module runs as a command, and its help has an example."""
    result = subprocess.run(
        [sys.executable, "-m", "tools.train_tiny_dsa", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "example: python -m tools.train_tiny_dsa --out" in result.stdout
