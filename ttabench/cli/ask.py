"""`ttabench ask` as it is typed; `ask_questions` does what was said. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ttabench.cli import options as o
from ttabench.cli.adapt import READING, Context, Pieces
from ttabench.cli.declaring import takes
from ttabench.cli.ending import bounded
from ttabench.core.declared import HOW, WHAT
from ttabench.core.progress import say_loading
from ttabench.run.request import RunRequest

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


@takes("typed", RunRequest, only=READING, typed_only=True)
def ask(
    typed: Mapping[str, Any],
    questions: Asked = None,
    file: QuestionFile = None,
    state: AskedState = None,
    context: Context = None,
    pieces: Pieces = "file",
    options: Options = "",
    max_new_tokens: MaxNewTokens = None,
    compare: Beside = False,
    attention: Attention = None,
    threads: o.Threads = None,
    json: o.AsJson = False,
    quiet: QuietAnswers = False,
) -> None:
    """Ask questions of your own about your own files: of what `adapt` has read, or of --context FILE."""
    say_loading(str(typed.get("model", "the model")), json or quiet)
    from ttabench.cli import ask_questions
    from ttabench.cli.reading import Reading
    from ttabench.cli.showing import Showing

    typed_values = {name: value for name, value in typed.items() if value != "auto"}
    given = ask_questions.Given(
        state=state, reading=Reading(files=tuple(context or ()), pieces=pieces), typed=typed_values
    )
    wanted = ask_questions.Asking(
        questions=tuple(questions or ()), file=file, options=options, max_new_tokens=max_new_tokens, compare=compare,
        attention=attention,
    )  # fmt: skip
    bounded(threads)
    ask_questions.ask(given, wanted, Showing(json=json, quiet=quiet))
