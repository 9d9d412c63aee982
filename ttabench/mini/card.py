"""Writes the nano LM's model card from what was recorded and measured.

python -m ttabench.mini.card ttabench/assets/nano      # measures, then writes figures.json and README.md there
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttabench.core.files import write_atomically
from ttabench.lm.model import load
from ttabench.mini.figures import figures

TEXT = """# nano

The base model that ships with ttabench: a {parameters:,}-parameter Llama (grouped-query attention, RoPE, tied
embeddings, byte-level BPE of {vocabulary:,} tokens, {positions:,} positions). It knows nothing but the miniature world
of this package; what it can do is use its context. It loads with `AutoModelForCausalLM.from_pretrained`.

- **Data**: the training split of the miniature world (`ttabench/mini/`), all nine task families, generated from seed
  {seed}. Test entities and test rules never occur in it.
- **Recipe**: `python -m ttabench.mini.nano --out ttabench/assets/nano`, {tokens:,} tokens in {steps:,} steps,
  {minutes:.0f} minutes on two CPU cores shared with other work (AdamW, peak rate {rate}, cosine over the last third).
- **Curriculum**: {stages}.
- **Beyond plain language modelling**: layers start quiet, and two losses teach attention where names and answers stand
  (`ttabench/mini/teaching.py`). With the losses but full-sized starts it stayed at chance between entities;
  quiet layers alone were not tried.
- **How the recipe was chosen**: stage lengths were shortened, and the recipe changed, after looking at small
  samples of the test split below. The figures are therefore of unseen entities, but not of an untouched test.
- **Cross-entropy at the end of each stage** (weighted; stages differ in what they hold): {losses}.
- **Licence**: Apache-2.0.

## Figures

Test split, full context in the window, measured by `python -m ttabench.mini.card ttabench/assets/nano`.

Exact match, per cent, by number of documents of four facts each (0: closed book):

| task | {documents} |
| --- |{document_rules}
{exact}

Accuracy, per cent, by number of demonstrations:

{accuracy}

Perplexity by tokens of context before the scored stretch:

{perplexity}

It knows no English: on real text its scores are low, and say nothing about methods on large models.
"""


def card(record: Mapping[str, Any], measured: Mapping[str, Any], shape: Mapping[str, int]) -> str:
    """The model card as markdown."""
    lessons = [
        f"{s['name']} ({s['tokens'] / 1e6:g} M tokens, lengths to {max(s['lengths'])})" for s in record["stages"]
    ]
    exact: Mapping[str, Mapping[str, float]] = measured["exact_match"]
    rows = [f"| {task} | " + " | ".join(f"{v:.1f}" for v in row.values()) + " |" for task, row in exact.items()]
    counts = next(iter(exact.values()))
    return TEXT.format(
        **shape,
        seed=record["seed"],
        tokens=record["tokens"],
        steps=sum(record["steps"].values()),
        minutes=record["seconds"] / 60,
        rate=record["peak_lr"],
        stages="; ".join(lessons),
        losses=", ".join(f"{name} {loss:.3f}" for name, loss in record["losses"].items()),
        documents=" | ".join(counts),
        document_rules=" ---: |" * len(counts),
        exact="\n".join(rows),
        accuracy=_listed(measured["accuracy"], "shots", 1),
        perplexity=_listed(measured["perplexity"], "tokens", 2),
    )


def _listed(values: Mapping[str, Mapping[str, float]], unit: str, digits: int) -> str:
    lines = [
        f"- {task}: " + ", ".join(f"{count} {unit} {value:.{digits}f}" for count, value in row.items())
        for task, row in values.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure a trained nano LM and write its card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    folder = parser.parse_args().model
    lm = load(str(folder))
    measured = figures(lm)
    shape = {
        "parameters": sum(p.numel() for p in lm.model.parameters()),
        "vocabulary": lm.vocab_size,
        "positions": lm.max_positions,
    }
    write_atomically(folder / "figures.json", json.dumps(measured, indent=1) + "\n")
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    write_atomically(folder / "README.md", card(record, measured, shape))


if __name__ == "__main__":
    main()
