"""Writer of the nano LM's model card, from its training record and its measured scores.

    python -m results.nano_recipe.card ttabench/assets/nano --first 9000

measures on test worlds of seeds from 9000 on, then writes figures.json and README.md to the folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results.nano_recipe.figures import Worlds, figures
from ttabench.core.files import write_atomically
from ttabench.lm.model import load

TEXT = """# nano

The bundled base model of ttabench: a {parameters:,}-parameter Llama (grouped-query attention, RoPE, tied
embeddings, byte-level BPE of {vocabulary:,} tokens, {positions:,} positions). It knows only the synthetic world of
this package, and it can use its context. It loads with `AutoModelForCausalLM.from_pretrained`.

- **Data**: the training split of the synthetic world (`ttabench/mini/`), all nine task families, generated from seed
  {seed}. Test entities and test rules never occur in it.
- **Recipe**: `python -m results.nano_recipe.nano --out ttabench/assets/nano`, {tokens:,} tokens in {steps:,} steps,
  {minutes:.0f} minutes of one or two CPU cores shared with other work (AdamW, peak rate {rate}; a cosine over the last
  third of the stages before the last, and one over three quarters of the last). `training.json` holds its curve.
- **Curriculum**: {stages}.
- **Beyond plain language modelling**: layers have small initial outputs, and two losses teach attention to names and
  answers (`results/nano_recipe/teaching.py`). With the losses and full-sized initial outputs, it stayed at chance
  between entities. Small outputs without the losses were not tried.
- **Choice of the recipe**: small samples of the test split for the stages before the last, the validation split for the
  last one. The scores below are of test worlds drawn from unused seeds.
- **Cross-entropy at the end of each stage** (weighted; stages differ in their text): {losses}.
- **Licence**: Apache-2.0.

## Scores

Test worlds of seeds from {first} on, full context in the window, measured by
`python -m results.nano_recipe.card ttabench/assets/nano --first {first}`.

Exact match (%) by number of documents of four facts each (0: no context):

| task | {documents} |
| --- |{document_rules}
{exact}

Accuracy (%) by number of demonstrations:

{accuracy}

Perplexity by tokens of context before the scored text:

{perplexity}

It knows no English. On real text its scores are low and not representative of large models.
"""


def card(record: Mapping[str, Any], measured: Mapping[str, Any], shape: Mapping[str, int]) -> str:
    """Return the model card as Markdown."""
    lessons = [_stage(stage) for stage in record["stages"]]
    exact: Mapping[str, Mapping[str, float]] = measured["exact_match"]
    rows = [
        f"| {task} | " + " | ".join(f"{v:.1f}" for v in row.values()) + " |"
        for task, row in exact.items()
    ]
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


def _stage(training: Mapping[str, Any]) -> str:
    if "span" not in training:
        return f"{training['name']} ({training['tokens'] / 1e6:g} M tokens, lengths to {max(training['lengths'])})"
    longest = max(map(int, (*training["late"], *training["rehearsed_lengths"])))
    return f"{training['name']} ({training['steps']:,} steps, lengths to {longest}, positions to {training['span']})"


def _listed(values: Mapping[str, Mapping[str, float]], unit: str, digits: int) -> str:
    lines = [
        f"- {task}: "
        + ", ".join(f"{count} {unit} {value:.{digits}f}" for count, value in row.items())
        for task, row in values.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure a trained nano LM and write its card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--first", type=int, default=0, help="seed of the first test world")
    options = parser.parse_args()
    folder = options.model
    lm = load(str(folder))
    measured = figures(lm, worlds=Worlds("test", options.first))
    shape = {
        "first": options.first,
        "parameters": sum(p.numel() for p in lm.model.parameters()),
        "vocabulary": lm.vocab_size,
        "positions": lm.max_positions,
    }
    write_atomically(folder / "figures.json", json.dumps(measured, indent=1) + "\n")
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    write_atomically(folder / "README.md", card(record, measured, shape))


if __name__ == "__main__":
    main()
