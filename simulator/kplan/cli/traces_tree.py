"""``kplan traces tree``: the acceptance of a head's draft tree, from that of its chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.profiles import Tree

MODEL = typer.Argument(metavar="MODEL", help="trace model (JSON) of the head's chain")


def derive_tree(
    model: Annotated[Path, MODEL],
    proposer: Annotated[
        str,
        typer.Option(
            "--proposer", autocompletion=complete.proposers, help="name of the tree, for example eagle3-tree"
        ),
    ],
    tree: Annotated[
        str, typer.Option("--tree", help="DEPTH,TOPK,NODES: 3,2,5 verifies 5 nodes of depth <= 3")
    ],
    out: Annotated[Path, typer.Option("--out", help="file to write")],
    json: o.Json = False,
) -> int:
    """Derive the trace model of a draft tree (SGLang's) from the model of its head's chain.

    How often the lower ranks of the head are right is assumed: fitted on published trees.
    """
    from kplan.acceptance import load_model, save_model, tree_model
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress

    check_outputs({"--out": out}, [model])
    with progress() as tell:
        tell("walking the tree")
        made = tree_model(load_model(model), proposer, _tree(tree))
    save_model(made, out)
    if json:
        print_json({"out": str(out), "proposer": proposer, **made.facts})
        return 0
    for key, value in made.facts.items():
        prose(f"{key}: {value}")
    say(f"wrote {out}")
    return 0


def _tree(text: str) -> Tree:
    """Raises InputError: not three whole numbers."""
    from kplan.errors import InputError
    from kplan.profiles import Tree

    counts = text.split(",")
    if len(counts) != 3 or not all(count.strip().isdecimal() and int(count) > 0 for count in counts):
        raise InputError("--tree", text, "DEPTH,TOPK,NODES are needed, each at least 1", "for example 3,2,5")
    return Tree(*(int(count) for count in counts))
