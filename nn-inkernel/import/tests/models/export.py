"""Exports networks by torch's own exporter, beside this file, with what torch says that they compute.

    python export.py      # needs torch, and onnx for the exporter

The exporter is the one of TorchScript (`dynamo=False`). The newer one wrote none of these files.
"""

import json
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent
INPUTS = 6


class Policy(nn.Module):
    """A policy as people write them: a module of modules, with what only training needs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 7), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(7, 1, bias=False)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(observation))


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1))


def export(network: nn.Module, name: str, **options: object) -> None:
    torch.onnx.export(network, (torch.zeros(1, INPUTS),), str(HERE / name), dynamo=False, **options)


def main() -> None:
    torch.manual_seed(7)
    observations = torch.rand(16, INPUTS) * 2 - 1
    networks = {"sequential": sequential().eval(), "module": Policy().eval()}
    export(networks["sequential"], "torch-sequential.onnx")
    # For batches of any size, under names of one's own.
    names = {"input_names": ["observation"], "output_names": ["action"]}
    export(networks["module"], "torch-module.onnx", dynamic_axes={"observation": {0: "batch"}}, **names)
    with torch.no_grad():
        outputs = {name: network(observations)[:, 0].tolist() for name, network in networks.items()}
    made = {"torch": torch.__version__, "observations": observations.tolist(), "outputs": outputs}
    (HERE / "torch.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
