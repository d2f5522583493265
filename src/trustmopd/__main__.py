"""`python -m trustmopd`, and so `accelerate launch -m trustmopd train recipe.yaml`."""

from trustmopd.cli import app

if __name__ == "__main__":
    app()
