"""Faults of the text: where it begins, where it ends, and what of it is kept (B02 to B62)."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from specc.errors import RequestError
from specc.runtime import ADAPTIVE, Artifact
from tests.faults.conftest import PADDING, WINDOW
from tests.faults.helpers import (
    HOST,
    PROMPT,
    acceptance,
    altered,
    chunked,
    drafting,
    fixed,
    greedy,
    half_wrong,
    logits_after,
    oracle,
    plain,
    spoken,
)


def test_b02_max_tokens_cuts_a_block(engine: Artifact) -> None:
    """Exactly max_tokens come, wherever in a block the limit falls, and the reason is `length`."""
    widest = engine.manifest.num_speculative_tokens[-1]
    whole = plain(engine, PROMPT, 2 * widest + 3)
    for k in engine.manifest.num_speculative_tokens:
        for limit in range(1, 2 * k + 4):
            with engine.session() as session:
                session.configure(max_tokens=limit, ignore_eos=True, **fixed(engine, k))
                if engine.manifest.drafter.host:
                    session.set_drafter(oracle([*PROMPT, *whole]))  # every block is full
                assert tuple(spoken(session, PROMPT)) == whole[:limit], (k, limit)
                assert session.finish_reason == "length"
                assert session.stats.new_tokens == limit


def test_b06_a_model_without_eos(windowed: Artifact) -> None:
    """Runs to max_tokens with a drafter that looks things up."""
    assert windowed.manifest.model.eos_token_ids == ()
    for k in (*windowed.manifest.num_speculative_tokens, ADAPTIVE):
        found = windowed.generate(PROMPT, max_tokens=30, num_speculative_tokens=k)
        assert (len(found.token_ids), found.finish_reason) == (30, "length")


@pytest.mark.parametrize("kind", ["eos", "stop"])
def test_b08_a_turn_after_a_stop_inside_a_block(
    engine: Artifact, kind: str, tmp_path: Path
) -> None:
    """What was drafted past the stop is gone: the second turn is that of a fresh run on the joined text."""
    whole = plain(engine, PROMPT, 16)
    second = [9, 30, 9]
    for place in sorted({whole.index(token) for token in whole[:11]}):
        end, path = whole[place], engine.path
        if kind == "eos":
            path = altered(
                engine.path, tmp_path / str(place),
                lambda m, end=end: m["model"].update(eos_token_ids=[end]),
            )  # fmt: skip
        with Artifact.load(path) as artifact:
            for k in drafting(artifact) or (0,):
                with artifact.session() as session, artifact.session() as fresh:
                    for one in (session, fresh):
                        one.configure(max_tokens=16, **fixed(artifact, k))
                        one.set_stop_tokens([end] if kind == "stop" else [])
                    if artifact.manifest.drafter.host:
                        session.set_drafter(oracle([*PROMPT, *whole]))
                    first = spoken(session, PROMPT)
                    assert tuple(first) == whole[: place + (kind == "eos")], (place, k)
                    assert session.finish_reason == "stop"
                    assert session.tokens == (*PROMPT, *first)
                    if artifact.manifest.drafter.host:
                        session.set_drafter(None)
                    answer = spoken(session, second)
                    assert answer == spoken(fresh, [*PROMPT, *first, *second]), (place, k)
                    assert session.finish_reason == fresh.finish_reason
                    assert acceptance(session) == acceptance(fresh), (place, k)


HOT = 1.0
"""Sampled, since noise is shared: then even the drafts of a random model are often right."""
LONG = [3 + 7 * i % 250 for i in range(65)]


def test_b10_the_first_token_does_not_depend_on_how_the_prompt_was_fed(
    ngram: Artifact, llama: PreTrainedModel, tmp_path: Path
) -> None:
    """Prompts of 1 to 65 tokens: the same logits, bit by bit, for any K and chunk; the token is transformers'."""
    with torch.no_grad():
        wanted = (
            llama(input_ids=torch.tensor([LONG]), use_cache=False).logits[0].argmax(-1).tolist()
        )
    paths = [chunked(ngram.path, tmp_path / str(chunk), chunk) for chunk in (1, 7, 16)]
    engines = [ngram, *map(Artifact.load, paths)]
    for length in range(1, 66):
        prompt = LONG[:length]
        bits, first = set(), set()
        for engine in engines:
            with engine.session() as session:
                session.configure(max_tokens=1, ignore_eos=True)
                for k in (0, 4):
                    session.set("num_speculative_tokens", k)
                    session.rewind(0)
                    first.add(*spoken(session, prompt))
                    session.rewind(length)
                    bits.add(logits_after(session, prompt, k))
        assert len(bits) == 1, length
        assert first == {wanted[length - 1]}, length
    for engine in engines[1:]:
        engine.close()


def test_b30_short_matches_change_nothing(ngram: Artifact, tmp_path: Path) -> None:
    """An n-gram of one token is only a bad guess."""
    prompt = [5, 9, 5, 9, 9, 5, 6] * 3
    wanted = plain(ngram, prompt, 40)
    for least in (1, 2):
        path = altered(
            ngram.path, tmp_path / str(least),
            lambda m, least=least: m["drafter"].update(options={"prompt_lookup_min": least}),
        )  # fmt: skip
        with Artifact.load(path) as engine:
            found = engine.generate(
                prompt, max_tokens=40, ignore_eos=True, num_speculative_tokens=4
            )
            assert found.token_ids == wanted
            assert found.stats.draft_tokens > 0


def test_b44_prompts_up_to_the_end_of_the_context(engine: Artifact) -> None:
    """K is cut to the room that is left; the reason is `context`, unless max_tokens came first."""
    room = engine.manifest.model.max_model_len
    text = [3 + 7 * i % 250 for i in range(room)]
    widest = engine.manifest.num_speculative_tokens[-1]
    for left in range(1, widest + 3):
        prompt = text[: room - left]
        whole = plain(engine, prompt, left + 5)
        assert len(whole) == left
        for k in (*drafting(engine), ADAPTIVE):
            with engine.session() as session:
                session.configure(ignore_eos=True, **fixed(engine, k))
                if engine.manifest.drafter.host:
                    session.set_drafter(oracle([*prompt, *whole, 3, 3, 3, 3]))
                assert tuple(spoken(session, prompt)) == whole, (left, k)
                assert session.finish_reason == "context"
                session.rewind(len(prompt) - 3)
                session.configure(max_tokens=left)
                assert tuple(spoken(session, prompt[-3:])) == whole
                assert session.finish_reason in ("length", "context")


def test_b48_rejected_drafts_in_a_window(windowed: Artifact, gemma: PreTrainedModel) -> None:
    """Far past the window, with half of all drafts wrong, the text is that of the model without any cache."""
    valid = windowed.manifest.model.vocab_size
    count = 4 * WINDOW
    wanted = greedy(gemma, PROMPT, count, valid)
    assert plain(windowed, PROMPT, count) == tuple(wanted)
    for k in drafting(windowed):
        for seed in range(8):
            with windowed.session() as session:
                session.configure(max_tokens=count, num_speculative_tokens=k)
                session.set_drafter(oracle([*PROMPT, *wanted], half_wrong(seed)))
                assert spoken(session, PROMPT) == wanted, (k, seed)
                reached = sum(p.drafted for p in session.stats.by_position)
                assert 0.3 < session.stats.accepted_tokens / reached < 0.7
                # And back into the window, where what was rejected lay.
                session.rewind(len(PROMPT) + 2 * WINDOW)
                session.configure(max_tokens=count - 2 * WINDOW)
                assert spoken(session) == wanted[2 * WINDOW :], (k, seed)


@pytest.mark.parametrize("heat", [0.0, HOT])
def test_b50_a_prompt_whose_state_is_there_already(engine: Artifact, heat: float) -> None:
    """Rewound or cold, a prompt gives the same text and the same acceptance: the drafter's state is there too."""
    text = [*PROMPT, *plain(engine, PROMPT, 12), *LONG[:9], *PROMPT]
    for k in drafting(engine) or (0,):
        with engine.session() as session, engine.session() as cold:
            for one in (session, cold):
                one.configure(max_tokens=40, ignore_eos=True, temperature=heat, **fixed(engine, k))
            first = spoken(cold, text)
            expected = first, acceptance(cold)
            if heat and k and not engine.manifest.drafter.host:
                assert cold.stats.accepted_tokens > 2  # else equality says nothing
            for keep in (len(text), len(text) - 1, len(text) - 5, 1, 0):
                spoken(session, [] if session.tokens else text)
                session.rewind(keep)
                assert (spoken(session, text[keep:]), acceptance(session)) == expected, (k, keep)
                session.rewind(len(text))
                assert (spoken(session), acceptance(session)) == expected, (k, keep)
                # Diverge, then come back.
                session.rewind(len(text) - 3)
                cold.rewind(0)
                other = [*text[:-3], 8, 8]
                assert spoken(session, [8, 8]) == spoken(cold, other)
                assert acceptance(session) == acceptance(cold), (k, keep)
                session.rewind(len(text) - 3)
                spoken(session, text[-3:])
                session.rewind(len(text))


def test_b54_prompts_of_nothing_and_of_one_token(engine: Artifact, llama: PreTrainedModel) -> None:
    """No prompt is a coded error, and the session stays usable; BOS or one token is a prompt."""
    bos = engine.manifest.model.bos_token_id
    assert bos is not None
    with engine.session() as session:
        with pytest.raises(RequestError, match="SPECC-E0607"):
            session.append([])
        with pytest.raises(RequestError, match="SPECC-E0607"):
            session.next()
        for prompt in ([bos], [7]):
            wanted = greedy(llama, prompt, 12)
            for k in (*engine.manifest.num_speculative_tokens, ADAPTIVE):
                session.rewind(0)
                session.configure(max_tokens=12, ignore_eos=True, **fixed(engine, k))
                assert spoken(session, prompt) == wanted, (prompt, k)


def test_b56_a_prompt_of_three_chunks(engine: Artifact, tmp_path: Path) -> None:
    """Chunks of the prompt change neither tokens nor acceptance: a drafter sees all of them."""
    prompt = LONG[:49]  # 48 are fed, the last is the first root
    with Artifact.load(chunked(engine.path, tmp_path / "chunked", 16)) as narrow:
        for k, heat in product(drafting(engine) or (0,), (0.0, HOT)):
            with engine.session() as one, narrow.session() as three:
                for session in (one, three):
                    session.configure(
                        max_tokens=40, ignore_eos=True, temperature=heat, **fixed(engine, k)
                    )
                assert spoken(one, prompt) == spoken(three, prompt)
                assert acceptance(one) == acceptance(three)
                if heat and k and not engine.manifest.drafter.host:
                    assert one.stats.accepted_tokens > 2
                if k and engine.manifest.method == "draft_model":  # its drafter is the target
                    assert one.stats.accepted_tokens == one.stats.draft_tokens > 0


def test_b58_padding_of_the_head_is_never_chosen(
    windowed: Artifact, gemma: PreTrainedModel
) -> None:
    """Rows beyond the tokenizer have the greatest logits, and no token of theirs ever comes."""
    valid = windowed.manifest.model.vocab_size
    text = [*PROMPT, *plain(windowed, PROMPT, 30)]
    with torch.no_grad():
        rows = gemma(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    assert rows.shape[1] == valid + PADDING
    assert (rows.argmax(-1) >= valid).all()  # so it is the runtime that leaves them out
    for heat in (0.0, 0.8, 5.0):
        texts = {
            windowed.generate(
                PROMPT, max_tokens=30, temperature=heat, seed=5, num_speculative_tokens=k
            ).token_ids
            for k in windowed.manifest.num_speculative_tokens
        }
        assert len(texts) == 1
        assert max(*texts.pop()) < valid


def test_b60_ids_that_no_token_has(windowed: Artifact, engine: Artifact) -> None:
    """Refused in prompts, drafts and stops by their number, and nothing is read out of bounds; the last id is fine."""
    for artifact in (windowed, engine):
        valid = artifact.manifest.model.vocab_size
        with artifact.session() as session:
            session.configure(max_tokens=3, ignore_eos=True)
            for bad in (valid, valid + PADDING - 1, -1, 1 << 40, -(1 << 63)):
                with pytest.raises(RequestError, match="SPECC-E0602") as error:
                    session.append([3, bad])
                assert str(bad) in str(error.value)
            assert len(spoken(session, [valid - 1, valid - 1])) == 3
            if artifact.manifest.method in HOST:
                session.set_drafter(lambda committed, k, bad=valid: [bad] * k)
                session.configure(num_speculative_tokens=2)
                with pytest.raises(RequestError, match="SPECC-E0606"):
                    spoken(session, [3])


def test_b80_a_prompt_at_once_or_token_by_token(engine: Artifact, windowed: Artifact) -> None:
    """prefill(n) and n times decode(1) leave the same state, to the bit."""
    for artifact in (engine, windowed):
        prompt = LONG[:40]
        with artifact.session() as at_once, artifact.session() as single:
            at_once.append(prompt)
            single.append(prompt[:1])
            for place, token in enumerate(prompt):
                inputs = {"tokens": [token], "positions": [place], "rows": [place]}
                row = bytes(single.run("verify_0", inputs))
            assert row == logits_after(at_once, prompt)


def test_b94_cancelled_and_used_again(engine: Artifact) -> None:
    """Cancelled at prefill and after each token of a round: the session goes on as a fresh one would."""
    whole = plain(engine, PROMPT, 14)
    for k in drafting(engine) or (0,):
        with engine.session() as session, engine.session() as fresh:
            for one in (session, fresh):
                one.configure(max_tokens=14, ignore_eos=True, **fixed(engine, k))
            session.cancel()
            assert not session.append(PROMPT)
            assert session.finish_reason == "cancelled"
            assert session.tokens == ()
            assert tuple(spoken(session, PROMPT)) == whole
            for heard in range(10):
                session.rewind(0)
                assert session.append(PROMPT)
                for token in whole[:heard]:
                    assert session.next() == token
                session.cancel()
                assert session.next() is None
                assert session.finish_reason == "cancelled"
                # Another turn, and then the same prompt again.
                fresh.rewind(0)
                text = [*PROMPT, *whole[:heard], 9, 9]
                assert spoken(session, [9, 9]) == spoken(fresh, text), (k, heard)
                assert acceptance(session) == acceptance(fresh)
                session.rewind(len(PROMPT))
                session.cancel()
                assert not session.append([]) or session.next() is None
                assert session.finish_reason == "cancelled"
                assert tuple(spoken(session)) == whole, (k, heard)


def test_b100_one_token_at_a_time(engine: Artifact) -> None:
    """However many tokens a round commits, the caller gets each by itself, in order."""
    for k in engine.manifest.num_speculative_tokens:
        heard: list[int] = []
        found = engine.generate(
            PROMPT, max_tokens=20, ignore_eos=True, on_token=heard.append, **fixed(engine, k)
        )
        assert tuple(heard) == found.token_ids == plain(engine, PROMPT, 20)
        if engine.manifest.method == "draft_model" and k:
            assert found.stats.rounds < len(heard)
