"""`specc help`: the pages of docs/, in the terminal."""

from __future__ import annotations

from specc import output
from specc.flags import Json
from specc.topics import topic, topics
from specc.verbs import VERBS, verbs


def main(name: str | None = None, /, *, json: Json = False) -> int:
    """Explain a topic, a verb or an error's code; without one, list the topics.

    Example: specc help slow

    Args:
        name: A topic such as methods or lossless, a verb, or a code such as SPECC-E0203.
        json: Print one JSON object on stdout.
    """
    if name is None:
        known = topics()
        if json:
            output.emit({"topics": known})
            return output.EXIT_OK
        width = max(map(len, known))
        print("\n".join(f"  {n:<{width}}  {title}" for n, title in known.items()))
        print(
            "\nspecc help TOPIC, specc help VERB, or specc help SPECC-E0203 for the code of an error"
        )
        return output.EXIT_OK
    if name in VERBS and name not in topics() and not json:
        verbs().help_print([name])
        return output.EXIT_OK
    text = topic(name)
    if json:
        output.emit({"topic": name, "text": text})
    else:
        print(text, end="")
    return output.EXIT_OK
