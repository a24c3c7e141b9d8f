"""Boards of tic-tac-toe and what OpenSpiel says of them."""

import functools

import numpy as np
import pyspiel

SPIEL = pyspiel.load_game("tic_tac_toe")


def board_of(text: str) -> np.ndarray:
    """`"OX. .O. ..X"` as int8 [9]."""
    return np.array(["OX".find(cell) for cell in text.replace(" ", "")], np.int8)


@functools.cache
def reachable() -> dict[tuple[int, ...], tuple[int, frozenset[int]]]:
    """Every position that OpenSpiel reaches -> (outcome under perfect play, the moves that keep it)."""
    known = {}

    def visit(state):
        board = tuple(".xo".index(cell) - 1 for cell in str(state).replace("\n", ""))
        if board not in known:
            if state.is_terminal():
                known[board] = int(state.player_return(0)), frozenset()
            else:
                values = {action: visit(state.child(action)) for action in state.legal_actions()}
                best = (max if state.current_player() == 0 else min)(values.values())
                known[board] = best, frozenset(action for action, value in values.items() if value == best)
        return known[board][0]

    visit(SPIEL.new_initial_state())
    return known
