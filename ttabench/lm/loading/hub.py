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

from ttabench.core.architectures import ARCHITECTURES, NANO, Package, is_hub_id, model_names
from ttabench.core.digests import digest_path
from ttabench.core.environment import memory_bytes
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import MAX_STREAMED_BYTES, reading_file
from ttabench.lm.loading import gguf_files, model_reader
from ttabench.lm.loading.model_reader import Loaded, ModelSource

if TYPE_CHECKING:
    import torch

NANO_FOLDER = Path(__file__).parents[2] / "assets" / "nano"
GGUF_SUFFIX = ".gguf"


def load_pretrained(
    name: str, dtype: torch.dtype | None, device: torch.device, use_all_devices: bool = False
) -> Loaded:
    """Model and tokenizer of a known name, a folder written by `save_pretrained`, a GGUF file, or a hub id."""
    place, package = (
        find_source(name),
        ARCHITECTURES[name].package if name in ARCHITECTURES else None,
    )
    if Path(place).is_file():
        # transformers reads what lies in the folder of a GGUF file, which is no part of the model: one without a file
        alone = ModelSource(
            name, str(NANO_FOLDER.parent), Path(place), model_reader.DOWNLOAD_AGAIN_HINT
        )
        return gguf_files.load_gguf(alone, dtype, device, use_all_devices)
    source = ModelSource(name, place, revision="" if Path(place).is_dir() else hub_commit(place))
    if package is not None:
        install = "" if find_spec("gguf") else f"{gguf_files.INSTALL_COMMAND} && "
        source = replace(source, hint=f"Install it: {install}{package.install}")
    elif name in ARCHITECTURES:
        source = replace(
            source, hint="Give a folder written by save_pretrained, or add --random-weights."
        )
    return model_reader.load_model_and_tokenizer(source, dtype, device, use_all_devices)


def find_source(name: str) -> str:
    """Folder, GGUF file or hub id that a model is loaded from."""
    if name == NANO:
        return str(NANO_FOLDER)
    if name in ARCHITECTURES:
        known = ARCHITECTURES[name]
        packaged = _find_packaged_file(name, known.package) if known.package else None
        return str(packaged) if packaged else known.hub
    place = Path(name).expanduser()
    if place.is_dir():
        if (place / "config.json").is_file():
            return str(place)
        inside = sorted(place.glob(f"*{GGUF_SUFFIX}"))
        hint = (
            f"Give the file: --model {inside[0]}"
            if inside
            else "Give a folder written by save_pretrained."
        )
        raise UserError(f"Folder {place} has no config.json.", hint)
    if place.is_file() or place.suffix == GGUF_SUFFIX:
        # once dequantised it takes more memory than its own length
        most, hint = (
            memory_bytes() or MAX_STREAMED_BYTES,
            f"Give a {GGUF_SUFFIX} file, or a folder written by save_pretrained.",
        )
        with reading_file(place, hint, max_bytes=most), place.open("rb") as file:
            if place.suffix != GGUF_SUFFIX or file.read(4) != b"GGUF":
                raise ValueError("it is no GGUF file")
        return str(place)
    if not is_hub_id(name):
        raise UnknownName("model", name, model_names())
    return name


def refuse_missing_model(name: str) -> None:
    """Refuse a model of which nothing is here, and nothing can be fetched."""
    place = find_source(name)
    if not Path(place).exists() and model_reader.find_small_file(place, "config.json") is None:
        fault = f"Model {name!r} is no folder, and the hub has no {place}, or cannot be reached."
        raise UserError(fault, "Check the name, or give a folder written by save_pretrained.")


def _find_packaged_file(name: str, package: Package) -> Path | None:
    """The file of a package, made of its parts if it has several, if it is installed; no package is imported."""
    files = []
    for part in package.files:
        module, _, inside = part.partition("/")
        spec = find_spec(module)
        places = [
            Path(place) / inside
            for place in (spec.submodule_search_locations if spec else None) or ()
        ]
        files += [path for path in places if path.is_file()][:1]
    if files and len(files) < len(package.files):
        fault = f"{len(package.files) - len(files)} of the parts of {name} are not installed."
        raise UserError(fault, f"Install it again: {package.install} --force-reinstall")
    return (
        gguf_files.join_parts(name, package, files) if len(files) > 1 else next(iter(files), None)
    )


def model_digest(name: str) -> str:
    """Digest of the folder or file that a model is loaded from; of a hub id, see `commit_of`."""
    place = find_source(name)
    return digest_path(Path(place)) if Path(place).exists() else hub_commit(place)


def hub_commit(hub: str, *, fetch: bool = True) -> str:
    """The commit of a hub id that is loaded: the one in the cache, else the newest; "" where it cannot be known."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    with suppress(
        Exception
    ):  # of the cache, the network or the service; who loads the model says what is wrong
        file = try_to_load_from_cache(hub, "config.json")
        if not isinstance(file, str) and fetch:
            file = hf_hub_download(hub, "config.json")
        return Path(file).parent.name if isinstance(file, str) else ""
    return ""


def random_model(name: str, dtype: torch.dtype | None, device: torch.device, seed: int) -> Loaded:
    """A known architecture with random weights, its tokenizer, and whose tokenizer that is.

    The tokenizer is the architecture's own if the local cache has it, else nano's, whose ids fit every vocabulary.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if name not in ARCHITECTURES:
        raise UnknownName("architecture for --random-weights", name, list(ARCHITECTURES))
    architecture, tokenizer_source = ARCHITECTURES[name], name
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            architecture.hub, local_files_only=True, trust_remote_code=False
        )
    except Exception:  # whatever the libraries raise of a cache that lacks it
        tokenizer = AutoTokenizer.from_pretrained(
            NANO_FOLDER, local_files_only=True, trust_remote_code=False
        )
        tokenizer_source = f"{NANO} (stand-in)"
    try:
        config = AutoConfig.for_model(architecture.model_type, **architecture.config)
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype or torch.bfloat16, attn_implementation="eager"
            )
    except Exception as error:
        raise model_reader.loading_error(ModelSource(name, architecture.hub), error) from error
    return model, tokenizer, tokenizer_source
