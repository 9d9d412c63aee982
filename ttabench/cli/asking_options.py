"""Options of `adapt` and `ask` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttabench.core.declared import HOW, RUN, WHAT

ReadState = Annotated[
    Path | None, typer.Option("--state", help="Continue from a state that `adapt` wrote.", rich_help_panel=RUN)
]
Added = Annotated[
    list[Path] | None,
    typer.Option("--add", help="Put another state of the same method to it; repeat for more.", rich_help_panel=RUN),
]
Context = Annotated[list[Path] | None, typer.Option("--context", "-c", help="Text file to read; more may follow.")]
Asked = Annotated[
    list[str] | None,
    typer.Argument(help="Questions. With --context, words that name a file are more files to read.",
                   metavar="QUESTION...", show_default=False),
]  # fmt: skip
QuestionFile = Annotated[
    Path | None,
    typer.Option("--questions", show_default=False, rich_help_panel=WHAT,
                 help="File of questions: .txt, one a line; or .jsonl, .json, .csv with a column question, and answers"
                 " where the right ones are known."),
]  # fmt: skip
AskedState = Annotated[
    Path | None,
    typer.Option("--state", show_default=False, rich_help_panel=WHAT,
                 help="State that `adapt` wrote; it brings its model and method. (default: state, without --context)"),
]  # fmt: skip
Options = Annotated[
    str,
    typer.Option(help="Answers to choose from by their likelihood, separated by commas: yes,no.", show_default=False,
                 rich_help_panel=WHAT),
]  # fmt: skip
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, show_default=False, rich_help_panel=WHAT,
                 help="Most tokens of a written answer. (default: 16, as the task says)"),
]  # fmt: skip
Beside = Annotated[
    bool,
    typer.Option("--compare", rich_help_panel=WHAT,
                 help="Ask the same under none (nothing read) and icl (all of it in view)."),
]  # fmt: skip
Attention = Annotated[
    Path | None,
    typer.Option(show_default=False, rich_help_panel=HOW,
                 help="Also draw which pieces of context each question looks at: a .png or .svg file (mac, rag)."),
]  # fmt: skip
QuietAnswers = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the answers, one a line.", rich_help_panel=HOW)
]
More = Annotated[list[Path] | None, typer.Argument(help="More files to read, in order.", metavar="FILE...")]
Pieces = Annotated[str, typer.Option(help="What one piece of context is: file, paragraphs or lines.")]
StateOut = Annotated[Path, typer.Option("--out", "-o", help="Folder the state is written to.")]
Replace = Annotated[
    bool, typer.Option("--force", help="Replace the state in --out; other files there are never replaced.")
]
