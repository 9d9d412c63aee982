"""Models and tokenizers by name, folder, GGUF file or hub id, or with random weights.

model, tokenizer, weights = load_pretrained("smollm2-135m", None, device)
model, tokenizer, tokenizer_source = random_model("llama-2-7b", torch.bfloat16, device, 0)

`random_model` works offline. No remote code is run.
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
from ttabench.core.errors import UnknownName, UserError, require_known
from ttabench.core.files import MAX_STREAMED_BYTES, reading_file
from ttabench.lm.loading import gguf_files, model_reader
from ttabench.lm.loading.model_reader import Loaded, ModelSource
from ttabench.lm.loading.server import is_served, parse_address

if TYPE_CHECKING:
    import torch

NANO_FOLDER = Path(__file__).parents[2] / "assets" / "nano"
GGUF_SUFFIX = ".gguf"


def load_pretrained(
    name: str, dtype: torch.dtype | None, device: torch.device, use_all_devices: bool = False
) -> Loaded:
    """Load model and tokenizer by known name, folder, GGUF file or hub id."""
    place, known = find_source(name), ARCHITECTURES.get(name)
    if Path(place).is_file():
        # An empty folder: transformers would also read other files in the folder of the GGUF file.
        gguf_source = ModelSource(
            name, str(NANO_FOLDER.parent), Path(place), model_reader.DOWNLOAD_AGAIN_HINT
        )
        return gguf_files.load_gguf(gguf_source, dtype, device, use_all_devices)
    source = ModelSource(name, place, revision="" if Path(place).is_dir() else hub_commit(place))
    if known and known.package:
        install = "" if find_spec("gguf") else f"{gguf_files.INSTALL_COMMAND} && "
        source = replace(source, hint=f"Run: {install}{known.package.install}")
    elif known:
        source = replace(
            source, hint="Use a folder written by save_pretrained, or add --random-weights."
        )
    return model_reader.load_model_and_tokenizer(source, dtype, device, use_all_devices)


def find_source(name: str) -> str:
    """Return the folder, GGUF file or hub id that a model is loaded from."""
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
            f"Use the file: --model {inside[0]}"
            if inside
            else "Use a folder written by save_pretrained."
        )
        raise UserError(f"Folder {place} has no config.json.", hint)
    if place.is_file() or place.suffix == GGUF_SUFFIX:
        # dequantised weights need more memory than the file has bytes
        max_bytes = memory_bytes() or MAX_STREAMED_BYTES
        hint = f"Use a {GGUF_SUFFIX} file, or a folder written by save_pretrained."
        with reading_file(place, hint, max_bytes=max_bytes), place.open("rb") as file:
            if place.suffix != GGUF_SUFFIX or file.read(4) != b"GGUF":
                raise ValueError("it is not a GGUF file")
        return str(place)
    if not is_hub_id(name):
        raise UnknownName("model", name, model_names())
    return name


def refuse_missing_model(name: str) -> None:
    """Raise a UserError if a model is neither local nor reachable on the hub.

    Servers are not contacted.
    """
    if is_served(name):
        return
    place = find_source(name)
    if not Path(place).exists() and model_reader.find_small_file(place, "config.json") is None:
        fault = f"Model {name!r} is not a folder, and {place} was not found on the hub."
        raise UserError(fault, "Fix the name, or use a folder written by save_pretrained.")


def _find_packaged_file(name: str, package: Package) -> Path | None:
    """Return the GGUF file of an installed package, joined if split. No package is imported."""
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
        raise UserError(fault, f"Run: {package.install} --force-reinstall")
    return (
        gguf_files.join_parts(name, package, files) if len(files) > 1 else next(iter(files), None)
    )


def model_digest(name: str) -> str:
    """Return the digest of the folder or file of a model, or the commit of a hub id.

    A served model has none. Raises a UserError if its address is malformed.
    """
    if is_served(name):
        parse_address(name)
        return ""
    place = find_source(name)
    return digest_path(Path(place)) if Path(place).exists() else hub_commit(place)


def hub_commit(hub: str, *, fetch: bool = True) -> str:
    """Return the commit of a hub id: the cached one, else the newest; "" if unknown."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    # errors of cache, network or service: loading the model reports them
    with suppress(Exception):
        file = try_to_load_from_cache(hub, "config.json")
        if not isinstance(file, str) and fetch:
            file = hf_hub_download(hub, "config.json")
        return Path(file).parent.name if isinstance(file, str) else ""
    return ""


def random_model(name: str, dtype: torch.dtype | None, device: torch.device, seed: int) -> Loaded:
    """Create a known architecture with random weights. Returns it, tokenizer and tokenizer source.

    The tokenizer is that of the architecture if cached, else that of nano, whose ids always fit.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    require_known("architecture for --random-weights", name, ARCHITECTURES)
    architecture, tokenizer_source = ARCHITECTURES[name], name
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            architecture.hub, local_files_only=True, trust_remote_code=False
        )
    except Exception:  # libraries raise various errors if the cache lacks it
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
