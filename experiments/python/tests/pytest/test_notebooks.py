"""Notebooks: each runs from its first cell to its last, and prints what it is stored with."""

import copy

import nbclient
import nbformat
import pytest


def printed(notebook):
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output.text for output in outputs if output.output_type == "stream"]


@pytest.mark.parametrize("name", ["reno", "bandit"])
def test_a_notebook_prints_what_it_shows(name, root):
    folder = root / "experiments/python/examples"
    stored = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    again = copy.deepcopy(stored)
    nbclient.NotebookClient(again, resources={"metadata": {"path": folder}}).execute()
    assert printed(stored) == printed(again) != []
