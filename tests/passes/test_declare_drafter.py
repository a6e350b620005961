from expecttest import assert_expected_inline

from specc.passes.declare_drafter import DeclareDrafter
from tests.passes import toy


def _line(pass_: DeclareDrafter) -> str:
    lines = str(pass_(toy.empty()).program).splitlines()
    return next((line for line in lines if line.startswith("drafter")), "no drafter")


def test_writes_the_contract_with_defaults() -> None:
    toy.assert_twice_is_once(DeclareDrafter("ngram"), toy.empty())
    lines = [
        _line(DeclareDrafter("none")),
        _line(DeclareDrafter("ngram", options={"prompt_lookup_max": 8})),
        _line(DeclareDrafter("suffix")),
        _line(DeclareDrafter("draft_model", host=False)),
        _line(DeclareDrafter("draft_model", host=False, beside="ngram")),
    ]
    assert_expected_inline(
        "\n".join(lines),
        """\
drafter none K=[0] on the host
drafter ngram K=[0] on the host prompt_lookup_max=8 prompt_lookup_min=2
drafter suffix K=[0] on the host max_spec_factor=1.0 max_tree_depth=24 min_token_prob=0.1
drafter draft_model K=[0]
drafter draft_model K=[0] beside ngram prompt_lookup_max=4 prompt_lookup_min=2""",
    )


def test_whole_numbers_are_ints() -> None:
    """Flags give floats; the engine reads ints where it counts."""
    given = {"max_tree_depth": 12.0, "max_spec_factor": 2.0}
    options = DeclareDrafter("suffix", options=given)(toy.empty()).program.contract.options
    assert repr(options["max_tree_depth"]) == "12"
    assert repr(options["max_spec_factor"]) == "2.0"


def test_leaves_alone() -> None:
    program = toy.empty()
    assert DeclareDrafter("none")(program) == (program, False)


def test_refuses() -> None:
    cases = [
        DeclareDrafter("oracle"),
        DeclareDrafter("ngram", options={"prompt_lookup": 3}),
        DeclareDrafter("ngram", options={"prompt_lookup_max": 0}),
        DeclareDrafter("ngram", options={"prompt_lookup_max": 2.5}),
        DeclareDrafter("suffix", options={"max_tree_depth": 2.5}),
        DeclareDrafter("draft_model", False, {"max_tree_depth": 2.5}, "suffix"),
        DeclareDrafter("ngram", options={"prompt_lookup_min": 5, "prompt_lookup_max": 4}),
        DeclareDrafter("none", options={"prompt_lookup_max": 4}),
        DeclareDrafter("layerskip", host=False, options={"prompt_lookup_max": 4}),
        DeclareDrafter("layerskip", host=False, beside="none"),
        DeclareDrafter("ngram", beside="suffix"),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(c, toy.empty()) for c in cases),
        """\
SPECC-E0359 declare-drafter: there is no host drafter oracle
SPECC-E0357 declare-drafter: ngram has no option prompt_lookup=3
SPECC-E0357 declare-drafter: ngram has no option prompt_lookup_max=0
SPECC-E0357 declare-drafter: ngram takes no fraction as prompt_lookup_max
SPECC-E0357 declare-drafter: suffix takes no fraction as max_tree_depth
SPECC-E0357 declare-drafter: suffix takes no fraction as max_tree_depth
SPECC-E0357 declare-drafter: ngram cannot look up 5 to 4 tokens
SPECC-E0357 declare-drafter: none has no option prompt_lookup_max=4
SPECC-E0357 declare-drafter: layerskip has no option prompt_lookup_max=4
SPECC-E0359 declare-drafter: none cannot stand beside layerskip
SPECC-E0359 declare-drafter: suffix cannot stand beside ngram""",
    )
