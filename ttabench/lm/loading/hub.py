"""Models and tokenizers by name, folder, GGUF file or hub id, or random ones in a published shape. No remote code.

model, tokenizer, weights = pretrained("smollm2-135m", None, device)         from a package, or from the hub's cache
model, tokenizer, whose = random("llama-2-7b", torch.bfloat16, device, 0)    offline, for cost profiles
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.architectures import ARCHITECTURES, NANO, Package, names
from ttabench.core.checked_file import ANY, reading
from ttabench.core.digests import digest
from ttabench.core.environment import memory_bytes, offline_if_unreachable
from ttabench.core.errors import UnknownName, UserError
from ttabench.lm.loading.gguf_files import INSTALL, joined

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ttabench.lm.loading.model_reader import Source

NANO_FOLDER = Path(__file__).parents[2] / "assets" / "nano"
NOTHING_THERE = NANO_FOLDER.parent
"""A folder without a file. transformers reads what lies in the folder of a GGUF file, which is no part of the model."""
GGUF = ".gguf"


def pretrained(
    name: str, dtype: torch.dtype | None, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, str]:
    """Model and tokenizer of a known name, a folder written by `save_pretrained`, a GGUF file, or a hub id.

    The third part is its weights as a record names them ("Q4_1, dequantised"), empty where there is nothing to say.
    """
    from ttabench.lm.loading import gguf_files, model_reader

    source = _source(name)
    if source.gguf is not None:
        return gguf_files.read(source, dtype, device)
    if not source.local:
        offline_if_unreachable()
        source = replace(source, revision=commit_of(source.place))
    return *model_reader.read(source, dtype, device), ""


def _source(name: str) -> Source:
    from ttabench.lm.loading.model_reader import Source

    place = find_source(name)
    if Path(place).is_file():
        file = Path(place)
        return Source(name, str(NOTHING_THERE), file, hint="Download or copy it again, or give another --model.")
    if name not in ARCHITECTURES:
        return Source(name, place)
    package = ARCHITECTURES[name].package
    if package is None:
        return Source(name, place, hint="Give a folder written by save_pretrained, or add --random-weights.")
    install = package.install if find_spec("gguf") else f"{INSTALL} && {package.install}"
    return Source(name, place, hint=f"Install it: {install}")


def find_source(name: str) -> str:
    """Folder, GGUF file or hub id that a model is loaded from."""
    if name == NANO:
        return str(NANO_FOLDER)
    if name in ARCHITECTURES:
        known = ARCHITECTURES[name]
        packaged = _packaged(name, known.package) if known.package else None
        return str(packaged) if packaged else known.hub
    place = Path(name).expanduser()
    if place.is_dir():
        return _folder(place)
    if place.is_file() or place.suffix == GGUF:
        # once dequantised it takes more memory than its own length
        most, hint = memory_bytes() or ANY, f"Give a {GGUF} file, or a folder written by save_pretrained."
        with reading(place, hint, most=most), place.open("rb") as file:
            if place.suffix != GGUF or file.read(4) != b"GGUF":
                raise ValueError("it is no GGUF file")
        return str(place)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UnknownName("model", name, names())
    return name


def _folder(folder: Path) -> str:
    if (folder / "config.json").is_file():
        return str(folder)
    if (folder / "adapter_config.json").is_file():
        fault = f"Folder {folder} holds an adapter of peft, no model."
        raise UserError(fault, "Merge it into its base in peft (merge_and_unload(), then save_pretrained).")
    inside = sorted(folder.glob(f"*{GGUF}"))
    hint = f"Give the file: --model {inside[0]}" if inside else "Give a folder written by save_pretrained."
    raise UserError(f"Folder {folder} has no config.json.", hint)


def _packaged(name: str, package: Package) -> Path | None:
    """The file of a package, made of its parts if it has several, if it is installed; no package is imported."""
    there = {file: path for file in package.files if (path := _installed(file))}
    if not there:
        return None
    if missing := [file for file in package.files if file not in there]:
        fault = f"A part of {name} is not installed: {missing[0]}."
        raise UserError(fault, f"Install it again: {package.install} --force-reinstall")
    file, *others = there.values()
    return joined(name, package, [file, *others]) if others else file


def _installed(file: str) -> Path | None:
    """Where a file of a package is."""
    module, _, inside = file.partition("/")
    spec = find_spec(module)
    paths = [Path(place) / inside for place in (spec.submodule_search_locations if spec else None) or ()]
    return next((path for path in paths if path.is_file()), None)


def digest_of(name: str) -> str:
    """Digest of the folder or file that a model is loaded from; of a hub id, see `commit_of`."""
    place = find_source(name)
    return digest(Path(place)) if Path(place).exists() else commit_of(place)


def commit_of(hub: str) -> str:
    """The commit of a hub id that is loaded: the one in the cache, else the newest; "" where it cannot be known."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    with suppress(OSError, ValueError, EntryNotFoundError, HfHubHTTPError):
        if commit := cached_commit(hub):
            return commit
        offline_if_unreachable()
        return Path(hf_hub_download(hub, "config.json")).parent.name
    return ""


def cached_commit(hub: str) -> str:
    """The commit of a hub id in the cache; "" where it is not there, or no such id."""
    from huggingface_hub import try_to_load_from_cache

    with suppress(OSError, ValueError):
        file = try_to_load_from_cache(hub, "config.json")
        return Path(file).parent.name if isinstance(file, str) else ""
    return ""


def check_hub(name: str) -> None:
    """Whether a model of the hub is there: its configuration is in the cache, or is fetched."""
    if name != NANO and name not in ARCHITECTURES and not Path(find_source(name)).exists() and not commit_of(name):
        fault = f"Model {name!r} cannot be loaded: it is not in the local cache, and the hub does not give it."
        raise UserError(fault, "Give a folder, or one of `ttabench list models`.")


def random(
    name: str, dtype: torch.dtype | None, device: torch.device, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, str]:
    """A known architecture with random weights, its tokenizer, and whose tokenizer that is.

    The tokenizer is the architecture's own if the local cache has it, else nano's, whose ids fit every vocabulary.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from ttabench.lm.loading.model_reader import Source, refusal

    if name not in ARCHITECTURES:
        raise UnknownName("architecture for --random-weights", name, list(ARCHITECTURES))
    architecture = ARCHITECTURES[name]
    whose = name
    try:
        tokenizer = AutoTokenizer.from_pretrained(architecture.hub, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        tokenizer = AutoTokenizer.from_pretrained(NANO_FOLDER, local_files_only=True, trust_remote_code=False)
        whose = f"{NANO} (stand-in)"
    config = AutoConfig.for_model(architecture.model_type, **architecture.config)
    try:
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.bfloat16, attn_implementation="eager")
    except (RuntimeError, MemoryError) as error:
        raise refusal(Source(name, architecture.hub), error) from error
    return model, tokenizer, whose
