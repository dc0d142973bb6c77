"""The kernels need jax and nothing else of this project's dependencies."""

from __future__ import annotations

import subprocess
import sys

ELSEWHERE = "flax optax orbax transformers ml_collections grain torch PIL av safetensors absl"

PROGRAM = f"""
import sys
import jax
given = set(sys.modules)

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ELSEWHERE.split()!r}:
            raise ImportError(f"kernels import {{name}}")

sys.meta_path.insert(0, Refuse())
import turnwise_jax.kernels as kernels
new = {{name.split(".")[0] for name in set(sys.modules) - given}}
new -= set(sys.stdlib_module_names) | {{"jax", "jaxlib"}}
print(sorted(new))
print(sorted(name for name in sys.modules if name.startswith("turnwise_jax.")))
print(float(kernels.window_quality([5.0], [4.0], [True], 0.0, 10.0)))
"""


def test_importing_the_kernels_loads_only_jax_and_the_standard_library():
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    new, modules, value = result.stdout.splitlines()
    assert new == "['turnwise_jax']"
    assert all("turnwise_jax.kernels" in name for name in modules.strip("[]").split(", "))
    assert value == "0.78125"
