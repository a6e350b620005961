import pytest

from specc.ir import Contract, DynamicTree, Round, StaticTree


def test_places_in_any_order_and_twice() -> None:
    tree = StaticTree.of([[1], (0, 2), (0,), (1,), (0, 0, 1), (0, 0)])
    assert tree.paths == ((0,), (1,), (0, 0), (0, 2), (0, 0, 1))
    assert str(tree) == "[(0,), (1,), (0,0), (0,2), (0,0,1)]"
    assert tree.depth == 3
    assert [tree.size(k) for k in (1, 2, 3)] == [2, 4, 5]
    assert tree.parents(3) == [-1, 0, 0, 1, 1, 3]
    assert tree.parents(2) == [-1, 0, 0, 1, 1]
    assert [tree.ranks(d) for d in (1, 2, 3)] == [2, 3, 2]


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        ([], "lists of ranks"),
        ([()], "lists of ranks"),
        ([(0,), (0, -1)], "lists of ranks"),
        ([(0,), (1, 0)], r"\(1, 0\) is there, but \(1,\) is not"),
        ([(r,) for r in range(257)], "257 nodes; 256 at most"),
    ],
)
def test_what_is_no_tree(paths: list[tuple[int, ...]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StaticTree.of(paths)


def test_sizes_of_what_is_grown() -> None:
    tree = DynamicTree(20, 3)
    assert [tree.size(k) for k in (1, 2, 3, 9)] == [3, 12, 20, 20]


def test_nodes_of_rounds() -> None:
    assert Contract().nodes(4) == 4
    branched = Contract(tree=StaticTree.of([(0,), (1,), (0, 0)]))
    assert [branched.nodes(k) for k in (0, 1, 2)] == [0, 2, 3]
    assert Round("round_2", 2).nodes == 2
