"""Packaging: the base install runs on CPU; extras add an accelerator, the tests, notebooks."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def version() -> str:
    for line in (HERE / "turnwise_jax" / "__init__.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise RuntimeError("turnwise_jax/__init__.py has no __version__")


setup(
    name="turnwise_jax",
    version=version(),
    description="RL post-training for video policies that act turn by turn, in JAX",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["turnwise_jax", "turnwise_jax.*"]),
    package_data={"turnwise_jax.kernels": ["README.md"]},
    install_requires=[
        "jax>=0.10",
        "flax>=0.12",
        "optax>=0.2.5",
        "orbax-checkpoint>=0.11",
        "grain>=0.2.12",
        "transformers>=5.0",
        "ml-collections>=1.1",
        "absl-py>=2.0",
        "numpy>=2.0",
        "scipy>=1.11",
        "av>=14",
        "pillow>=11",
        "pyarrow>=18",
        "httpx>=0.27",
        "tensorboardX>=2.6",
        "rich>=13",
        "matplotlib>=3.9",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10"],
        "cuda12": ["jax[cuda12]>=0.10"],
        "test": [
            "safetensors>=0.5",
            "libtpu>=0.0.30",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "ruff>=0.9",
            "mypy>=1.14",
            "dashscope>=1.20",
            "tiktoken>=0.8",
            "jiwer>=3.1",
            "rouge_score>=0.1.2",
            "nbclient>=0.10",
            "nbformat>=5.10",
            "ipykernel>=6.29",
        ],
        "parity": ["torch>=2.6"],
        # readers of videos that benchmarks/decode_video.py compares with
        "bench": [
            "opencv-python-headless>=4.10",
            "decord>=0.6; sys_platform == 'linux' and platform_machine == 'x86_64'",
        ],
        "notebooks": ["jupyterlab>=4"],
    },
    entry_points={"console_scripts": ["turnwise = turnwise_jax.cli.main:main"]},
)
