"""`python -m trustmopd`, and so `accelerate launch -m trustmopd train recipe.yaml`."""

from trustmopd.cli import run

if __name__ == "__main__":
    run()
