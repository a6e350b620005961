"""`specc completion`: what a shell needs to complete verbs and flags."""

from __future__ import annotations

from typing import Literal

from specc import output
from specc.verbs import verbs


def main(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print what a shell needs to complete verbs and flags.

    Put it where the shell looks: ~/.local/share/bash-completion/completions/specc for bash, a file _specc in a folder
    of $fpath for zsh, ~/.config/fish/completions/specc.fish for fish.

    Example: specc completion fish > ~/.config/fish/completions/specc.fish

    Args:
        shell: bash, zsh or fish.
    """
    print(verbs().generate_completion(shell=shell))
    return output.EXIT_OK
