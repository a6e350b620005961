"""An engine written from MLC's ABI, not from what specc emits: a folder in, tokens out, on TVM's own runtime.

It calls what cpp/serve of mlc-ai/mlc-llm calls, in the same order (batch_draft.cc, batch_verify.cc, eagle_*.cc): the
tensors have the shapes and types that model.cc checks, and what it would refuse fails here too. Greedy, one text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.runtime import ShapeTuple

Array = np.ndarray[Any, Any]
GREEDY = ("apply_logit_bias_inplace", "apply_penalty_inplace", "apply_bitmask_inplace")
"""Looked up for model 0, whatever is asked for."""
SPECULATIVE = ("gather_probs", "scatter_probs", "gather_hidden_states", "scatter_hidden_states")


def builtin(name: str) -> Any:
    return tvm.get_global_func(f"vm.builtin.{name}")


def tensor(values: Any, dtype: str) -> Any:
    return tvm.runtime.tensor(np.ascontiguousarray(values, dtype=dtype))


@dataclass
class Model:
    """A model's folder and library, as ModelImpl has them."""

    folder: Path
    library: Path | str
    batch: int = 4
    page: int = 16
    loaded: Any = field(init=False)

    def __post_init__(self) -> None:
        if str(self.library).startswith("system://"):
            prefix = str(self.library)[9:].replace("-", "_") + "_"
            module = tvm.get_global_func("ffi.SystemLib")(prefix)
        else:
            module = tvm.runtime.load_module(str(self.library))
        self.loaded = module["vm_load_executable"]()
        cpu, pooled = 1, 2
        self.loaded["vm_initialization"](cpu, 0, pooled, cpu, 0, pooled)
        self.metadata: dict[str, Any] = json.loads(self.loaded["_metadata"]())
        names = [p["name"] for p in self.metadata["params"]]
        builtin("tensor_cache.load")(str(self.folder), cpu, 0)
        self.params = builtin("param_array_from_cache_by_name")(names)
        builtin("tensor_cache.clear")()
        for given, told in zip(self.params, self.metadata["params"], strict=True):
            assert (list(given.shape), str(given.dtype)) == (told["shape"], told["dtype"])
        self.width = int(self.loaded["alloc_embedding_tensor"]().shape[1])
        self.cache: Any = None
        if self.metadata.get("kv_state_kind", "kv_cache") == "kv_cache":
            context, chunk = (
                self.metadata[n] for n in ("context_window_size", "prefill_chunk_size")
            )
            sizes = (self.batch, context, chunk, self.page, 0)
            self.cache = self.loaded["create_tir_paged_kv_cache"](*(ShapeTuple([n]) for n in sizes))
            builtin("kv_state_add_sequence")(self.cache, 0)

    def has(self, name: str) -> bool:
        return bool(self.loaded.implements_function(name, True))

    def function(self, name: str) -> Any:
        """Among the library's kernels too, as FunctionTable looks."""
        return self.loaded.get_function(name, query_imports=True)

    def embed(self, tokens: Sequence[int]) -> Array:
        found = self.loaded["embed"](tensor(tokens, "int32"), self.params).numpy()
        assert found.shape == (len(tokens), self.width)
        return found  # type: ignore[no-any-return]

    def forward(
        self, name: str, x: Array, *more: Any, parents: Sequence[int] | None = None,
        sequences: Sequence[int] = (0,), lengths: Sequence[int] = (),
    ) -> Array:  # fmt: skip
        """Call `name` on embeddings [n, H], between begin_forward and end_forward."""
        lengths = list(lengths or [len(x)])
        begin = [ShapeTuple(list(sequences)), ShapeTuple(lengths)]
        begin += [] if parents is None else [ShapeTuple(list(parents))]
        builtin("kv_state_begin_forward")(self.cache, *begin)
        shape = (len(sequences), 1, -1) if "decode" in name else (1, len(x), -1)
        given = tensor(x.reshape(shape), "float32")
        out = self.loaded[name](given, *more, self.cache, self.params)[0]
        builtin("kv_state_end_forward")(self.cache)
        assert str(out.dtype) == "float32"
        return out.numpy()  # type: ignore[no-any-return]

    def prefill(self, tokens: Sequence[int]) -> Array:
        """Logits of the last token [V], by chunks of the size that the library was made for."""
        chunk = self.metadata["prefill_chunk_size"]
        for begin in range(0, len(tokens), chunk):
            logits = self.forward("prefill", self.embed(tokens[begin : begin + chunk]))
        assert logits.shape[:2] == (1, 1)
        return logits[0, 0]  # type: ignore[no-any-return]

    def decode(self, token: int) -> Array:
        """By `batch_decode`, as drafting does."""
        return self.forward("batch_decode", self.embed([token]))[0, 0]  # type: ignore[no-any-return]

    def logits(self, states: Array) -> Array:
        return self.loaded["get_logits"](tensor(states, "float32"), self.params).numpy()  # type: ignore[no-any-return]

    def multi_step_logits(self, states: Array) -> list[Array]:
        found = self.loaded["get_logits"](tensor(states, "float32"), self.params)
        return [step.numpy() for step in found]

    def fused(self, embeddings: Array, states: Array) -> Array:
        pair = (tensor(a, "float32") for a in (embeddings, states))
        found = self.loaded["fuse_embed_hidden_states"](*pair, self.params).numpy()
        assert found.shape == embeddings.shape
        return found  # type: ignore[no-any-return]

    def commit(self, leaf: int) -> None:
        builtin("attention_kv_cache_commit_accepted_token_tree_nodes")(
            self.cache, ShapeTuple([0]), ShapeTuple([leaf])
        )

    def pop(self, count: int) -> None:
        if count:
            builtin("kv_state_popn")(self.cache, 0, count)

    @property
    def length(self) -> int:
        return int(builtin("attention_kv_cache_get_total_sequence_length")(self.cache))


class Engine:
    """What engine.json asks for. `lengths`: the tokens that each round committed."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "engine.json").read_text())
        pairs = [
            (self.config["model"], self.config["model_lib"]),
            *self.config.get("additional_models", []),
        ]
        batch = self.config["max_num_sequence"]
        self.models = [
            Model(folder / path, library if "://" in library else folder / library, batch)
            for path, library in pairs
        ]
        self.lengths: list[int] = []
        target, mode = self.models[0], self.config["speculative_mode"]
        needed = [*GREEDY, "softmax_with_temperature", *(SPECULATIVE if mode != "disable" else ())]
        assert all(target.has(name) for name in needed)
        # EngineConfig: of the models' limits the least counts.
        self.k = self.config.get("spec_draft_length", 0)
        assert batch <= min(m.metadata["max_batch_size"] for m in self.models)

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """At least `count` tokens. Raises TimeoutError where the engine would wait for ever."""
        mode = self.config["speculative_mode"]
        room = min(self.config["max_num_sequence"], self.config["prefill_chunk_size"])
        if mode != "disable" and self.k + 1 > room:
            raise TimeoutError(f"no request fits: {self.k + 1} rows of a round, {room} at most")
        start, play = {
            "disable": (self._prefill, self._plain),
            "small_draft": (self._prefill_both, self._small_draft),
            "eagle": (self._prefill_eagle, self._eagle),
            "medusa": (self._prefill_medusa, self._medusa),
        }[mode]
        self.text = [*prompt, start(list(prompt))]
        while len(self.text) < len(prompt) + count:
            before = len(self.text)
            play()
            self.lengths.append(len(self.text) - before)
        return self.text[len(prompt) :]

    def _prefill(self, prompt: list[int]) -> int:
        return int(self.models[0].prefill(prompt).argmax())

    def _plain(self) -> None:
        target = self.models[0]
        logits = target.forward("decode", target.embed(self.text[-1:]))
        assert logits.shape[:2] == (1, 1)
        self.text.append(int(logits.argmax()))

    def _prefill_both(self, prompt: list[int]) -> int:
        self.models[1].prefill(prompt)
        return self._prefill(prompt)

    def _verify(self, drafts: list[int], logits: Array) -> int:
        """Append what is accepted and one more: how many tokens that are."""
        best = logits.argmax(-1)
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == best[accepted]:
            accepted += 1
        self.text += [*drafts[:accepted], int(best[accepted])]
        return accepted + 1

    def _small_draft(self) -> None:
        target, drafter = self.models
        drafts: list[int] = []
        for token in [self.text[-1], *[-1] * (self.k - 1)]:
            drafts.append(int(drafter.decode(drafts[-1] if token < 0 else token).argmax()))
        rows = [self.text[-1], *drafts]
        parents = [-1, *range(len(drafts))]
        logits = target.forward("batch_verify", target.embed(rows), parents=parents)
        assert logits.shape[:2] == (1, len(rows))
        accepted = self._verify(drafts, logits[0])
        target.commit(accepted - 1)
        if accepted <= self.k:
            drafter.pop(len(rows) - accepted - 1)
        else:
            drafter.decode(self.text[-2])  # its last draft is not in its cache yet
        assert target.length == drafter.length == len(self.text) - 1

    def _prefill_hidden(self, prompt: list[int]) -> tuple[Array, int]:
        target = self.models[0]
        chunk = target.metadata["prefill_chunk_size"]
        parts = [
            target.forward("prefill_to_last_hidden_states", target.embed(prompt[b : b + chunk]))[0]
            for b in range(0, len(prompt), chunk)
        ]
        states = np.concatenate(parts)
        return states, int(target.logits(states[-1:]).argmax())

    def _eagle_step(self, name: str, tokens: Sequence[int], states: Array) -> Array:
        drafter = self.models[1]
        x = drafter.fused(drafter.embed(tokens), states)
        return drafter.forward(name, x).reshape(len(tokens), -1)

    def _drafted(self, states: Array) -> int:
        drafter = self.models[1]
        own = drafter.has("get_logits") and drafter.has("batch_get_logits")
        return int(self.models[own].logits(states).argmax())

    def _prefill_eagle(self, prompt: list[int]) -> int:
        """The drafter reads the prompt one place later, and with it the token that the target has just said."""
        states, root = self._prefill_hidden(prompt)
        later, chunk = [*prompt[1:], root], self.models[1].metadata["prefill_chunk_size"]
        for begin in range(0, len(later), chunk):
            part = slice(begin, begin + chunk)
            last = self._eagle_step("prefill_to_last_hidden_states", later[part], states[part])
        self.state = last[-1:]
        self.drafts = [self._drafted(self.state)]
        return root

    def _verify_hidden(self) -> tuple[Array, int]:
        target = self.models[0]
        rows = [self.text[-1], *self.drafts]
        states = target.forward(
            "batch_verify_to_last_hidden_states", target.embed(rows),
            parents=[-1, *range(len(self.drafts))],
        )[0]  # fmt: skip
        accepted = self._verify(self.drafts, target.logits(states))
        target.commit(accepted - 1)
        return states, accepted

    def _eagle(self) -> None:
        drafter, state = self.models[1], self.state
        for _ in range(1, self.k):
            name = "batch_decode_to_last_hidden_states"
            state = self._eagle_step(name, self.drafts[-1:], state)
            self.drafts.append(self._drafted(state))
        count = len(self.drafts) + 1
        states, accepted = self._verify_hidden()
        if accepted < count:
            drafter.pop(count - accepted - 1)
        else:
            self._eagle_step(
                "batch_decode_to_last_hidden_states", self.text[-2:-1],
                states[accepted - 2 : accepted - 1],
            )  # fmt: skip
        last = states[accepted - 1 : accepted]
        self.state = self._eagle_step("batch_decode_to_last_hidden_states", self.text[-1:], last)
        self.drafts = [self._drafted(self.state)]
        assert self.models[0].length == drafter.length == len(self.text) - 1

    def _prefill_medusa(self, prompt: list[int]) -> int:
        states, root = self._prefill_hidden(prompt)
        self._medusa_drafts(states[-1:])
        return root

    def _medusa_drafts(self, states: Array) -> None:
        steps = self.models[1].multi_step_logits(states)
        self.drafts = [int(step.argmax()) for step in steps[: self.k]]

    def _medusa(self) -> None:
        states, accepted = self._verify_hidden()
        self._medusa_drafts(states[accepted - 1 : accepted])
