"""Faults that users of other systems met in public, by the rows of the project's list: which test keeps each away.

A row is either covered, by the tests named here, or waits: the reason names the issue that builds what it is about.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_TEXT, _ARTIFACT = "faults/test_text.py", "faults/test_artifact.py"
_KERNELS, _PYTHON = "runtime/test_kernels.py", "runtime/test_python.py"
_INDUCTOR, _FAMILIES = "backends/test_inductor.py", "ir/importers/test_families.py"
_DRAFTERS = "ir/importers/drafters"
_PROCESSORS = "faults/test_processors.py"

COVERED: dict[str, tuple[str, ...]] = {
    "B02": (f"{_TEXT}::test_b02_max_tokens_cuts_a_block", f"{_PYTHON}::test_max_tokens_is_exact"),
    "B06": (f"{_TEXT}::test_b06_a_model_without_eos",),
    "B08": (f"{_TEXT}::test_b08_a_turn_after_a_stop_inside_a_block",
            f"{_PYTHON}::test_a_second_turn_equals_a_fresh_run",
            "tools/test_conversation.py::test_turns_equal_fresh_runs"),
    "B10": (f"{_TEXT}::test_b10_the_first_token_does_not_depend_on_how_the_prompt_was_fed",
            f"{_INDUCTOR}::test_logits_have_the_same_bits_in_any_block"),
    # No residuals here: a draft counts if it is the token that plain sampling takes, and a NaN ends the round.
    "B18": (f"{_KERNELS}::test_accept_and_nan", f"{_KERNELS}::test_accept_follows_the_text",
            "ir/test_dialect.py::test_accept_says_when_a_logit_that_counts_is_nan"),
    # One noise for each position and token, whoever drafts.
    "B20": (f"{_KERNELS}::test_sampling_has_the_softmax_law",
            f"{_KERNELS}::test_tokens_do_not_depend_on_drafts",
            "ir/test_dialect.py::test_noise_comes_from_distinct_hash_inputs",
            f"{_INDUCTOR}::test_sampled_tokens_do_not_depend_on_speculation"),
    "B22": (f"{_PROCESSORS}::test_one_best_token_is_greedy",
            f"{_PROCESSORS}::test_any_options_say_the_same_with_every_k"),
    "B24": (f"{_PROCESSORS}::test_greedy_is_transformers_with_the_formulas",
            "tools/serve/test_choosing.py::test_options_are_the_engines"),
    "B26": (f"{_PROCESSORS}::test_logprobs_are_those_of_transformers",
            f"{_PROCESSORS}::test_and_with_drafts_that_are_right_by_half"),
    "B28": ("tools/serve/test_choosing.py::test_b28_a_schema_is_followed_whoever_drafts",),
    "B30": (f"{_TEXT}::test_b30_short_matches_change_nothing",),
    "B32": (f"{_ARTIFACT}::test_b32_what_is_not_built_is_refused_by_name",),
    "B34": (f"{_ARTIFACT}::test_b34_bench_says_where_time_goes_and_what_breaks_even",
            "tools/test_measurement.py::test_the_verdict_is_plain"),
    "B38": (f"{_ARTIFACT}::test_b38_a_draft_of_few_layers_is_measured_before_it_is_sold",),
    "B44": (f"{_TEXT}::test_b44_prompts_up_to_the_end_of_the_context",
            f"{_PYTHON}::test_a_full_context_ends_generation"),
    "B46": (f"{_ARTIFACT}::test_b46_one_context_for_target_and_drafter",),
    "B48": (f"{_TEXT}::test_b48_rejected_drafts_in_a_window",
            f"{_FAMILIES}::test_windows_are_seen"),
    "B50": (f"{_TEXT}::test_b50_a_prompt_whose_state_is_there_already",
            f"{_PYTHON}::test_rewind_and_append_equal_a_fresh_run"),
    "B54": (f"{_TEXT}::test_b54_prompts_of_nothing_and_of_one_token",
            "tools/test_end_to_end.py::test_an_empty_prompt_is_a_coded_error",
            "passes/test_pipelines.py::test_a_prompt_of_one_token"),
    "B56": (f"{_TEXT}::test_b56_a_prompt_of_three_chunks",
            "passes/test_pipelines.py::test_chunks_of_the_prompt_do_not_matter"),
    "B58": (f"{_TEXT}::test_b58_padding_of_the_head_is_never_chosen",
            "passes/test_build_accept.py::test_padding_of_the_head_is_never_chosen",
            f"{_DRAFTERS}/test_refusals.py::test_b58_padding_of_the_vocabulary"),
    "B60": (f"{_TEXT}::test_b60_ids_that_no_token_has",
            "ir/importers/test_folder.py::test_tokenizer_beyond_the_head"),
    "B62": (f"{_ARTIFACT}::test_b62_a_character_of_several_tokens_in_a_stream",
            f"{_ARTIFACT}::test_b62_the_c_program_writes_whole_characters",
            "tools/test_streaming.py::test_whatever_the_tokens_are"),
    "B64": (f"{_ARTIFACT}::test_b64_b66_heads_are_what_the_tensors_say",
            "ir/importers/test_folder.py::test_refused_by_name", f"{_DRAFTERS}/test_refusals.py::test_refused"),
    "B66": (f"{_ARTIFACT}::test_b64_b66_heads_are_what_the_tensors_say",
            "ir/importers/test_folder.py::test_tensors_decide_about_tying"),
    # Which layout a checkpoint has is read; that the reading matters is shown by misreading it.
    "B68": (f"{_DRAFTERS}/test_parity.py::test_same_drafts",
            f"{_DRAFTERS}/test_parity.py::test_each_convention_matters"),
    "B70": (f"{_DRAFTERS}/test_refusals.py::test_refused",),
    "B72": (f"{_DRAFTERS}/test_refusals.py::test_b72_another_method",
            f"{_ARTIFACT}::test_b72_a_method_that_the_drafter_is_not_for",
            "tools/test_flags.py::test_a_method_that_was_nearly_meant"),
    "B74": (f"{_DRAFTERS}/test_eagle.py::test_medusa",),
    "B76": (f"{_DRAFTERS}/test_eagle.py::test_eagle3_of_speculators",
            f"{_DRAFTERS}/test_eagle.py::test_eagle3_of_modelopt",
            f"{_DRAFTERS}/test_eagle.py::test_eagle3_of_safeailab", f"{_DRAFTERS}/test_parity.py::test_same_drafts"),
    # Every family with any number of rows; then T = 1, each K + 1, and prefill, compiled.
    "B78": (f"{_FAMILIES}::test_same_logits_as_transformers",
            "ir/test_infer.py::test_rows_are_told_from_widths_of_the_same_number",
            f"{_INDUCTOR}::test_same_tokens_as_transformers"),
    "B80": (f"{_TEXT}::test_b80_a_prompt_at_once_or_token_by_token",),
    "B82": (f"{_ARTIFACT}::test_b82_isa_is_refused_where_it_kills_and_silent_where_it_does_not",
            f"{_INDUCTOR}::test_code_for_another_cpu_is_built_here_and_refused_where_it_cannot_run"),
    "B88": (f"{_ARTIFACT}::test_b88_another_version_is_refused_before_anything_else",
            "tools/test_end_to_end.py::test_run_of_other_versions",
            f"{_PYTHON}::test_interface_version_is_checked_first"),
    "B94": (f"{_TEXT}::test_b94_cancelled_and_used_again",
            f"{_PYTHON}::test_cancel_from_another_thread_leaves_a_usable_session"),
    "B96": (f"{_ARTIFACT}::test_b96_memory_is_predicted_and_taken_when_a_session_opens",),
    "B98": ("tools/test_flags.py::test_every_flag_changes_the_request",
            "tools/test_flags.py::test_every_flag_is_tried",
            "tools/test_flags.py::test_a_flag_without_meaning_is_refused"),
    "B100": (f"{_TEXT}::test_b100_one_token_at_a_time",),
}  # fmt: skip

WAITING: dict[str, str] = {
    "B04": "stop strings: issue 5 (stop tokens are here: B08)",
    "B12": "trees of drafts: issue 4 (drafts are chains here)",
    "B14": "half precision: issue 3 (all is f32 here; a NaN is a coded error, see B18)",
    "B16": "graph capture: issues 6 and 7",
    "B36": "batches and load: issue 5 (switching K each round is exact: runtime/cpp/session_test.cpp)",
    "B40": "published heads: issue 4",
    "B42": "a server that runs for hours: issue 5",
    "B52": "caches of 8 bits or fewer: issue 3 (f16 and bf16 are here: --kv-cache-dtype)",
    "B84": "more than one GPU: issue 6",
    "B86": "loading from memory: issue 5",
    "B90": "memory while compiling, measured in a group of limited memory: issue 8 (the peak is printed now)",
    "B92": "limits of Ascend's operators: issue 7",
}


def test_each_row_is_covered_or_says_why_not() -> None:
    rows = {f"B{number:02}" for number in range(2, 101, 2)}
    assert COVERED.keys() | WAITING.keys() == rows
    assert not COVERED.keys() & WAITING.keys()
    assert all(re.search(r"issues? \d", reason) for reason in WAITING.values())


@pytest.mark.parametrize("row", COVERED)
def test_the_tests_named_are_there(row: str) -> None:
    for named in COVERED[row]:
        path, name = named.split("::")
        assert f"def {name}(" in (TESTS / path).read_text(), named
