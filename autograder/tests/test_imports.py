"""What a learner imports is little, and is there on every system."""

import subprocess
import sys

POSIX = "fcntl resource pwd grp termios tty pty syslog readline curses".split()
HEAVY = (
    "IPython jupyter jupyter_client ipykernel nbgrader nbformat nbconvert "
    "jupytext yaml scipy transformers matplotlib einops pybtex sphinx "
    "sqlalchemy"
).split()

# What torch and numpy load by themselves is not ours.
SCRIPT = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"no module named {{name!r}}", name=name)

for name in {blocked!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Block())
import numpy, torch
before = set(sys.modules)
from autograder import check

def padding_mask(lengths, T):
    at = torch.arange(T, device=lengths.device)
    return at < lengths[:, None, None, None]

assert repr(check("padding_mask", padding_mask)) == "2.0"
if {fresh}:
    assert repr(check("padding_mask", padding_mask, fresh=True)) == "2.0"
print(*sorted(name.split(".")[0] for name in set(sys.modules) - before))
"""


def loaded(blocked=(), fresh=False):
    """Top-level names of the modules that a check loads."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            SCRIPT.format(blocked=list(blocked), fresh=fresh),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_a_check_needs_no_module_that_only_posix_has():
    loaded(POSIX)


def test_a_check_loads_nothing_beyond_torch_numpy_and_the_library():
    names = loaded() - set(sys.stdlib_module_names)
    assert not {name for name in names if not name.startswith("_")} - {
        "autograder",
        "torch",
        "numpy",
        "cython_runtime",  # of numpy's random generators
        "sympy",  # torch needs both for its meta device
        "mpmath",
        "triton",  # comes with torch for NVIDIA's GPUs
    }
    assert not names & set(HEAVY)


def test_a_check_works_where_torch_and_numpy_are_all_there_is():
    loaded(HEAVY)
