"""LoRA adapters in the format of Hugging Face PEFT.

A folder with `adapter_config.json` and `adapter_model.safetensors` holds one adapter of a stack. PEFT stores
lora_A [r, in] and lora_B [out, r] under the names of the modules. If a family fuses projections on disk (Phi-3, GPT-2),
the module has one A and one B for all of them:
- Adapters with a common A, as PEFT creates them, are written with that A and their concatenated Bs.
- Others are written with concatenated As and a block-diagonal B of rank m·r, which is also exact. The metadata of the
  file records this, so that they can be read back unchanged.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models import lora
from models.config import ModelConfig, is_number
from models.errors import WeightsError, refuse_malformed
from models.families import FAMILIES
from models.weights import safetensors_folder as st
from models.weights.atomic import new_folder

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
BLOCKS = "fused_blocks"  # metadata key: comma-separated names of the modules with a block-diagonal B


@dataclasses.dataclass(frozen=True)
class Adapter:
    """One adapter.

    Attributes:
        weights: {"q": {"a": [L, in, r], "b": [L, r, out]}, ...}.
        scale: Factor on its output, alpha / r.
    """

    weights: dict[str, dict[str, Any]]
    scale: float


def take(adapters: dict, scale: jax.Array, index: int) -> Adapter:
    """Return adapter `index` of a stack; `adapters` and `scale` are those of `lora.Lora`."""
    n = scale.shape[0]
    if not 0 <= index < n:
        raise ValueError(f"adapter index is {index}, but must be from 0 to {n - 1}")
    return Adapter({t: {x: ab[x][:, index] for x in "ab"} for t, ab in adapters.items()}, float(scale[index]))


def put(adapters: dict, scale: jax.Array, index: int, adapter: Adapter) -> tuple[dict, jax.Array]:
    """Return the stack with adapter `index` replaced by `adapter`.

    Lower ranks and missing targets are padded with zeros.
    """
    unknown = sorted(set(adapter.weights) - set(adapters))
    if unknown:
        raise ValueError(
            f"the adapter has the targets {', '.join(unknown)}, but the stack has only {', '.join(adapters)}"
        )
    own = {}
    for target, ab in adapters.items():
        shapes = {x: (ab[x].shape[0], *ab[x].shape[2:]) for x in "ab"}
        own[target] = {x: np.zeros(shape, ab[x].dtype) for x, shape in shapes.items()}
        if target not in adapter.weights:
            continue
        rank, room = adapter.weights[target]["a"].shape[-1], shapes["a"][-1]
        if rank > room:
            raise ValueError(f"the adapter rank for {target} is {rank}, but must be <= {room}, the rank of the stack")
        own[target]["a"][:, :, :rank] = adapter.weights[target]["a"]
        own[target]["b"][:, :rank] = adapter.weights[target]["b"]
    return _set(adapters, own, index), scale.at[index].set(adapter.scale)


@jax.jit
def _set(stack: dict, own: dict, index: int) -> dict:
    """Set element `index` of the second axis of every array."""
    return jax.tree.map(lambda many, one: many.at[:, index].set(one), stack, own)


def modules(cfg: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Return the Hugging Face modules of the projections, with their LoRA targets in order.

    Names have {} for the layer.
    """
    family = FAMILIES.get(cfg.family)
    result: dict[str, tuple[str, ...]] = {}
    for target in family.lora_targets:
        path = f"layers/{'attn' if target in ('q', 'k', 'v', 'o') else 'mlp'}/{target}"
        name = family.hf_names[path].removesuffix(".weight")
        if family.hf_modules is not None:
            name = family.hf_modules + name.removeprefix("model.")
        result[name] = (*result.get(name, ()), target)
    return result


def export(
    folder: str | Path, cfg: ModelConfig, adapter: Adapter, *, base_model: str = "", overwrite: bool = False
) -> Path:
    """Write one adapter as a folder that `peft` can load onto the exported model."""
    known = modules(cfg)
    unknown = sorted(set(adapter.weights) - {target for targets in known.values() for target in targets})
    if unknown or not adapter.weights:
        accepted = ", ".join(target for targets in known.values() for target in targets)
        targets = ", ".join(unknown) or "none"
        raise ValueError(f"adapter targets are {targets}, but for the family {cfg.family} must be among: {accepted}")
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    blocks = []
    for module, targets in known.items():
        if not any(target in adapter.weights for target in targets):
            continue
        a, b, is_blocks = _fuse(cfg, adapter, targets)
        ranks[_short(module)] = a.shape[1]
        if is_blocks:
            blocks.append(_short(module))
        for layer in range(cfg.n_layers):
            name = PREFIX + module.format(layer)
            tensors[f"{name}.lora_A.weight"] = np.ascontiguousarray(a[layer])
            tensors[f"{name}.lora_B.weight"] = np.ascontiguousarray(b[layer])
    rank = min(ranks.values())
    others = {module: r for module, r in ranks.items() if r != rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "target_modules": sorted(ranks),
        **({} if cfg.vision is None else {"exclude_modules": r".*\bvisual\..*"}),  # the tower has projections, too
        "r": rank,
        "lora_alpha": _number(adapter.scale * rank),
        "rank_pattern": others,
        "alpha_pattern": {module: _number(adapter.scale * r) for module, r in others.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": not FAMILIES.get(cfg.family).hf_out_first,
        "inference_mode": True,
    }
    with new_folder(folder, overwrite) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        specs = {name: (value.dtype, value.shape) for name, value in tensors.items()}
        metadata = {"format": "pt"} | ({BLOCKS: ",".join(blocks)} if blocks else {})
        st.write(temporary / WEIGHTS, specs, tensors.values(), metadata)
    return Path(folder)


def load(folder: str | Path, cfg: ModelConfig) -> Adapter:
    """Read one adapter in the dtype in which it was saved."""
    with refuse_malformed(WeightsError, folder):
        return _load(folder, cfg)


def _load(folder: str | Path, cfg: ModelConfig) -> Adapter:
    """Read one adapter; malformed files raise various errors."""
    config_path, path = Path(folder) / CONFIG, Path(folder) / WEIGHTS
    config = _read_config(config_path)
    if not path.exists():
        raise WeightsError(f"{path} does not exist, but must be next to {CONFIG}")
    header, metadata = st.read_header(path)
    data = np.memmap(path, mode="r", dtype=np.uint8)
    blocks = metadata.get(BLOCKS, "").split(",")
    adapted = config.get("layers_to_transform")
    adapted = range(cfg.n_layers) if adapted is None else [adapted] if isinstance(adapted, int) else adapted
    weights: dict[str, dict[str, np.ndarray]] = {}
    factors: dict[str, float] = {}
    problems = []
    for module, targets in modules(cfg).items():
        layers = [module.format(layer) for layer in range(cfg.n_layers)]
        names = {x: [f"{PREFIX}{name}.lora_{x}.weight" for name in layers] for x in "AB"}
        present = {name: header.pop(name) for group in names.values() for name in group if name in header}
        if not present:
            continue
        rank = next((t.shape[0] for name, t in present.items() if ".lora_A." in name and t.shape), 0)
        shapes = {
            "A": (rank, lora.sizes(cfg, targets[0])[0]),
            "B": (sum(lora.sizes(cfg, target)[1] for target in targets), rank),
        }
        wrong = [line for x in "AB" for line in _problems(names[x], present, shapes[x], adapted)]
        if wrong:
            problems += wrong
            continue
        a, b = (_stack(names[x], present, data, shapes[x]) for x in "AB")
        weights |= _split(cfg, targets, a, b, _short(module) in blocks)
        factors |= dict.fromkeys(targets, _scale(config, config_path, layers, rank))
    problems += [f"extra: {name} {list(tensor.shape)}" for name, tensor in header.items()]
    if problems or not weights:
        raise WeightsError(f"{path} does not fit the model:\n  " + "\n  ".join(problems or ["it has no adapter"]))
    # Targets of a fused module that have no adapter are read as zeros. They are dropped again.
    weights = {t: ab for t, ab in weights.items() if ab["a"].any() or ab["b"].any()} or weights
    return _one_scale(weights, factors)


def _fuse(cfg: ModelConfig, adapter: Adapter, targets: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the matrices of a module that holds several targets.

    Returns:
        A [L, r, in], B [L, out, r], and whether B is block-diagonal.
    """
    held = {t: {x: np.asarray(adapter.weights[t][x]) for x in "ab"} for t in targets if t in adapter.weights}
    first = next(iter(held.values()))
    for target, ab in held.items():
        d_in, d_out = lora.sizes(cfg, target)
        rank = ab["a"].shape[-1]
        shapes, wanted = (ab["a"].shape, ab["b"].shape), ((cfg.n_layers, d_in, rank), (cfg.n_layers, rank, d_out))
        if shapes != wanted:
            raise WeightsError(f"adapter {target}: a and b have shapes {shapes}, but must have {wanted}")
    if len(targets) == 1:
        return first["a"].swapaxes(1, 2), first["b"].swapaxes(1, 2), False
    widths = {t: lora.sizes(cfg, t)[1] for t in targets}
    starts = dict(zip(targets, np.cumsum([0, *widths.values()]), strict=False))
    shared = len(held) == len(targets) and all(np.array_equal(ab["a"], first["a"]) for ab in held.values())
    if shared:
        return first["a"].swapaxes(1, 2), np.concatenate([ab["b"] for ab in held.values()], -1).swapaxes(1, 2), False
    # Every target gets an equal share of the rank, so that reading needs only the number of targets.
    rank = max(ab["a"].shape[-1] for ab in held.values())
    a = np.zeros((cfg.n_layers, rank * len(targets), first["a"].shape[1]), first["a"].dtype)
    b = np.zeros((cfg.n_layers, sum(widths.values()), rank * len(targets)), first["b"].dtype)
    for i, target in enumerate(targets):
        if target in held:
            own = held[target]
            r = own["a"].shape[-1]
            columns = slice(i * rank, i * rank + r)
            a[:, columns] = own["a"].swapaxes(1, 2)
            b[:, starts[target] : starts[target] + widths[target], columns] = own["b"].swapaxes(1, 2)
    return a, b, True


def _split(cfg, targets: tuple[str, ...], a: np.ndarray, b: np.ndarray, is_blocks: bool) -> dict:
    """Split a module into its targets, the inverse of `_fuse`.

    Args:
        cfg: Config of the model.
        targets: LoRA targets of the module, in order.
        a: [L, r, in].
        b: [L, out, r].
        is_blocks: Whether b is block-diagonal.

    Returns:
        {target: {"a": [L, in, r], "b": [L, r, out]}}.
    """
    result, start = {}, 0
    share = a.shape[1] // len(targets)
    for i, target in enumerate(targets):
        width = lora.sizes(cfg, target)[1]
        ranks = slice(i * share, (i + 1) * share) if is_blocks else slice(None)
        own_b = b[:, start : start + width, ranks]
        result[target] = {"a": a[:, ranks].swapaxes(1, 2).copy(), "b": own_b.swapaxes(1, 2).copy()}
        start += width
    return result


def _problems(names: list[str], header: dict[str, st.SafetensorsEntry], shape: tuple[int, int], adapted) -> list[str]:
    """Return the problems with one matrix of a module over all layers, one line each."""
    problems = []
    for layer, name in enumerate(names):
        tensor = header.get(name)
        if tensor is None:
            if layer in adapted:
                problems.append(f"missing: {name} {list(shape)}")
        elif tensor.shape != shape:
            problems.append(f"mis-shaped: {name} is {list(tensor.shape)}, but must be {list(shape)}")
        elif tensor.dtype not in st.DTYPES:
            problems.append(f"unreadable: {name} has type {tensor.dtype}, but must be one of: {', '.join(st.DTYPES)}")
    return problems


def _stack(
    names: list[str], header: dict[str, st.SafetensorsEntry], data: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Return one matrix over all layers, [L, *shape]; layers without an adapter are zero."""
    dtype = next(st.DTYPES[header[name].dtype] for name in names if name in header)
    out = np.zeros((len(names), *shape), dtype)
    for layer, name in enumerate(names):
        if name in header:
            tensor = header[name]
            out[layer] = data[tensor.start : tensor.stop].view(st.DTYPES[tensor.dtype]).reshape(shape)
    return out


def _read_config(path: Path) -> dict[str, Any]:
    """Read `adapter_config.json` and reject unsupported settings."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{path} does not exist, but a PEFT adapter needs it") from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path} contains a {type(config).__name__}, but must contain an object")
    accepted = {"peft_type": ("LORA",), "bias": (None, "none"), "modules_to_save": (None, [])}
    accepted |= dict.fromkeys(("use_dora", "use_qalora", "use_bdlora", "lora_bias"), (None, False))
    accepted |= dict.fromkeys(("layer_replication", "alora_invocation_tokens", "kasa_config"), (None,))
    for field, values in accepted.items():
        if config.get(field) not in values:
            shown = ("one of: " if len(values) > 1 else "") + ", ".join(map(repr, values))
            raise WeightsError(f"{path}: {field} is {config.get(field)!r}, but must be {shown}")
    return config


def _scale(config: dict[str, Any], path: Path, names: list[str], rank: int) -> float:
    """Return the factor on the output of a module.

    It is alpha over the rank, or over its root. `names` are the names of the module in all layers.
    """
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        suffix = pattern.removeprefix("^")
        hits = sum(f".{PREFIX}{name}".endswith(f".{suffix}") for name in names)
        if hits == len(names):
            alpha = value
        elif hits or not re.fullmatch(r"[\w.]+", suffix):
            raise WeightsError(
                f"{path}: alpha_pattern has {pattern!r}, but must have module names that match in all layers"
            )
    if not is_number(alpha):
        raise WeightsError(f"{path}: lora_alpha is {alpha!r}, but must be a number > 0")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _one_scale(weights: dict, factors: dict[str, float]) -> Adapter:
    """Return an adapter with one scale for all targets.

    Differences between the factors are multiplied into B.
    """
    scale = next(factors[t] for t in weights)
    for target, ab in weights.items():
        if factors[target] != scale:
            ab["b"] = (ab["b"].astype(np.float32) * (factors[target] / scale)).astype(ab["b"].dtype)
    return Adapter(weights, scale)


def _short(module: str) -> str:
    """Return a module name without the layer, such as `self_attn.q_proj`.

    It is unique even in GPT-2.
    """
    return module.split("{}.")[1]


def _number(value: float) -> int | float:
    """Return an integral float as an int."""
    return int(value) if value == int(value) else value
