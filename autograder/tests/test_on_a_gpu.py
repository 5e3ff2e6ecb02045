"""Every chapter keeps its tensors on one device where there is a GPU.

`like_cuda.py` runs them on a machine that has none: there a tensor on "cuda"
is one that says so, and what mixes it with the CPU's fails as on a GPU.

Not proved: whatever only a GPU can show (see there), and what chapters do at
the sizes that `SMALLER` replaces, such as the loss that chapter 5 reaches.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from autograder import pages
from autograder.course import ROOT
from autograder.exercise import lessons

# Chapters train models: two and a half minutes on one core.
pytestmark = pytest.mark.slow

# What would take longer than the rest of its chapter: on a GPU chapter 5
# chooses a model too large for a CPU and chapter 6 multiplies in float16,
# which a CPU does slowly. Chapter 7's models train on the CPU anyhow.
SMALLER = {
    "ch5_gpt": {
        "Size(V, C=256, D=256, H=8, L=4)": "Size(V, C=64, D=64, H=8, L=4)",
        "(16, 1_000, 2e-3)": "(16, 30, 2e-3)",
    },
    "ch6_kv_cache_flash": {"n = 4_096": "n = 512"},
    "ch7_scaling_laws": {
        "widths, read = (4, 6, 8, 12, 16), 100_000": (
            "widths, read = (4, 6, 8, 12, 16), 10_000"
        ),
    },
}

# The tensors of the cells below.
TENSORS = """\
import copy
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

gpu = torch.ones(3, 3, device="cuda")
cpu = torch.ones(3, 3)
gpu_number, cpu_number = gpu.sum(), cpu.sum()
gpu_ids = torch.zeros(3, dtype=torch.long, device="cuda")
cpu_ids = torch.zeros(3, dtype=torch.long)
on_cpu = torch.device("cpu")
"""
MIXED = "RuntimeError: Expected all tensors to be on the same device"
FORBIDDEN = {
    "cpu + gpu": MIXED,
    "gpu @ cpu": MIXED,
    "gpu += cpu": MIXED,
    "cpu * gpu_number": MIXED,
    "torch.cat([gpu, cpu])": MIXED,
    "torch.stack([gpu_number, cpu_number])": MIXED,
    "torch.where(gpu > 0, gpu, cpu)": MIXED,
    "torch.where(cpu > 0, gpu, gpu)": MIXED,
    "gpu.masked_fill(cpu > 0, 0)": MIXED,
    "gpu.gather(0, cpu_ids[None])": MIXED,
    "torch.allclose(gpu, cpu)": MIXED,
    "torch.equal(gpu, cpu)": MIXED,
    "F.embedding(cpu_ids, gpu)": MIXED,
    "F.embedding(gpu_ids, cpu)": MIXED,
    "F.cross_entropy(gpu, cpu_ids)": MIXED,
    "F.layer_norm(gpu, (3,), cpu[0], cpu[0])": MIXED,
    "F.scaled_dot_product_attention(gpu, gpu, gpu, cpu > 0)": MIXED,
    "nn.Linear(3, 3)(gpu)": MIXED,
    "nn.Linear(3, 3).cuda()(cpu)": MIXED,
    "cpu[gpu_ids]": "RuntimeError: indices should be either on cpu",
    "cpu[gpu > 0]": "RuntimeError: indices should be either on cpu",
    "cpu[gpu_ids] = 1.0": "RuntimeError: indices should be either on cpu",
    "gpu[cpu_ids] = cpu": MIXED,
    "torch.randn(3, generator=torch.Generator(), device='cuda')": (
        "RuntimeError: Expected a 'cuda' device type for generator"
    ),
    "gpu.numpy()": "TypeError: can't convert cuda:0 device type tensor",
    "np.asarray(gpu)": "TypeError: can't convert cuda:0 device type tensor",
    "np.sqrt(gpu)": "TypeError: can't convert cuda:0 device type tensor",
    "plt.plot(gpu)": "TypeError: can't convert cuda:0 device type tensor",
}
# Which of them torch's own model of devices, FakeTensor, cannot judge: what
# needs numbers or a GPU's driver; and it lets a CPU's number join a stack,
# whose kernel wants all parts on the GPU.
NOT_MODELLED = {
    "torch.allclose(gpu, cpu)",
    "torch.equal(gpu, cpu)",
    "nn.Linear(3, 3).cuda()(cpu)",
    "gpu[cpu_ids] = cpu",
    "torch.stack([gpu_number, cpu_number])",
}
MODELLED = [
    code
    for code, error in FORBIDDEN.items()
    if error == MIXED and code not in NOT_MODELLED
]
ALLOWED = [
    "assert (gpu + cpu_number).is_cuda and (cpu_number * gpu).is_cuda",
    "assert gpu.masked_fill(gpu > 0, cpu_number).is_cuda",
    "assert gpu[cpu_ids].is_cuda and gpu[cpu > 0].is_cuda",
    "gpu[cpu_ids] = cpu_number; gpu[cpu > 0] = 2.0",
    "gpu[1] = cpu[1]; cpu[1] = gpu[1]",
    "assert gpu.copy_(cpu).is_cuda and not cpu.copy_(gpu).is_cuda",
    "assert torch.equal((gpu @ gpu).cpu(), cpu @ cpu)",
    "assert (gpu.cpu() + cpu).device == gpu.to(on_cpu).device == on_cpu",
    "assert gpu.to('cuda') is gpu and gpu.cuda() is gpu",
    "assert gpu.device == torch.device('cuda', 0) != cpu.device",
    "assert cpu.cuda().device == cpu.to(gpu).device == gpu.device",
    "assert torch.tensor([1.0], device='cuda').is_cuda",
    "assert torch.zeros_like(gpu).is_cuda and gpu.new_ones(2).is_cuda",
    "assert not torch.zeros_like(gpu, device='cpu').is_cuda",
    "assert gpu.sum().item() == float(gpu_number) == 9",
    "assert gpu[0].tolist() == [1, 1, 1] and f'{gpu_number:.1f}' == '9.0'",
    "assert repr(gpu_ids) == \"tensor([0, 0, 0], device='cuda:0')\"",
    "np.asarray(gpu.cpu()); plt.plot(gpu.cpu())",
    "torch.set_default_device('cuda')\n"
    "assert torch.arange(3).is_cuda and torch.tensor([1.0]).is_cuda\n"
    "with torch.device('cpu'): assert not torch.arange(3).is_cuda",
]
# What a GPU brings with it beyond the rules for mixing.
GRADIENTS = """\
leaf = torch.ones(3, requires_grad=True)
there = leaf.to("cuda")
there.retain_grad()
(there * gpu).sum().cpu().backward()
assert not leaf.grad.is_cuda and there.grad.is_cuda
assert leaf.grad.tolist() == [3, 3, 3]
"""
MODULES = """\
model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
before = list(model.parameters())
model.to("cuda")
for each, known in zip(model.parameters(), before):
    assert each is known and each.is_cuda and isinstance(each, nn.Parameter)
assert model[1].running_mean.is_cuda
model(gpu).sum().backward()
again = copy.deepcopy(model)
assert all(each.is_cuda for each in again.parameters())
assert len(list(again.cpu().parameters())) == len(before)
assert not again[0].weight.is_cuda
"""
# Steps with all that chapters use; the device must not change a number. A
# large eps, since the keys' biases have no gradient but rounding errors.
TRAINING = """\
def trained(device):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    x, y = torch.randn(2, 4, 5, 8)
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), eps=1e-3, fused=FUSED
    )
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    for _ in range(3):
        with torch.autocast(device, torch.float16, enabled=device == "cuda"):
            loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert loss.is_cuda == (device == "cuda")
    return [each.detach().cpu() for each in model.parameters()]

for one, other in zip(trained("cuda"), trained("cpu")):
    torch.testing.assert_close(one, other)
"""
PROPERTIES = {
    "gradients lie where their leaves lie": GRADIENTS,
    "modules move with all that is theirs": MODULES,
    "training in a loop": f"FUSED = False\n{TRAINING}",
    "training fused": f"FUSED = True\n{TRAINING}",
}


def ran(folder, jobs):
    """{name: what came of it} of cells to run, {name: sources}."""
    reports = {name: folder / f"{i}.json" for i, name in enumerate(jobs)}
    places = [ROOT / "book", ROOT, os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        [sys.executable, pathlib.Path(__file__).with_name("like_cuda.py")],
        input=json.dumps(
            [
                {"sources": sources, "report": str(reports[name])}
                for name, sources in jobs.items()
            ]
        ),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, places))),
            "IPYTHONDIR": str(folder),
            "MPLBACKEND": "agg",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    for name, report in reports.items():
        assert report.exists(), f"{name} ended its process:\n{done.stderr}"
    return {
        name: json.loads(report.read_text(encoding="utf-8"))
        for name, report in reports.items()
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What came of each short piece of code, by its source or name."""
    codes = {code: code for code in [*FORBIDDEN, *ALLOWED]} | PROPERTIES
    return ran(
        tmp_path_factory.mktemp("short"),
        {name: [TENSORS, code] for name, code in codes.items()},
    )


# The imitation


@pytest.mark.parametrize("code", FORBIDDEN)
def test_mixing_devices_fails_as_on_a_gpu(told, code):
    assert told[code]["ran"] == 1, told[code]["trace"]
    assert told[code]["error"].startswith(FORBIDDEN[code])


@pytest.mark.parametrize("code", MODELLED)
def test_torch_s_own_model_of_devices_forbids_the_same(code):
    with FakeTensorMode():
        names = {}
        exec(TENSORS, names)
        with pytest.raises(RuntimeError) as caught:
            exec(code, names)
    assert f"RuntimeError: {caught.value}".startswith(MIXED)


@pytest.mark.parametrize("code", ALLOWED)
def test_what_a_gpu_allows_goes_through(told, code):
    assert not told[code]["error"], told[code]["trace"]


@pytest.mark.parametrize("name", PROPERTIES)
def test_moving_and_training_work_as_on_a_gpu(told, name):
    assert not told[name]["error"], told[name]["trace"]


# The chapters


def cells(lesson):
    """A chapter's code cells as Colab gets them, with SMALLER in force."""
    notebook = pages.colab_edition(ROOT / "book" / f"{lesson}.md")
    text = "\n\0".join(
        cell.source for cell in notebook.cells if cell.cell_type == "code"
    )
    for large, small in SMALLER.get(lesson, {}).items():
        assert text.count(large) == 1, f"{lesson} has no {large}"
        text = text.replace(large, small)
    return text.split("\n\0")


@pytest.mark.parametrize("lesson", lessons())
def test_a_chapter_runs_on_a_gpu_unchanged(lesson, tmp_path):
    sources = cells(lesson)
    (told,) = ran(tmp_path, {lesson: sources}).values()
    assert not told["error"], told["trace"]
    assert told["ran"] == len(sources)
    # A chapter that never got to the GPU would prove nothing.
    assert told["operations"] > 10


# Each forgets one device of chapter 1.
FORGOTTEN = {
    "keep = torch.tensor(past, device=device)": ("keep = torch.tensor(past)"),
    "V = torch.randn(7, 3, dtype=torch.float64, device=device)": (
        "V = torch.randn(7, 3, dtype=torch.float64)"
    ),
    "theirs.cpu().numpy()": "theirs.numpy()",
}


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """{line: (cells before its own, what came of them and it without)}."""
    sources, jobs = cells("ch1_self_attention"), {}
    for line, changed in FORGOTTEN.items():
        (own,) = (each for each in sources if line in each)
        jobs[line] = sources[: sources.index(own)]
        jobs[line].append(own.replace(line, changed))
    told = ran(tmp_path_factory.mktemp("forgetful"), jobs)
    return {line: (len(jobs[line]) - 1, told[line]) for line in jobs}


@pytest.mark.parametrize("line", FORGOTTEN)
def test_a_device_that_a_chapter_forgets_is_noticed(forgetful, line):
    before, told = forgetful[line]
    assert told["ran"] == before, told["trace"]
    assert "cuda:0" in told["error"]
