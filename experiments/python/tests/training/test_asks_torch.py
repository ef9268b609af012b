"""The notebook that asks a torch module: `make trainers`, and `make test` where that has made a Python with torch."""

import copy

import nbclient
import nbformat


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def printed(notebook):
    """Each contender's line, by its name."""
    texts = [output.text for output in outputs(notebook) if output.output_type == "stream"]
    return dict(line.split(": ", 1) for line in "".join(texts).splitlines())


def test_the_notebook_asks_torch(root):
    folder = root / "experiments/python/examples"
    stored = nbformat.read(folder / "asks_torch.ipynb", as_version=4)
    again = copy.deepcopy(stored)
    nbclient.NotebookClient(again, resources={"metadata": {"path": folder}}).execute()
    before, now = printed(stored), printed(again)
    assert before.keys() == now.keys() == {"py-torch sim", "aurora sim"}
    # Integers in the datapath give the same bits everywhere, torch's floats nearly the same.
    assert now["aurora sim"] == before["aurora sim"]
    torch, ours = (float(now[name].split()[0]) for name in ("py-torch sim", "aurora sim"))
    assert torch > 0.7 * ours, now
    # What is drawn is there; a picture's bytes depend on the version of what drew it.
    kinds = [[output.output_type for output in outputs(notebook)] for notebook in (stored, again)]
    assert kinds[0] == kinds[1]
    assert any("image/png" in output.get("data", {}) for output in outputs(again))
