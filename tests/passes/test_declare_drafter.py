from expecttest import assert_expected_inline

from specc.passes.declare_drafter import DeclareDrafter
from tests.passes import toy


def _line(pass_: DeclareDrafter) -> str:
    return str(pass_(toy.empty()).program).splitlines()[1]


def test_writes_the_contract_with_defaults() -> None:
    toy.assert_twice_is_once(DeclareDrafter("ngram"), toy.empty())
    lines = [
        _line(DeclareDrafter("none")),
        _line(DeclareDrafter("ngram", options={"prompt_lookup_max": 8})),
        _line(DeclareDrafter("suffix")),
        _line(DeclareDrafter("draft_model", host=False)),
    ]
    assert_expected_inline(
        "\n".join(lines),
        """\
model toy vocab=6 hidden=4 layers=0 positions=16 eos=[]
model toy vocab=6 hidden=4 layers=0 positions=16 eos=[]
model toy vocab=6 hidden=4 layers=0 positions=16 eos=[]
model toy vocab=6 hidden=4 layers=0 positions=16 eos=[]""",
    )


def test_leaves_alone() -> None:
    program = toy.empty()
    assert DeclareDrafter("none")(program) == (program, False)


def test_refuses() -> None:
    cases = [
        DeclareDrafter("oracle"),
        DeclareDrafter("ngram", options={"prompt_lookup": 3}),
        DeclareDrafter("ngram", options={"prompt_lookup_max": 0}),
        DeclareDrafter("ngram", options={"prompt_lookup_min": 5, "prompt_lookup_max": 4}),
        DeclareDrafter("none", options={"prompt_lookup_max": 4}),
        DeclareDrafter("layerskip", host=False, options={"prompt_lookup_max": 4}),
    ]
    assert_expected_inline(
        "\n".join(toy.refusal(c, toy.empty()) for c in cases),
        """\
SPECC-E0359 declare-drafter: there is no host drafter oracle
SPECC-E0357 declare-drafter: ngram has no option prompt_lookup=3
SPECC-E0357 declare-drafter: ngram has no option prompt_lookup_max=0
SPECC-E0357 declare-drafter: ngram cannot look up 5 to 4 tokens
SPECC-E0357 declare-drafter: none has no option prompt_lookup_max=4
SPECC-E0357 declare-drafter: layerskip has no option prompt_lookup_max=4""",
    )
