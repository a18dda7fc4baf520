"""Finds regular expressions for which Python's engine, which backtracks, takes more than linear time.

The pattern is converted to an automaton whose states each read one character. Finding out that a text does not match
takes

- exponential time if a state has two ways back to itself that read the same text, as in (a+)+b, and
- quadratic time if a loop reads the same text as an earlier loop and as the way between them, as in a*a*b.

A search is a pattern after a loop that reads anything, so a search for <[^>]*> takes quadratic time. Parts at the end
that cannot fail are left out. Lookarounds always match, except for one that forbids a character before a search.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # re has no public parser
from typing import Any, NamedTuple

ANCHORED = {"match", "fullmatch"}
UNLIMITED = 100  # a part that can be repeated more often counts as a loop
# The characters that patterns distinguish. A set of characters is a bit mask.
ALPHABET = "".join(map(chr, (*range(0x100), 0x2028, 0x202E, 0xD800, 0xFF15, 0x1F436)))
ANY = (1 << len(ALPHABET)) - 1

CHARACTERS = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN}
REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
LOOKAROUNDS = {_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT}
BEGINNINGS = {_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING}


def too_slow(pattern: str | bytes, flags: int = 0, method: str = "search") -> str:
    """Returns why a method of the pattern can take more than linear time, or an empty string if it cannot."""
    tree = _parser.parse(pattern, flags)
    sequences = [list(tree)] if method == "fullmatch" else _that_can_fail(list(tree))
    return next(filter(None, (_Automaton(items, tree.state, method).fault() for items in sequences)), "")


def _that_can_fail(items: list[Any]) -> Iterator[list[Any]]:
    """Yields the sequences that can fail on their own. A repetition ends without backtracking when its body fails."""
    while items:
        operation, argument = items[-1]
        if operation in REPEATS and argument[0] == 0:
            del items[-1]
            yield from _that_can_fail(list(argument[2]))
        elif operation in REPEATS or operation is _constants.SUBPATTERN:
            items[-1:] = argument[-1]
        elif operation is _constants.BRANCH:
            for alternative in argument[1]:
                yield from _that_can_fail(items[:-1] + list(alternative))
            return
        else:
            yield items
            return


class _Part(NamedTuple):
    """A part of the pattern: the states in which it can begin and end, and the characters that they allow there."""

    first: dict[int, int]
    last: dict[int, int]
    optional: bool = False
    after_skipping: int = ANY  # the characters that can follow if the part is skipped


class _Automaton:
    def __init__(self, items: list[Any], state: Any, method: str) -> None:
        self._state = state
        self._reads = [ANY]  # the characters that each state reads; state 0 is before the pattern
        self._edges: list[dict[int, int]] = [{}]  # for each state, the next states and the characters that lead there
        self._doubled = False  # whether a part of a loop is a loop itself, so that the same edge exists twice
        pattern = self._sequence(items)
        if method not in ANCHORED and not (items[0][0] is _constants.AT and items[0][1] in BEGINNINGS):
            self._link({0: ANY}, {0: ANY})
            pattern = self._sequence(_before(items[0]), pattern)
        self._link({0: ANY}, pattern.first)

    def _sequence(self, items: Iterable[Any], end: _Part | None = None) -> _Part:
        whole = _Part({}, {}, optional=True)
        for part in (*map(self._part, items), *([end] if end else [])):
            self._link(whole.last, part.first)
            first = whole.first | _limited(part.first, whole.after_skipping if whole.optional else 0)
            last = part.last | _limited(whole.last, part.after_skipping if part.optional else 0)
            both = whole.optional and part.optional
            whole = _Part(first, last, both, whole.after_skipping & part.after_skipping)
        return whole

    def _part(self, item: Any) -> _Part:
        operation, argument = item
        if operation in CHARACTERS:
            read = _compiler.compile(_parser.SubPattern(self._state, [item])).fullmatch
            self._reads.append(sum(1 << place for place, each in enumerate(ALPHABET) if read(each)))
            self._edges.append({})
            state = {len(self._reads) - 1: ANY}
            return _Part(state, state)
        if operation is _constants.SUBPATTERN:
            return self._sequence(argument[-1])
        if operation is _constants.BRANCH:
            parts = [self._sequence(each) for each in argument[1]]
            first = {state: ANY for part in parts for state in part.first}
            last = {state: ANY for part in parts for state in part.last}
            return _Part(first, last, any(part.optional for part in parts))
        if operation in REPEATS:
            return self._repeated(operation, *argument)
        if operation in LOOKAROUNDS:
            return _Part({}, {}, optional=True)
        raise NotImplementedError(f"{operation}; add it here, or write the pattern in another way")

    def _repeated(self, operation: Any, least: int, most: int, body: Any) -> _Part:
        part = self._sequence(body)
        if most > UNLIMITED:
            self._link(part.last, part.first)
        others = ANY
        if operation is _constants.POSSESSIVE_REPEAT:  # takes all that it can, so something else must follow
            ((state, _),) = part.first.items()
            others &= ~self._reads[state]
        return _Part(part.first, _limited(part.last, others), part.optional or least == 0, others)

    def _link(self, ends: dict[int, int], beginnings: dict[int, int]) -> None:
        for end, after in ends.items():
            for beginning, before in beginnings.items():
                known, read = self._edges[end].get(beginning, 0), after & before & self._reads[beginning]
                self._doubled |= bool(known & read)
                self._edges[end][beginning] = known | read

    def fault(self) -> str:
        if self._doubled:
            return "exponential time: a repetition repeats what already repeats itself"
        states = set(range(len(self._edges)))
        later = [{other for (other,) in self._reachable((state,), states)} for state in states]
        loops = [{other for other in later[state] if state in later[other]} for state in states]
        for one in filter(loops.__getitem__, states):
            for pair in self._reachable((one, one), loops[one], loops[one]):
                if pair[0] != pair[1] and (one, one) in self._reachable(pair, loops[one], loops[one]):
                    return "exponential time: a repetition can match the same text in two ways"
            for other in filter(loops.__getitem__, later[one] - loops[one]):
                if (one, other, other) in self._reachable((one, one, other), loops[one], states, loops[other]):
                    return "quadratic time: two repetitions in a row can match the same text"
        return ""

    def _reachable(self, begin: tuple[int, ...], *within: set[int]) -> set[tuple[int, ...]]:
        """Returns the states to which some text leads, from several states at the same time."""
        found: set[tuple[int, ...]] = set()
        waiting = [begin]
        while waiting:
            new = set(self._next(waiting.pop(), within)) - found
            found |= new
            waiting += new
        return found

    def _next(self, states: tuple[int, ...], within: tuple[set[int], ...]) -> Iterator[tuple[int, ...]]:
        """Yields the states to which one character leads, from several states at the same time."""
        for others in product(*(within[place] & self._edges[state].keys() for place, state in enumerate(states))):
            read = ANY
            for state, other in zip(states, others, strict=True):
                read &= self._edges[state][other]
            if read:
                yield others


def _before(item: Any) -> list[Any]:
    """Returns a pattern for the character that must come before a search, or an empty pattern."""
    operation, argument = item
    if operation is not _constants.ASSERT_NOT or argument[0] > 0:
        return []
    ((kind, value),) = argument[1]
    if kind is _constants.NOT_LITERAL:
        return [(_constants.LITERAL, value)]
    raise NotImplementedError(f"a lookbehind for {kind}")


def _limited(states: dict[int, int], characters: int) -> dict[int, int]:
    return {state: allowed & characters for state, allowed in states.items() if allowed & characters}
